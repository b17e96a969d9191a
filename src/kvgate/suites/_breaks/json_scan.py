"""A JSON scanner that knows prefixes: is this text the start of a JSON value, where does the value end, how deep is it?

Needed because an answer cut at the token limit is not invalid, only unfinished; and because `json.loads` recurses,
so that hostile nesting has to be seen before it is called. RFC 8259; no recursion, one pass.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_STRING_START = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_START = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?\Z")
_WORDS = ("true", "false", "null")


class Scan(NamedTuple):
    """What a scan saw.

    Attributes:
        end: index just after the first complete value; None if there is none.
        prefix: the text is a value, or could still become one by adding text.
        depth: deepest nesting of arrays and objects.
        at: where the text stops being JSON (its length if it does not).
        missing: brackets that would close an unfinished value, in order.
    """

    end: int | None
    prefix: bool
    depth: int
    at: int
    missing: str = ""


def scan(text: str, start: int = 0) -> Scan:
    """Scan one JSON value from `start`; leading whitespace is allowed, nothing is built."""
    i, depth = start, 0
    stack: list[str] = []  # closing brackets still owed
    want = "value"  # value | first (value or close) | key | firstkey (key or close) | colon | next (comma or close)

    def stop(prefix: bool) -> Scan:
        return Scan(None, prefix, depth, len(text) if prefix else i, "".join(reversed(stack)))

    while True:
        i = _skip(text, i)
        if i >= len(text):
            return stop(True)
        c = text[i]
        if want in ("first", "firstkey", "next") and c == stack[-1]:
            stack.pop()
            i += 1
        elif want == "next":
            if c != ",":
                return stop(False)
            i, want = i + 1, "key" if stack[-1] == "}" else "value"
            continue
        elif want == "colon":
            if c != ":":
                return stop(False)
            i, want = i + 1, "value"
            continue
        elif want in ("key", "firstkey"):
            end = _string(text, i)
            if end is None:
                return stop(_STRING_START.match(text, i) is not None)
            i, want = end, "colon"
            continue
        elif c in "{[":
            stack.append("}" if c == "{" else "]")
            depth = max(depth, len(stack))
            i, want = i + 1, "firstkey" if c == "{" else "first"
            continue
        else:
            end = _scalar(text, i)
            if end is None or (end < len(text) and _number_goes_on(text, i)):
                return stop(_scalar_prefix(text, i))
            if end == len(text) and stack:
                return stop(True)  # "12" at the end may go on as "123"
            i = end
        if not stack:
            return Scan(i, True, depth, i)
        want = "next"


def count_values(text: str, limit: int = 20) -> int:
    """How many JSON objects and arrays stand one after the other from the start of `text`."""
    n, i = 0, 0
    while n < limit:
        i = _skip(text, i)
        if i >= len(text) or text[i] not in "{[":
            break
        end = scan(text, i).end
        if end is None:
            break
        n, i = n + 1, end
    return n


def _skip(text: str, i: int) -> int:
    m = _SPACE.match(text, i)
    return m.end() if m else i


def _string(text: str, i: int) -> int | None:
    m = _STRING.match(text, i)
    return m.end() if m else None


def _scalar(text: str, i: int) -> int | None:
    if text[i] == '"':
        return _string(text, i)
    for word in _WORDS:
        if text.startswith(word, i):
            return i + len(word)
    m = _NUMBER.match(text, i)
    return m.end() if m else None


def _number_goes_on(text: str, i: int) -> bool:
    """A number cut behind its point or its exponent's mark: "0." and "1e-" are no numbers yet."""
    return text[i] in "-0123456789" and _NUMBER_START.match(text, i) is not None


def _scalar_prefix(text: str, i: int) -> bool:
    rest = text[i : i + 8]
    if text[i] == '"':
        return _STRING_START.match(text, i) is not None
    return any(w.startswith(rest) for w in _WORDS) or _NUMBER_START.match(text, i) is not None
