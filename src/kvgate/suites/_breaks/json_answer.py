"""Is the answer JSON, and how bad is it if not?  invalid -> repaired -> extra data -> ok.

Three questions, each stricter than the one before: can a lenient reader get a value out of it (`json_parses`), is it
exactly one JSON value and nothing else (`json_strict`), does it conform (`json_schema`, in schema.py)?

An answer cut at the token limit is judged by its prefix: if it could still become one JSON value, it parses as far as
it goes and the other two questions are UNKNOWN; if it starts with prose, it is already not strict.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.json_scan import Scan, count_values, scan
from kvgate.suites._breaks.taxonomy import Flag, State, one_line

#: Deeper nesting than any schema asks for; json.loads and jsonschema recurse.
MAX_DEPTH = 100
_REPAIR_CHARS = 50_000
#: Digits after which an integer is read as a float: Python refuses to parse integers of over 4,300.
_MAX_INT_CHARS = 400
_FENCE = re.compile(r"\A\s*```[a-zA-Z0-9_-]*[ \t]*\r?\n?(.*?)(?:\r?\n?```|\Z)", re.DOTALL)
#: A string (always matched to its end or the text's, so that the pass is linear), or a comma before a bracket.
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)


class JsonReading(NamedTuple):
    """States and flags of the first two questions; `value` where `parsed`."""

    parses: State
    strict: State
    flags: list[Flag]
    parsed: bool = False
    value: Any = None


def read_json_answer(answer: Answer) -> JsonReading:
    """Read an answer that has to be JSON. An object or an array is asked for; a bare scalar must stand alone."""
    text = answer.visible.strip().removeprefix("\ufeff")
    first = scan(text)
    if first.depth > MAX_DEPTH:
        return _invalid(f"nested deeper than {MAX_DEPTH}")
    structured = text[:1] in ("{", "[")
    if first.end is not None and (structured or first.end == len(text)):
        return _complete(text, first.end)
    if answer.cut and first.prefix:
        return JsonReading(State.OK, State.UNKNOWN, [])
    if answer.cut:
        return _cut(text)
    how, value = _repair(text, first)
    if how:
        return JsonReading(State.OK, State.BAD, [Flag("repaired_json", "json_strict", how)], True, value)
    return _invalid(f"not JSON at character {first.at}: {one_line(text[first.at : first.at + 40])!r}")


def loads(text: str) -> Any:
    """Strict JSON, without Python's NaN and Infinity, and safe against integers of many digits.

    Raises:
        ValueError: not JSON.
    """
    try:
        return json.loads(text, parse_int=_int, parse_constant=_no_constant)
    except RecursionError as e:
        raise ValueError("nested too deep") from e


def _complete(text: str, end: int) -> JsonReading:
    value, rest = loads(text[:end]), text[end:].strip()
    if not rest:
        return JsonReading(State.OK, State.OK, [], True, value)
    more = count_values(rest)
    what = f"{1 + more} JSON values" if more else "text"
    detail = f"{what} where one value was asked for: {one_line(rest[:40])!r} after character {end}"
    return JsonReading(State.OK, State.BAD, [Flag("extra_data", "json_strict", detail)], True, value)


def _cut(text: str) -> JsonReading:
    """The unfinished text is no JSON prefix as it stands: prose or a fence came first, or it is broken."""
    inner = _candidate(text)
    if inner is None:
        flag = Flag("invalid_json", "json_strict", f"prose instead of JSON: {one_line(text[:40])!r} (cut)")
        return JsonReading(State.UNKNOWN, State.BAD, [flag])
    seen = scan(inner)
    if seen.end is not None and seen.depth <= MAX_DEPTH:
        flag = Flag("repaired_json", "json_strict", "text around the JSON")
        return JsonReading(State.OK, State.BAD, [flag], True, loads(inner[: seen.end]))
    if seen.prefix:
        return JsonReading(State.OK, State.BAD, [Flag("repaired_json", "json_strict", "text before the JSON (cut)")])
    return _invalid(f"not JSON at character {seen.at} of {one_line(inner[:40])!r} (cut)")


def _invalid(detail: str) -> JsonReading:
    return JsonReading(State.BAD, State.BAD, [Flag("invalid_json", "json_parses", detail)])


def _candidate(text: str) -> str | None:
    """The part that may be JSON: inside the first fence, else from the first bracket on."""
    fenced = _FENCE.match(text)
    inner = fenced.group(1) if fenced else text
    starts = [i for i in (inner.find("{"), inner.find("[")) if i >= 0]
    return inner[min(starts) :] if starts else None


def _repair(text: str, first: Scan) -> tuple[str, Any]:
    """(what was repaired, value), or ("", None). Each step is what lenient readers in the field do."""
    inner = _candidate(text[:_REPAIR_CHARS])
    if inner is None:
        return "", None
    seen = scan(inner)
    if seen.depth > MAX_DEPTH:
        return "", None
    body = inner[: seen.end] if seen.end is not None else inner[: inner.rfind("}" if inner[0] == "{" else "]") + 1]
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("text or a code fence around the JSON", lambda: loads(body)),
        ("trailing comma", lambda: loads(_TRAILING_COMMA.sub(lambda m: m.group(1) or "", body))),
        ("line break inside a string, or NaN", lambda: json.loads(body, strict=False, parse_int=_int)),
        ("Python literal instead of JSON", lambda: _python_literal(body)),
        ("closing brackets missing", lambda: loads(inner.rstrip() + seen.missing) if seen.prefix else _fail()),
    ]
    for how, attempt in steps:
        try:
            value = attempt()
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        if isinstance(value, dict | list):
            return how, value
    return "", None


def _python_literal(body: str) -> Any:
    # Round trip, so that sets, bytes and complex numbers do not reach the schema check.
    return json.loads(json.dumps(ast.literal_eval(body)), parse_int=_int)


def _fail() -> Any:
    raise ValueError("not a prefix")


def _int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_INT_CHARS else float(digits)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
