"""Why a family of processes ended, by its log: written for vLLM's, and read so for all engines that are Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

_PREFIX: Final = re.compile(r"^\(\w+(?: \w+=\w+)*\) (?:(?:INFO|WARNING|ERROR|CRITICAL) \S+ \S+ \[[^\]]*\] ?)?")
_ERROR: Final = re.compile(r"(?:^|: )error: (.+)|^\s*((?:[\w.]*(?:Error|Exception)|Value error)\b[:,] .+)")
#: Errors that only say that a process below failed, or how the program is called.
_ECHOES: Final = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Executor failed",
    "DeadError",
)
MAX_LINE_CHARS: Final = 600
#: A process of vLLM's that a signal ended while loading: v1/engine/utils.py CoreEngineProcManager.
_FAILED_CORE: Final = re.compile(r"Failed core proc\(s\): \{[^}]*?: -(\d{1,2})\b")
#: What signals mean that nobody here sends.
_SIGNALS: Final[Mapping[int, str]] = {
    4: "an illegal instruction: this build needs what the processor lacks, such as AVX-512",
    9: "killed, as the system does when memory runs out",
    7: "a bus error, as when shared memory runs out",
}


def how_it_ended(status: int, lines: Iterable[str]) -> tuple[str, str]:
    """How a keeper ended, which ends as its server did, and the words of the log that best say why."""
    number = -status if status < 0 else status - 128
    if not (status < 0 or 0 < number < 65):
        return f"exit status {status}", last_words(lines)
    # Who is killed has no last words; what stands last in the log was said of something else.
    words = last_words(lines, errors_only=True)
    return f"killed by signal {number}{_meaning(number) if number != 9 else ''}", words


def _meaning(signal: int) -> str:
    return f" ({_SIGNALS[signal]})" if signal in _SIGNALS else ""


def last_words(lines: Iterable[str], *, errors_only: bool = False) -> str:
    """Why an engine ended: the first error that is not a mere echo of another, else the last line."""
    found: list[str] = []
    last = core = ""
    for line in lines:
        text = _PREFIX.sub("", line[:MAX_LINE_CHARS]).rstrip()
        last = text.strip() or last
        if (m := _FAILED_CORE.search(text)) and not core:
            core = f"its engine core was ended by signal {m[1]}{_meaning(int(m[1]))}"
        if m := _ERROR.search(text):
            found.append((m[1] or m[2]).strip())
    told = [e for e in found if not any(echo in e for echo in _ECHOES)]
    # pydantic says first that there is an error, and a line later which.
    said = [e for e in told if "validation error" not in e]
    # A signal leaves no error of its own.
    return next(iter((*said, *told, *filter(None, [core]), *found)), "" if errors_only else last)
