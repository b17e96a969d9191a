"""Progress and tables on a terminal. Everything but results goes to stderr; text of models is never markup."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from kvgate.core.text import one_line
from kvgate.core.units import duration_text

if TYPE_CHECKING:
    from rich.progress import TaskID

#: A pipe or a CI log gets one line at most this often.
PLAIN_EVERY_S = 10.0
#: A terminal that says it has fewer columns (or none at all) gets broken lines, not an empty page.
LEAST_COLUMNS = 40
_SHOW_CURSOR, _HIDE_CURSOR = b"\x1b[?25h", b"\x1b[?25l"


def out_console() -> Console:
    """Where results go."""
    return _wide_enough(Console(highlight=False, markup=False, emoji=False))


def _wide_enough(console: Console) -> Console:
    if console.width < LEAST_COLUMNS:
        console.width = LEAST_COLUMNS
    return console


def print_json(document: Mapping[str, Any]) -> None:
    """One document on stdout; NaN and infinity are an error, not a token that other parsers refuse.

    In ASCII, which is the same document under any locale, and holds a file name that is not Unicode.
    """
    sys.stdout.write(json.dumps(document, allow_nan=False, indent=1) + "\n")


def _write_error(data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), data)


def _in_foreground() -> bool:
    """Whether the terminal is ours; after `bg` it is the shell's."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


class TerminalProgress:
    """A bar where there is a terminal, plain lines where there is none.

    Attributes:
        stood_still_s: how long Ctrl-Z has stopped us so far.
    """

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn  # most verbs show a table and no bar

        self._console = _wide_enough(Console(stderr=True, highlight=False, markup=False, emoji=False))
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %", markup=False),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._stage, self._last_plain = "", 0.0
        self.stood_still_s = 0.0

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        self._task = self._bar.add_task("starting", total=None, left="")
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._stand_still)
        return self

    def __exit__(self, *exc: object) -> None:
        if signal.getsignal(signal.SIGTSTP) == self._stand_still:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._bar.stop()

    def _stand_still(self, signum: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its cursor back, and the time until we go on is counted apart.

        Written past rich, which may be in the middle of a line: a handler runs anywhere.
        """
        drawn = self._console.is_terminal and not self._console.is_dumb_terminal
        if drawn:
            _write_error(_SHOW_CURSOR)
        begun = time.monotonic()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # returns when somebody says SIGCONT
        signal.signal(signal.SIGTSTP, self._stand_still)
        self.stood_still_s += time.monotonic() - begun
        if drawn and _in_foreground():
            _write_error(_HIDE_CURSOR)

    def note(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(one_line(text)))

    def stage(self, text: str) -> None:
        """What is happening now."""
        self._stage = one_line(text)
        if self._task is not None:
            self._bar.update(self._task, description=self._stage)

    def update(self, done: float, total: float, remaining_s: float | None) -> None:
        """Move the bar; the remaining time is what this run's own rates give."""
        left = "" if remaining_s is None else f"about {duration_text(remaining_s)} left"
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, left=left)
        if not self._console.is_terminal and time.monotonic() - self._last_plain > PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            self._console.print(Text(f"{done / total:4.0%}  {left}  {self._stage}"))
