"""Answers that want to break the checks: nothing raises, nothing recurses, nothing takes for ever."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.suites._breaks.answer import MAX_CHARS, Answer, Call
from kvgate.suites._breaks.expect import Expect, ExpectedCall
from kvgate.suites._breaks.inspect import inspect
from kvgate.suites._breaks.json_scan import scan
from kvgate.suites._breaks.relative import difference
from kvgate.suites._breaks.taxonomy import one_line

SCHEMA = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}}},
}
EVERYTHING = Expect(
    prompt="p",
    json=True,
    schema=SCHEMA,
    tools={"get": SCHEMA},
    call="required",
    calls=(ExpectedCall("get", {"a": [1]}),),
    code="python",
    numbers=("1",),
    contains=("x",),
)
HOSTILE = {
    "deep objects": '{"a":' * 50_000,
    "deep arrays, closed": "[" * 40_000 + "]" * 40_000,
    "deep in a fence": "```json\n" + "[" * 40_000,
    "deep Python": "```python\n" + "(" * 9_000 + ")" * 9_000 + "\n```",
    "Python unary": "```python\n" + "-" * 15_000 + "1\n```",
    "quotes": '{"a": "' + '\\"' * 60_000,
    "trailing commas": "{" + '"a": 1,' * 20_000 + "}",
    "integer of 5,000 digits": '{"a": ' + "9" * 5_000 + "}",
    "angle brackets": "<" * 100_000,
    "control tokens": "<|a|>" * 30_000,
    "tool tags": "<tool_call>" * 15_000,
    "fences": "```\n" * 40_000,
    "white space": " \n" * 90_000,
    "digits": "1," * 90_000,
    "lone surrogates": '{"\ud800": "\udfff"}' * 1_000,
    "every control character": "".join(map(chr, range(32))) * 100,
    "right to left and zero width": "\u202e\u200b\ufeff{}" * 5_000,
    "over the cap": "word " * (MAX_CHARS // 2),
    "think tags": "<think>" * 20_000 + "</think>" * 20_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_hostile_answers_are_flagged_not_raised(name: str, finish: str) -> None:
    """Every check answers; details stay short and printable."""
    body = {"text": HOSTILE[name], "tool_calls": [{"function": {"name": HOSTILE[name], "arguments": HOSTILE[name]}}]}
    answer = Answer.from_body({**body, "finish_reason": finish})

    flags = inspect(answer, EVERYTHING).flags

    assert flags
    assert all(len(f.detail) <= 400 and f.detail.isprintable() for f in flags)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_can_be_compared(name: str) -> None:
    """Against a good base, a hostile answer breaks something; against itself, nothing."""
    hostile = Answer(HOSTILE[name], (), "stop")

    assert difference(Answer('{"a": {}}', (), "stop"), hostile, EVERYTHING).breaks
    assert not difference(hostile, hostile, EVERYTHING).breaks


def test_nesting_is_refused_before_python_recurses() -> None:
    """Deep but closed JSON is invalid with a reason, not a RecursionError."""
    flags = inspect(Answer("[" * 500 + "]" * 500, (), "stop"), Expect(json=True)).flags

    assert ("invalid_json", "nested deeper than 100") in [(f.cls, f.detail) for f in flags]


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec=None), max_size=200), st.sampled_from(["stop", "length", None]))
def test_any_text_is_inspected(text: str, finish: str | None) -> None:
    """No text makes a check raise."""
    answer = Answer(text, (Call(text[:20], text),), finish)

    seen = inspect(answer, EVERYTHING)

    assert not difference(answer, answer, EVERYTHING).breaks
    assert set(seen.states) >= {"alive", "loop", "json_parses", "calls", "code"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4), st.sampled_from([None, 1]), st.booleans())
def test_every_prefix_of_json_is_a_prefix(value: object, indent: int | None, ascii_only: bool) -> None:
    """The scanner accepts what Python writes, ends where it ends, and never calls a cut value broken."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)

    assert scan(text).end == len(text)
    for n in range(len(text)):
        seen = scan(text[:n])
        assert seen.prefix
        assert seen.end is None


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet='{}[]",:0123.eE-+truefalsn \\\n', max_size=14))
def test_the_scanner_agrees_with_json_loads(text: str) -> None:
    """On short texts of JSON's own characters: whole values are those that json.loads takes."""
    try:
        json.loads(text, parse_constant=lambda _: 1 / 0)
        valid = True
    except (ValueError, ZeroDivisionError):
        valid = False

    seen = scan(text)

    assert (seen.end is not None and not text[seen.end :].strip(" \t\n\r")) is valid


@pytest.mark.parametrize(
    "text", ['{"a" 1', "[1 2", '{"a": tru,', "nul1", '{"a": 01', "[1,]", '{"a": "\x01', '"\\x', "-a", "{,"]
)
def test_what_no_more_text_can_save_is_no_prefix(text: str) -> None:
    """The scanner says no as soon as the text is beyond repair."""
    assert not scan(text).prefix


@given(st.text(st.characters(codec=None)))
def test_details_are_one_printable_line(text: str) -> None:
    """No control character, no line break, no lone surrogate reaches a report."""
    line = one_line(text)

    assert line.isprintable()
    line.encode("utf-8")
