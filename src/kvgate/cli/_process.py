"""The process around a command: streams that are closed, full or hung up, and signals that ask it to end.

The exit code is the verdict, so nothing that happens to a terminal may change it: whoever closes the pipe of the
results has read enough, progress that nobody reads is dropped, and only results that cannot be written are an error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import Any, TextIO, cast

from kvgate.core.errors import KvgateError

#: Ending engines and recording the state takes less; a signal after that ends the process as it is.
GRACE_S = 5.0
_ASKS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class OutputLost(KvgateError):
    """Results could not be written to standard output."""


class Guarded:
    """A text stream whose reader may go away; everything else is the stream's own.

    Args:
        must: an error other than a closed pipe is raised, not dropped.
    """

    def __init__(self, stream: TextIO, *, must: bool) -> None:
        self._stream, self._must = stream, must

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop if there is nobody to read.

        Raises:
            OutputLost: a full disk under results.
        """
        try:
            return self._stream.write(text)
        except OSError as e:
            self._lost(e)
            return len(text)

    def flush(self) -> None:
        """As `write`."""
        try:
            self._stream.flush()
        except OSError as e:
            self._lost(e)

    def _lost(self, e: OSError) -> None:
        # What is still in the buffer must go somewhere, or the interpreter's own flush at exit changes the exit code.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._must and not isinstance(e, BrokenPipeError):
            kept = "; what was measured is kept: kvgate show last" if sys.argv[1:2] == ["check"] else ""
            raise OutputLost(f"standard output cannot be written: {e.strerror or e}{kept}") from e


def guard_streams() -> None:
    """Make the standard streams safe to use, whatever the caller gave us."""
    # A file that is opened later must not get the number of a closed stream, and be written to as one.
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = _guarded(sys.stdout or os.fdopen(1, "w", closefd=False), must=True)
    sys.stderr = _guarded(sys.stderr or os.fdopen(2, "w", closefd=False), must=False)


def _guarded(stream: TextIO, *, must: bool) -> TextIO:
    # A locale without Unicode shows an escape; it must not end a run.
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return cast(TextIO, Guarded(stream, must=must))


def end_on_signals() -> None:
    """SIGINT, SIGTERM, SIGHUP and SIGQUIT end the command alike: engines are closed, the run is marked, exit 130.

    The first raises KeyboardInterrupt where the main thread is; those that follow would only tear that ending, and are
    dropped for `GRACE_S`. A signal that the caller has ignored (nohup) stays ignored.
    """
    asked_at: list[float] = []

    def end(signum: int, frame: FrameType | None) -> None:
        if not asked_at:
            asked_at.append(time.monotonic())
            raise KeyboardInterrupt(signal.Signals(signum).name)
        if time.monotonic() - asked_at[0] > GRACE_S:
            os._exit(130)  # children see their standard input end, and the kernel ends them with us

    for signum in _ASKS_TO_END:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, end)


def ignore_signals() -> None:
    """At the very end: neither a late signal nor a handled one may replace an exit code that is already known."""
    for signum in _ASKS_TO_END:
        signal.signal(signum, signal.SIG_IGN)
    # CPython ends itself by SIGINT if the last text that was executed (a dataclass's methods are) was interrupted, even
    # though the interrupt was caught; the next text that is executed resets that.
    exec("")  # noqa: S102 - a constant
