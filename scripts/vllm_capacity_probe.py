"""Starts vLLM on the CPU, keeps its log until it serves (or fails), ends it, and says what it took.

    python scripts/vllm_capacity_probe.py MODEL --python VLLM_ENV/bin/python --kv-cache-dtype fp8_e4m3 > start.log

Standard library only; any interpreter runs it. The log goes to standard output, one JSON line with exit status, seconds
and peak memory to standard error. The engine and its workers are one process group, which is ended whatever happens.
Linux: memory is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

#: The server prints this when it takes requests.
READY = "Application startup complete"


@dataclass(frozen=True)
class Start:
    """One start of the engine: what it wrote, whether it served, and what that took."""

    log: str
    ready: bool
    status: int | None
    seconds: float
    peak_rss_mib: int


def start(
    python: str,
    model: Path,
    *,
    kv_cache_dtype: str,
    space_gib: int | None = 1,
    max_model_len: int | None = None,
    further: tuple[str, ...] = (),
    timeout_s: float = 300.0,
) -> Start:
    """Start the server, wait until it is ready, ends itself, or `timeout_s` is over, and end it.

    Args:
        python: interpreter of the environment that has vLLM. model: a Hugging Face folder.
        space_gib: memory for the KV cache; None leaves it to the arguments. max_model_len: None is the model's own.
        further: more arguments of `vllm serve`.
    """
    # Not `vllm serve`: in the CPU wheel that command looks for a package named "vllm" and ends.
    argv = [
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--kv-cache-dtype",
        kv_cache_dtype,
    ]
    argv += ["--host", "127.0.0.1", "--port", str(_free_port()), "--enforce-eager", *further]
    if max_model_len is not None:
        argv += ["--max-model-len", str(max_model_len)]
    env = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
        "OMP_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
    }
    if space_gib is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(space_gib)
    began = time.monotonic()
    child = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", process_group=0
    )
    try:
        lines, ready, peak = _watch(child, began + timeout_s)
        return Start("".join(lines), ready, child.poll(), round(time.monotonic() - began, 1), peak)
    finally:
        _end(child)


def _watch(child: subprocess.Popen[str], until: float) -> tuple[list[str], bool, int]:
    """Lines until the engine is ready or gone, whether it was ready, and the peak memory in MiB."""
    said: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        for line in child.stdout or ():
            said.put(line)
        said.put(None)

    threading.Thread(target=pump, daemon=True).start()
    lines: list[str] = []
    peak = 0
    while time.monotonic() < until:
        peak = max(peak, _group_rss_mib(child.pid))
        try:
            line = said.get(timeout=0.5)
        except queue.Empty:
            continue
        if line is None:
            child.wait()
            return lines, False, peak
        lines.append(line)
        if READY in line:
            return lines, True, peak
    return lines, False, peak


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _group_rss_mib(group: int) -> int:
    """Resident memory of all processes of one group; shared pages count once a process."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold blanks; fields are counted behind it.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total >> 20


def _end(child: subprocess.Popen[str]) -> None:
    """End the whole group: politely, then for good."""
    for sign, wait_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(child.pid, sign)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and _alive(child):
            time.sleep(0.1)
    child.wait()


def _alive(child: subprocess.Popen[str]) -> bool:
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    """The command line."""
    parse = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parse.add_argument("model", type=Path)
    parse.add_argument("--python", default=os.environ.get("KVGATE_VLLM_PYTHON", ""), help="default: KVGATE_VLLM_PYTHON")
    parse.add_argument("--kv-cache-dtype", default="auto")
    parse.add_argument("--space-gib", type=int, default=1)
    parse.add_argument("--max-model-len", type=int)
    parse.add_argument("--timeout-s", type=float, default=300.0)
    parse.add_argument("further", nargs="*", help="more arguments of `vllm serve`, after --")
    args = parse.parse_args()
    if not args.python:
        parse.error("no interpreter of vLLM; `make vllm-env` builds one, then give --python or KVGATE_VLLM_PYTHON")
    got = start(
        args.python,
        args.model,
        kv_cache_dtype=args.kv_cache_dtype,
        space_gib=args.space_gib,
        max_model_len=args.max_model_len,
        further=tuple(args.further),
        timeout_s=args.timeout_s,
    )
    sys.stdout.write(got.log)
    facts = asdict(got)
    del facts["log"]
    print(json.dumps(facts), file=sys.stderr)
    return 0 if got.ready else 1


if __name__ == "__main__":
    sys.exit(main())
