"""Was the code found? Exact match of seven digits; an answer with two different codes found neither."""

from __future__ import annotations

import re

from kvgate.core.observation import Case, Raw
from kvgate.suites._breaks.answer import Answer

#: Seven digits that are no part of a longer number; thousands separators are a spelling, not another code.
_CODE = re.compile(r"(?<![\d.])(?:\d{7}|\d,\d{3},\d{3})(?!\d)")


def codes_in(text: str) -> list[str]:
    """Distinct codes in the order they appear."""
    return list(dict.fromkeys(found.replace(",", "") for found in _CODE.findall(text)))


def value_of(case: Case, raw: Raw) -> float | None:
    """1 if the answer holds the right code and no other, else 0; None without an answer."""
    if raw.error or raw.body is None:
        return None
    return float(codes_in(Answer.from_body(raw.body).visible) == [case.body["code"]])


def flags_of(case: Case, raw: Raw) -> tuple[str, ...]:
    """Why an answer scores 0."""
    found = codes_in(Answer.from_body(raw.body).visible)
    if found == [case.body["code"]]:
        return ()
    if not found:
        return ("no_code",)
    return ("several_codes" if len(found) > 1 else "wrong_code",)
