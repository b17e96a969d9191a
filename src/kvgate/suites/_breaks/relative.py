"""An arm's answer against the base's: what broke, what was repaired, what only drifted.

A break is a check that the base passes and the arm fails. UNKNOWN on either side (an answer cut before the question
could be answered) is no evidence. Some classes exist only against the base: `truncated`, `script_switch`, and calls
where the file does not say which are right: there the base is the measure, and any change is a break. Soft drift is
described and never breaks anything by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from kvgate.suites._breaks.answer import Answer, Call
from kvgate.suites._breaks.calls import arguments_of, same_name
from kvgate.suites._breaks.content import numbers_in
from kvgate.suites._breaks.expect import Expect
from kvgate.suites._breaks.inspect import inspect
from kvgate.suites._breaks.scripts import switched, wrong_script
from kvgate.suites._breaks.taxonomy import Flag, Severity, State, in_order, one_line

#: One word, one character of a script without spaces, or one sign.
_WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")
_MAX_WORDS = 500  # difflib is quadratic
_LENGTH_RATIO = (0.5, 2.0)


@dataclass(frozen=True)
class Difference:
    """One arm's answer against one of the base's.

    Attributes:
        breaks, repairs: hard flags, by the order of the taxonomy. drift: soft flags.
        similarity: of the words, 0..1 (difflib ratio of at most 500). changed: text or calls differ at all.
        first_word: index of the first word that differs; None if none does.
    """

    breaks: tuple[Flag, ...]
    repairs: tuple[Flag, ...]
    drift: tuple[Flag, ...]
    similarity: float
    changed: bool
    first_word: int | None


def difference(base: Answer, arm: Answer, expect: Expect) -> Difference:
    """Compare two answers to one prompt."""
    seen_base, seen_arm = inspect(base, expect), inspect(arm, expect)
    breaks = _newly_bad(seen_base.states, seen_arm.states, seen_arm.flags)
    repairs = _newly_bad(seen_arm.states, seen_base.states, seen_base.flags)
    cut, uncut = _truncated(base, arm, expect), _truncated(arm, base, expect)
    breaks += [f for f in cut if f.severity is Severity.HARD]
    repairs += [f for f in uncut if f.severity is Severity.HARD]
    # Where the file says whether a call is due, only two calls can be held against each other here.
    if not expect.calls and (not expect.call or (base.calls and arm.calls)):
        breaks += _calls_against(base, arm)
    script = switched(base, arm, expect.prompt) if seen_base.states["alive"] is State.OK else ""
    if script:
        suspect = repairs if wrong_script(base, expect.prompt) and not wrong_script(arm, expect.prompt) else breaks
        suspect.append(Flag("script_switch", "script", script))
    words_b, words_a = _words(base), _words(arm)
    return Difference(
        in_order(breaks),
        in_order(repairs),
        in_order(_drift(base, arm) + [f for f in cut if f.severity is Severity.SOFT]),
        SequenceMatcher(None, words_b, words_a, autojunk=False).ratio(),
        answer_key(base) != answer_key(arm),
        _first_difference(words_b, words_a),
    )


def answer_key(answer: Answer) -> tuple[object, ...]:
    """What makes two answers bit-equal: text, calls without the ids that servers draw at random, how they ended."""
    return answer.text, answer.calls, answer.finish


def _newly_bad(before: Mapping[str, State], after: Mapping[str, State], flags: Sequence[Flag]) -> list[Flag]:
    checks = [c for c, s in after.items() if s is State.BAD and before.get(c) is State.OK]
    return [f for f in flags if f.check in checks and f.severity is Severity.HARD]


def _truncated(a: Answer, b: Answer, expect: Expect) -> list[Flag]:
    """b ran into the limit and a did not. At a limit that a preset lowered, that is only a longer answer: soft."""
    if b.finish != "length" or a.finish in ("length", None):
        return []
    limit = expect.lowered_limit
    at_ours = limit is not None and (b.tokens is None or b.tokens >= limit)
    detail = f"ran into the token limit{' of this preset' if at_ours else ''}; the other ended with {a.finish}"
    return [Flag("truncated", "finish", detail, Severity.SOFT if at_ours else Severity.HARD)]


def _calls_against(a: Answer, b: Answer) -> list[Flag]:
    """What is missing, too much or other in b's calls; a's are taken as right."""
    if a.calls and not b.calls:
        return [] if b.cut else [Flag("missing_call", "calls_made", f"{a.calls[0].name} was called")]
    if b.calls and not a.calls:
        return [] if a.cut else [Flag("spurious_call", "calls_made", f"{b.calls[0].name}")]
    if len(a.calls) != len(b.calls):
        return (
            [] if a.cut or b.cut else [Flag("wrong_count", "calls_made", f"{len(b.calls)} calls, not {len(a.calls)}")]
        )
    unlike = [(x, y) for x, y in zip(_by_name(a), _by_name(b), strict=True) if not same_name(x.name, y.name)]
    return [Flag("wrong_tool", "calls_made", f"{y.name}, not {x.name}") for x, y in unlike[:1]]


def _drift(base: Answer, arm: Answer) -> list[Flag]:
    """Soft differences: argument values, numbers, length."""
    soft = Severity.SOFT
    flags: list[Flag] = []
    if len(base.calls) == len(arm.calls):
        for x, y in zip(_by_name(base), _by_name(arm), strict=True):
            p, q = arguments_of(x), arguments_of(y)
            if p is not None and q is not None and p != q:
                keys = sorted(k for k in p.keys() | q.keys() if p.get(k) != q.get(k))
                flags.append(Flag("value_drift", "values", one_line(", ".join(keys)), soft))
    if set(numbers_in(base.visible)) != set(numbers_in(arm.visible)):
        flags.append(Flag("number_drift", "numbers", "other numbers", soft))
    if base.text and arm.text:
        ratio = len(arm.text) / len(base.text)
        if not _LENGTH_RATIO[0] <= ratio <= _LENGTH_RATIO[1]:
            flags.append(Flag("length_ratio", "length", f"{ratio:.2f} times as long", soft))
    return flags


def _words(answer: Answer) -> list[str]:
    calls = " ".join(f"{c.name} {c.arguments}" for c in answer.calls)
    return _WORD.findall(f"{answer.text[: 10 * _MAX_WORDS]} {calls[: 10 * _MAX_WORDS]}")[:_MAX_WORDS]


def _by_name(answer: Answer) -> list[Call]:
    return sorted(answer.calls, key=lambda c: (c.name, c.arguments))


def _first_difference(a: list[str], b: list[str]) -> int | None:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))
