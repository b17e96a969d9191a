"""What tests of child processes share: whether one is gone, and what others can see of it."""

from __future__ import annotations

import os
import time
from pathlib import Path


def gone(pid: int, within_s: float) -> bool:
    """Whether a process that is no child of ours has ended; a zombie has, which init has yet to reap."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def shown_to_others(group: int) -> list[bytes]:
    """Command line and environment of every process of a group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                found.append((process / "cmdline").read_bytes() + (process / "environ").read_bytes())
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for_text(path: Path) -> None:
    while not path.exists() or not path.read_text():
        time.sleep(0.02)
