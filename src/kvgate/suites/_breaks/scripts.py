"""Broken characters, and an answer that changes its writing system."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.taxonomy import Flag, State

_CHARS = 20_000
#: UTF-8 that was read as Latin-1 or Windows-1252: "Ã©", "â€™", "Ð¿".
_TWICE = re.compile(
    "[\u00c2\u00c3\u00d0\u00d1][\u0080-\u00bf\u0152-\u017e\u2013-\u2122]|â[\u0080-\u009f€][\u0080-\u00bf\u2018-\u2122]"
)
_MIN_TWICE = 2  # one can be a person's name; a mis-decoded text has many
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
#: Names and loan words move a mixed text by a few tenths; a switched language by nearly 1.
_SWITCH = 0.5
_MIN_LETTERS = 8
_INTRUDER = 0.05
_INTRUDER_LETTERS = 4
#: Latin (loan words, "API") and Greek (formulas) turn up in any language; these do not.
_INTRUDERS = frozenset(
    {"CJK", "HANGUL", "CYRILLIC", "ARABIC", "HEBREW", "DEVANAGARI", "BENGALI", "GUJARATI", "GURMUKHI", "TAMIL"}
    | {"TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "GEORGIAN"}
    | {"ARMENIAN", "ETHIOPIC"}
)
_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO"})


def check_encoding(answer: Answer, prompt: str) -> tuple[State, list[Flag]]:
    """U+FFFD, control characters, lone surrogates, text decoded twice."""
    text = answer.text[:_CHARS]
    if answer.cut:
        # The limit can fall inside a character of several tokens; the last one then is U+FFFD.
        text = text.rstrip("\ufffd")
    bad = [c for c in text if c == "\ufffd" and c not in prompt]
    if bad:
        return State.BAD, [Flag("mojibake", "encoding", f"{len(bad)} replacement characters U+FFFD")]
    control = [c for c in _CONTROL.findall(text) if c not in prompt]
    if control:
        codes = ", ".join(sorted({f"U+{ord(c):04X}" for c in control})[:5])
        return State.BAD, [Flag("mojibake", "encoding", f"{len(control)} control characters or surrogates ({codes})")]
    twice = [t for t in _TWICE.findall(text) if t not in prompt]
    if len(twice) >= _MIN_TWICE:
        return State.BAD, [Flag("mojibake", "encoding", f"{len(twice)} sequences of text decoded twice")]
    return State.OK, []


def script_histogram(text: str) -> Counter[str]:
    """Letters per writing system, named by the first word of their Unicode names; Han and Kana are one."""
    scripts: Counter[str] = Counter()
    for char in text[:_CHARS]:
        if char.isalpha():
            name = unicodedata.name(char, "UNNAMED").split(" ", 1)[0]
            scripts["CJK" if name in _EAST_ASIAN else name] += 1
    return scripts


def switched(base: Answer, arm: Answer, prompt: str) -> str:
    """How the arm's script differs from the base's, in words; "" if it does not.

    Either the distributions are further apart than half (total variation), or a script comes in that neither the
    base nor the prompt has.
    """
    b, a = script_histogram(base.text), script_histogram(arm.text)
    n_b, n_a = sum(b.values()), sum(a.values())
    if n_b >= _MIN_LETTERS and n_a >= _MIN_LETTERS:
        distance = sum(abs(b[s] / n_b - a[s] / n_a) for s in b | a) / 2
        if distance > _SWITCH:
            return f"{b.most_common(1)[0][0]} -> {a.most_common(1)[0][0]} ({distance:.0%} of letters)"
    known = set(b) | set(script_histogram(prompt))
    for script, count in a.most_common():
        if script in _INTRUDERS - known and count >= _INTRUDER_LETTERS and count / n_a >= _INTRUDER:
            return f"{count} letters of {script}, which neither base nor prompt uses"
    return ""


def wrong_script(answer: Answer, prompt: str) -> bool:
    """The answer's main script does not occur in the prompt: of two answers that differ, this one is suspect."""
    own = script_histogram(answer.text).most_common(1)
    return bool(own) and own[0][0] not in script_histogram(prompt)
