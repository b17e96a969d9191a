"""Versions of engines as people write them, and whether a version has been read about.

"0.32.0+cpu", "v0.10.2rc1" and "0.32" are releases; "b11549" and the wheel's "2026.10.11549" are llama.cpp builds. A
release candidate counts as its release, since nobody reads each candidate's source.
"""

from __future__ import annotations

import re
from enum import Enum

from kvgate.core.errors import UserError

_RELEASE = re.compile(r"[vb]?(\d{1,9}(?:\.\d{1,9}){0,4})(?:$|[^0-9.].*)", re.DOTALL)
_OLD_WHEEL = (0, 2, 14)
#: Wheels up to 0.2.14 name no build; all of them are from before rotation, so at most this build, still without it.
_OLD_WHEEL_BUILD = 8612
Key = tuple[int, ...]


class Holds(Enum):
    """Whether a row holds for a version."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def version_of(text: str, engine: str) -> Key:
    """The numbers that rows compare with; for llama.cpp the one build number.

    Raises:
        UserError: the text is no version.
    """
    match = _RELEASE.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"{text.strip()[:40]!r} is no version of {engine}",
            allowed=("b11549", "2026.10.11549") if engine == "llama_cpp" else ("0.32.0", "v0.32.0"),
        )
    key = tuple(int(n) for n in match[1].split("."))
    if engine != "llama_cpp":
        return key
    if len(key) == 1:
        return key
    if len(key) == 3 and key[0] >= 2000:
        return key[2:]
    if key <= _OLD_WHEEL:
        return (_OLD_WHEEL_BUILD,)
    raise UserError(f"{text.strip()[:40]!r} names no build of llama.cpp", allowed=("b11549", "2026.10.11549"))


def holds(version: Key | None, since: str, until: str, engine: str) -> Holds:
    """Whether a row of `since` (inside) and `until` (outside) holds; UNKNOWN without a version and with a bound."""
    if not since and not until:
        return Holds.YES
    if version is None:
        return Holds.UNKNOWN
    if since and _padded(version) < _padded(version_of(since, engine)):
        return Holds.NO
    if until and _padded(version) >= _padded(version_of(until, engine)):
        return Holds.NO
    return Holds.YES


def range_words(since: str, until: str) -> str:
    """The range for a person: "0.21.0 and later"."""
    if since and until:
        return f"{since} to before {until}"
    if since:
        return f"{since} and later"
    return f"before {until}" if until else "all versions read"


def _padded(key: Key) -> Key:
    """0.32 and 0.32.0 are one version."""
    return (*key, 0, 0, 0, 0, 0)[:5]
