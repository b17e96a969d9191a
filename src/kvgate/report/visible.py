"""Text that others wrote, made safe to look at. Escaping for HTML, Markdown or XML comes after this, not instead.

A model's answer can hold terminal escapes, NULs, direction overrides that make `abc` read `cba`, invisible characters
and half a surrogate pair that no UTF-8 file can hold. All of these become printable, so a reader sees that they are
there and nothing else on the page moves.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

#: Joiners that scripts and emoji need; every other format character (category Cf) is made visible.
_KEPT_FORMAT = {"\u200c", "\u200d"}
#: Cheap first look: what may be of such a category. `_shown` decides.
_SUSPECT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u0600-\U0010ffff]")
#: Names that readers of logs know; the rest is shown by number.
_NAMES = {0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0C: "FF", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL"}
_MARKS = r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]"
_STACKED_MARKS = re.compile(f"({_MARKS}{{8}}){_MARKS}+")


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if code in _NAMES:
        return f"‹{_NAMES[code]}›"
    category = unicodedata.category(char)
    nonchar = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    if nonchar or (category in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in _KEPT_FORMAT):
        return f"‹U+{code:04X}›"
    return char


def visible(text: str) -> str:
    """`text` with every control, format and surrogate character replaced by a printable sign.

    Newline and tab stay. The rest reads like ‹ESC› or ‹U+202E›. Runs of stacked combining marks are cut at eight, so
    that they do not paint over the lines above.
    """
    return _STACKED_MARKS.sub("\\1‹marks cut›", _SUSPECT.sub(_shown, text.replace("\r\n", "\n")))


def bounded(text: str, limit: int = 10_000) -> str:
    """`text`, cut at `limit` characters with a note that says how many are gone."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text) - limit:,} more characters are not shown)"


def one_line(text: str, limit: int = 400) -> str:
    """`text` in one visible line of at most `limit` characters."""
    line = " ".join(visible(text[: 4 * limit]).split())
    return line if len(line) <= limit and len(text) <= 4 * limit else line[: limit - 1] + "\u2026"


class Excerpt(NamedTuple):
    """The part of a text that is shown; `before` and `after` count the characters that are not."""

    text: str
    before: int
    after: int


def excerpt(text: str, around: int, limit: int) -> Excerpt:
    """At most `limit` characters of `text`, a quarter of them before position `around`; already visible."""
    if len(text) <= limit:
        return Excerpt(visible(text), 0, 0)
    start = max(0, min(around - limit // 4, len(text) - limit))
    return Excerpt(visible(text[start : start + limit]), start, len(text) - start - limit)


def first_difference(a: str, b: str) -> int:
    """Index of the first character at which two texts differ; the shorter length if one is a prefix of the other."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # bisection on equal prefixes: slices compare in C, a 2 MB answer costs milliseconds
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
