"""Repetition loops: the end of the answer goes round in circles.

The period test looks at the end only: a refrain, a list or a table that ends is no loop. It wants both many turns and
a long stretch, because "no, no, no, no" and a row of a Markdown table are periodic too; zlib has to agree.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.taxonomy import Flag, State, one_line

_WORDS = 200  # of the end are looked at
_MIN_TURNS = 4
_MIN_SPAN_WORDS = 20
_MAX_PERIOD_WORDS = 50
_CHARS = 400  # for scripts without spaces, and for one endless word
_MIN_SPAN_CHARS = 60
_MIN_TURNS_CHARS = 6
_MAX_PERIOD_CHARS = 60
#: English prose of 1,000 characters is compressed 1.7 to 2.2 times, four exact turns of 20 words over 3 times.
_MIN_ZLIB = 2.5
#: Without an exact period ("I am a cat. I am a big cat. I am ..."): only text that nothing but a loop reaches.
_ZLIB_ALONE = 10.0
_ZLIB_ALONE_MIN_CHARS = 1000
#: A string that grammar or length ended is closed behind the loop.
_CLOSERS = " \t\r\n\"'`}])"
_RULE = frozenset("-=_*|:+#~ \t\n")  # a ruled line or an empty table is drawn, not looped


class Loop(NamedTuple):
    """A periodic end: `turns` times `unit`."""

    turns: int
    unit: str


def check_loop(answer: Answer) -> tuple[State, list[Flag]]:
    """A loop at the end of the text, or of the last call's arguments where there is no text."""
    text = answer.text if answer.text.strip() or not answer.calls else answer.calls[-1].arguments
    loop = find_loop(text)
    if loop is None:
        return State.OK, []
    return State.BAD, [Flag("repetition_loop", "loop", f"{loop.turns} times {one_line(loop.unit, 60)!r}")]


def find_loop(text: str) -> Loop | None:
    """The loop in which `text` ends, if it does."""
    tail = text[-20_000:].rstrip(_CLOSERS)
    words = tail.split()[-_WORDS:]
    joined = " ".join(words)
    if len(joined) >= _MIN_SPAN_CHARS and zlib_ratio(joined) >= _MIN_ZLIB:
        turns, period = _periodic_end(words, _MAX_PERIOD_WORDS, _MIN_TURNS, _MIN_SPAN_WORDS)
        if turns and not set("".join(words[-period:])) <= _RULE:
            return Loop(turns, " ".join(words[-period:]))
    chars = re.sub(r"\s+", " ", tail)[-_CHARS:]
    if len(chars) >= _MIN_SPAN_CHARS and zlib_ratio(chars) >= _MIN_ZLIB:
        turns, period = _periodic_end(list(chars), _MAX_PERIOD_CHARS, _MIN_TURNS_CHARS, _MIN_SPAN_CHARS)
        if turns and not set(chars[-period:]) <= _RULE:
            return Loop(turns, chars[-period:])
    if len(joined) >= _ZLIB_ALONE_MIN_CHARS and zlib_ratio(joined) >= _ZLIB_ALONE:
        return Loop(round(zlib_ratio(joined)), " ".join(words[-8:]))
    return None


def zlib_ratio(text: str) -> float:
    """How many times smaller zlib makes the text; prose is near 2."""
    data = text.encode("utf-8", "surrogatepass")
    return len(data) / max(1, len(zlib.compress(data, 6)))


def _periodic_end(items: list[str], max_period: int, min_turns: int, min_span: int) -> tuple[int, int]:
    """(turns, period) of the shortest period in which the list ends; (0, 0) if it does not.

    A last turn may be cut short, so matches are counted backwards from the end.
    """
    n = len(items)
    for period in range(1, min(max_period, n // min_turns) + 1):
        matched = 0
        while matched + period < n and items[n - 1 - matched] == items[n - 1 - matched - period]:
            matched += 1
        span = matched + period
        if span >= min_span and span // period >= min_turns:
            return span // period, period
    return 0, 0
