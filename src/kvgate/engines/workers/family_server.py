"""The keeper of one server that is a family of processes. Runs in the interpreter that owns the engine; imports the
standard library only.

Standard input: one JSON line of settings, then silence; its end means that the parent is gone. Standard output: one
JSON line, {"version", "package", "python", "pid", "port", "folder"} or {"failed"}. The engine's log goes to standard
error.

Settings: `title` (for messages), `packages` (names under which the engine is published), `module` (run as `python -m`
would) or `script` (name of a console script), `arguments`, `key_flag` ("" where the engine takes no key), `api_key`,
`files` (name -> text, put into a private folder; the word `{name}` among the arguments becomes its path), `parent`.

The processes of such a family do not all notice when one of them is killed. So the server is started in a process group
of its own, and this keeper ends the whole group: when the parent is gone, and when the server has ended. The server
itself dies with this keeper. The server is this file again, called with the word "serve": it takes the key from a pipe
and puts it among the arguments inside the process, where nobody else reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
#: Servers free their shared memory on SIGTERM; what still runs after this long is killed.
GRACE_S = 2.5
#: What a tracker of Python's needs to free what its processes left; it ends by itself then.
TRACKER_S = 1.0


def read_line() -> bytes:
    """One line of standard input, byte by byte: what follows is not ours to take."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(1)
        line += piece
    return line


def package(names: list[str]) -> tuple[str | None, str | None]:
    """Name and version of the installed package; None where its metadata cannot be read."""
    from importlib import metadata

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return name, metadata.version(name)
    return None, None


def free_port() -> int:
    """A port that nobody listens on now; these engines take a number only."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def serve(keeper: int, kind: str, name: str, key_flag: str, arguments: list[str]) -> None:
    """Become the engine: the kernel kills this process when the keeper ends; the key is read from standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(1)
    key = read_line().decode().strip()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # The folder of this file would come first; an engine is to find `vllm_forced` there, and nothing of ours before its
    # own modules.
    sys.path.append(sys.path.pop(0))
    sys.argv = [name, *arguments, *([key_flag, key] if key_flag else [])]
    if kind == "module":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.exit(console_script(name)())


def console_script(name: str) -> Any:
    """What a console script of an installed package calls."""
    from importlib import metadata

    found = [e for e in metadata.entry_points(group="console_scripts") if e.name == name]
    if not found:
        sys.exit(f"error: {sys.executable} has no command {name}")
    return found[0].load()


def kill_group(group: int) -> None:
    """Kill a process group; Python's trackers go last, for they free the shared memory of the dead."""
    for pid in members(group):
        if not is_tracker(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + TRACKER_S
    while time.monotonic() < until and members(group):
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def members(group: int) -> list[int]:
    """Living processes of a group; empty where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Keeper:
    """Starts the server and ends its whole group, once; its private folder goes with it."""

    def __init__(self, want: dict[str, Any], port: int) -> None:
        self._ending = threading.Lock()
        self.folder = Path(tempfile.mkdtemp(prefix="kvgate-")) if want.get("files") else None
        kind = "module" if want.get("module") else "script"
        words = [*self._placed(want), "--host", "127.0.0.1", "--port", str(port)]
        here = [sys.executable, str(Path(__file__).resolve()), "serve", str(os.getpid())]
        argv = [*here, kind, want[kind], want.get("key_flag", ""), *words]
        self.server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=2, stderr=2, start_new_session=True)
        if self.server.stdin is not None:
            with contextlib.suppress(OSError), self.server.stdin as pipe:
                pipe.write(want["api_key"].encode() + b"\n")

    def _placed(self, want: dict[str, Any]) -> list[str]:
        """The arguments, with files written and named."""
        paths = {}
        for name, text in want.get("files", {}).items():
            if self.folder is None or Path(name).name != name:
                raise ValueError(f"no file name: {name!r}")
            path = self.folder / name
            path.write_text(text, encoding="utf-8")
            paths["{" + name + "}"] = str(path)
        return [paths.get(word, word) for word in want["arguments"]]

    def end(self, grace_s: float) -> None:
        """End the group: the server politely, the rest for good."""
        with self._ending:
            if self.server.poll() is None and grace_s > 0:
                self.server.terminate()
                # The main thread waits for the server; its status is only looked at here.
                until = time.monotonic() + grace_s
                while self.server.poll() is None and time.monotonic() < until:
                    time.sleep(0.02)
            kill_group(self.server.pid)
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)


def end_at_eof(keeper: Keeper) -> None:
    """End everything when standard input ends."""
    while os.read(0, 4096):
        pass
    keeper.end(GRACE_S)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    want: dict[str, Any] = json.loads(read_line())
    if os.getppid() != want["parent"]:
        os._exit(1)

    def say(**said: Any) -> None:
        reply.write(json.dumps(said) + "\n")
        reply.flush()

    name, version = package(want["packages"])
    if name is None:
        say(failed=f"{sys.executable} has no {want['title']}: install it there, or name the interpreter that has it")
        os._exit(1)
    port = free_port()
    keeper = Keeper(want, port)
    signal.signal(signal.SIGQUIT, lambda *_: None)  # not ignored: the engine would inherit that, and SGLang uses it
    signal.signal(signal.SIGTERM, lambda *_: None)  # its meaning is the end of standard input, which comes with it
    threading.Thread(target=end_at_eof, args=(keeper,), daemon=True).start()
    folder = "" if keeper.folder is None else str(keeper.folder)
    say(version=version, package=name, python=sys.version.split()[0], pid=keeper.server.pid, port=port, folder=folder)
    status = keeper.server.wait()
    keeper.end(0.0)
    # As a shell says it: 128 and the signal.
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], sys.argv[6:])
    else:
        main()
