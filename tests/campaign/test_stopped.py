"""Ctrl-Z of a check on a terminal of its own, another check meanwhile, and what goes on after `fg`."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from test_resume import MARK, Command

SHOW_CURSOR = b"\x1b[?25h"


class Terminal:
    """What a process writes to a pseudo terminal."""

    def __init__(self) -> None:
        self.reading, self.writing = pty.openpty()
        self.seen = b""

    def until(self, word: bytes, seconds: float = 120.0) -> None:
        """Read until `word` has come since the last `until`."""
        end = time.monotonic() + seconds
        while word not in self.seen:
            assert time.monotonic() < end, self.seen[-2000:]
            if select.select([self.reading], [], [], 0.1)[0]:
                self.seen += os.read(self.reading, 65536)
        self.seen = self.seen.partition(word)[2]


def states(command: Command) -> set[str]:
    return {p.status() for p in command.processes()}


@pytest.mark.kill
def test_a_check_that_is_stopped_keeps_its_lease_and_goes_on(smollm2: Path, tmp_path: Path) -> None:
    """Stopped with its engine: the cursor is back, another check is told who runs, and nothing is asked twice."""
    script = json.dumps({"ttft_ms": 400.0})
    options = ["--engine", "fake", "--engine-env", f"KVGATE_FAKE_SCRIPT={script}", "--suite", "needle"]
    command, terminal = Command(smollm2, tmp_path, *options), Terminal()
    env = os.environ | {MARK: command.mark, "TERM": "xterm"}
    # A group of its own in our session: one whose parent is elsewhere in the session is stopped by SIGTSTP.
    process = subprocess.Popen(command.argv, stdout=subprocess.PIPE, stderr=terminal.writing, env=env, process_group=0)
    try:
        terminal.until(b"base: needle 2/4")
        os.killpg(process.pid, signal.SIGTSTP)
        terminal.until(SHOW_CURSOR)
        end = time.monotonic() + 60
        while states(command) != {psutil.STATUS_STOPPED}:
            assert time.monotonic() < end, states(command)
            time.sleep(0.05)

        second = subprocess.run(command.argv, capture_output=True, text=True, timeout=120)
        assert (second.returncode, second.stdout) == (2, "")
        assert f"already running (pid {process.pid} on " in second.stderr
        assert states(command) == {psutil.STATUS_STOPPED}
    finally:
        os.killpg(process.pid, signal.SIGCONT)
    while process.poll() is None:
        if select.select([terminal.reading], [], [], 0.1)[0]:
            terminal.seen += os.read(terminal.reading, 65536)

    assert process.returncode == 3, terminal.seen[-2000:]
    asked = command.rows("select count(*), count(distinct arm || case_id || repeat) from work")
    assert asked[0][0] == asked[0][1] > 0
    assert command.rows("select distinct error from observations") == [("",)]
    assert command.gone()
