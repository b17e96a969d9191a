"""Is there an answer at all? Empty output, and the residue of a forward pass full of NaN."""

from __future__ import annotations

import re

from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.taxonomy import Flag, State, one_line

#: With NaN logits, argmax returns a fixed id; in the tokenizers of today's models ids 0 and 30 are "!" and "?".
_NAN_CHARS = frozenset("!?")
#: A question or a shout ends in a few of them; eight and nothing else is no answer.
_NAN_MIN_CHARS = 8
_NAN_WORDS = re.compile(r"\s*(?:nan\W*){3,}", re.IGNORECASE)


def check_alive(answer: Answer) -> tuple[State, list[Flag]]:
    """Empty (no text, no call) or NaN. Whitespace is empty."""
    if answer.finish and "nan" in answer.finish.lower():
        return State.BAD, [Flag("nan_output", "alive", one_line(f"finish_reason {answer.finish}"))]
    text = answer.text.strip()
    if not text and not answer.calls:
        return State.BAD, [Flag("empty_output", "alive", one_line(f"finish_reason {answer.finish}"))]
    solid = "".join(text.split())
    if len(solid) >= _NAN_MIN_CHARS and len(set(solid)) == 1 and solid[0] in _NAN_CHARS:
        return State.BAD, [Flag("nan_output", "alive", f"{len(solid)} times {solid[0]!r} and nothing else")]
    words = _NAN_WORDS.match(text)
    if words and words.end() == len(text):
        return State.BAD, [Flag("nan_output", "alive", one_line(text, 40))]
    return State.OK, []
