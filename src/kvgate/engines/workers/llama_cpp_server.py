"""The process of one llama.cpp server. Runs in any interpreter that has xllamacpp; imports nothing else of ours.

Standard input: one JSON line of settings, then silence; its end means that the parent is gone. Standard output: one
JSON line, {"listening", "version", "python"} or {"failed"}. The engine's log goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, by_signal: bool) -> None:
    """Ask the kernel for a KILL when the parent's thread ends; a parent that is gone already ends us here."""
    if by_signal and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def end_at_eof() -> None:
    """Exit when standard input ends: no library is asked, none may hold us."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def version_of(package: str) -> str | None:
    """The package's version, or None where its metadata cannot be read."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def parameters(x: Any, want: dict[str, Any]) -> Any:
    """CommonParams of one server. Names that an older wheel lacks are left out where its behaviour is the same."""
    p = x.CommonParams()
    p.model.path = want["model"]
    p.n_ctx, p.n_parallel = want["n_ctx"], want["n_parallel"]
    p.n_batch, p.n_ubatch = want["n_batch"], want["n_ubatch"]
    p.cache_type_k, p.cache_type_v = x.ggml_type(want["type_k"]), x.ggml_type(want["type_v"])
    p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = want["n_threads"]
    p.n_ctx_checkpoints = want["n_ctx_checkpoints"]
    p.cache_ram_mib = 0
    p.fit_params = False
    p.endpoint_metrics = p.endpoint_slots = p.endpoint_props = True
    p.verbosity = 4
    p.sampling.seed = 1
    p.api_keys = [want["api_key"]]
    p.port = 0
    if hasattr(p, "hostnames"):
        p.hostnames = ["127.0.0.1"]
    else:
        p.hostname = "127.0.0.1"
    for page in ("ui", "webui"):
        if hasattr(p, page):
            setattr(p, page, False)
    return p


def main() -> None:
    for interrupt in (signal.SIGINT, signal.SIGQUIT):  # the parent decides what an interrupt means
        signal.signal(interrupt, signal.SIG_IGN)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints belongs to the log
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(1)
        line += piece
    want = json.loads(line)
    die_with_parent(want["parent"], want["die_by_signal"])
    threading.Thread(target=end_at_eof, daemon=True).start()

    def say(**said: Any) -> None:
        reply.write(json.dumps(said) + "\n")
        reply.flush()

    try:
        import xllamacpp

        server = xllamacpp.Server(parameters(xllamacpp, want))
    except Exception as e:
        say(failed=f"{type(e).__name__}: {e}")
        os._exit(1)
    say(listening=server.listening_address, version=version_of("xllamacpp"), python=sys.version.split()[0])
    # The server's threads serve; its destructor has been seen to hang, so it is never run.
    threading.Event().wait()


if __name__ == "__main__":
    main()
