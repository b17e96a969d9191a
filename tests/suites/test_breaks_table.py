"""The taxonomy on answers: what each class must catch, and the near misses that it must leave alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from kvgate.suites._breaks.answer import Answer, Call
from kvgate.suites._breaks.expect import Expect, ExpectedCall
from kvgate.suites._breaks.inspect import inspect
from kvgate.suites._breaks.taxonomy import State, public_class

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}, "days": {"type": "integer"}},
    "required": ["city"],
}
JSON = Expect(json=True, schema=PERSON)
ANY_JSON = Expect(json=True)
TOOLS = Expect(tools={"get_weather": WEATHER, "send.mail": {}}, call="required")
OSLO = Expect(
    tools={"get_weather": WEATHER, "send_mail": {}},
    call="required",
    calls=(ExpectedCall("get_weather", {"city": ["Oslo"]}),),
)
CODE = Expect(code="python")
PROSE = "The committee met on Tuesday and agreed to postpone the vote until the new figures are in. "


def said(text: str, *calls: tuple[str, str], finish: str = "stop") -> Answer:
    return Answer(text, tuple(Call(*c) for c in calls), finish)


def called(name: str, arguments: str, finish: str = "tool_calls") -> Answer:
    return said("", (name, arguments), finish=finish)


class Row(NamedTuple):
    answer: Answer
    cls: str  # first class, "" for a clean answer
    why: str
    expect: Expect = Expect()


ROWS = [
    # empty and NaN
    Row(said(""), "empty_output", "nothing at all"),
    Row(said(" \n\t"), "empty_output", "white space is nothing"),
    Row(called("get_weather", '{"city": "Oslo"}'), "", "a call without text is an answer", TOOLS),
    Row(said("!" * 40), "nan_output", "argmax over NaN gives one id for ever"),
    Row(said("??? ????? ??"), "nan_output", "the same with a space now and then"),
    Row(said("nan nan nan nan"), "nan_output", "numbers printed as nan"),
    Row(said("hello", finish="NaN happened"), "nan_output", "the server says so"),
    Row(said("Really?!?!"), "", "a few marks after a word are a mood"),
    Row(said("!!!"), "", "three marks are too few to call"),
    Row(said("My nan made nan bread, and nan loved it."), "", "the word itself, in a sentence"),
    # loops
    Row(said(PROSE + "and then we waited " * 12), "repetition_loop", "the end goes round in circles"),
    Row(said("I see. " + "the cat sat on the mat and " * 9 + "the cat"), "repetition_loop", "the last turn may be cut"),
    Row(said("ha" * 60), "repetition_loop", "one endless word"),
    Row(said("私は学生です。" * 12), "repetition_loop", "a script without spaces"),
    Row(said("-1" * 40), "repetition_loop", "digits"),
    Row(said("No, no, no, no!"), "", "four turns, but short"),
    Row(said("Intro\n" + "-" * 79), "", "a ruled line is drawn"),
    Row(said("| a | b |\n" + "|---|---|\n" * 8), "", "an empty table is drawn"),
    Row(said("and then we waited " * 12 + PROSE), "", "a refrain that ends is no loop"),
    Row(said("".join(f"{i}. Water the plant in room {i}.\n" for i in range(1, 30))), "", "a list with running numbers"),
    Row(said(PROSE * 3), "", "three turns of a long sentence are too few"),
    # protocol
    Row(said("<think>First I"), "unclosed_think", "opened and never closed"),
    Row(said("<think>First I", finish="length"), "", "cut before it could be closed"),
    Row(said("<think>a</think>Done."), "", "closed"),
    Row(said("a</think>Done."), "", "the template has opened it"),
    Row(said("In HTML there is no <think> tag."), "", "spoken of, not opened"),
    Row(said("Sure.<|im_end|>"), "control_tokens", "an end token in the content"),
    Row(said("<|start_header_id|>user"), "control_tokens", "a role header"),
    Row(said("Fine.</s>"), "control_tokens", "the end token of another family"),
    Row(said("caf<0xC3><0xA9>"), "control_tokens", "byte tokens that were not decoded"),
    Row(said("<s>old price</s> 12 euros"), "", "HTML for struck-out text"),
    Row(said("a <| b and c |> d"), "", "operators with blanks on the outside"),
    Row(said("It prints <|im_end|>."), "", "the prompt speaks of it", Expect(prompt="What does <|im_end|> do?")),
    Row(said('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'), "tool_markup", "a call left in the content"),
    Row(said('[TOOL_CALLS][{"name": "f"}]'), "tool_markup", "the mark of another family"),
    Row(said("Use a tool call here."), "", "the words alone"),
    # characters
    Row(said("caf\ufffd au lait"), "mojibake", "a replacement character in the middle"),
    Row(said("日本\ufffd", finish="length"), "", "the limit fell inside a character"),
    Row(said("日本\ufffd"), "mojibake", "it ended by itself"),
    Row(said("cafÃ© dÃ©jÃ\xa0 vu"), "mojibake", "UTF-8 read as Latin-1"),
    Row(said("itâ€™s heâ€™s"), "mojibake", "UTF-8 read as Windows-1252"),
    Row(said("São Paulo, Ângela, Ñandú, café"), "", "real accents"),
    Row(said("a\x00b"), "mojibake", "a control character"),
    Row(said("a\ud800b"), "mojibake", "half of a surrogate pair"),
    Row(said("a\tb\r\nc"), "", "tabs and line ends are text"),
    # JSON
    Row(said('{"name": "Ann", "age": 3}'), "", "exactly what was asked for", JSON),
    Row(said(' \n{"name": "Ann", "age": 3}\n'), "", "white space around it", JSON),
    Row(said('<think>{"x"</think>{"name": "Ann", "age": 3}'), "", "after a think block", JSON),
    Row(said("I think Ann is three."), "invalid_json", "prose", JSON),
    Row(said('{"name": "Ann", "age": 3'), "repaired_json", "a bracket is missing", JSON),
    Row(said('{"name": "Ann", "age": }'), "invalid_json", "a value is missing", JSON),
    Row(said('```json\n{"name": "Ann", "age": 3}\n```'), "repaired_json", "a code fence around it", JSON),
    Row(said('Here: {"name": "Ann", "age": 3}'), "repaired_json", "prose before it", JSON),
    Row(said('{"name": "Ann", "age": 3,}'), "repaired_json", "a trailing comma", JSON),
    Row(said("{'name': 'Ann', 'age': 3}"), "repaired_json", "Python quotes", JSON),
    Row(said('{"name": "An\nn", "age": 3}'), "repaired_json", "a line break inside a string", JSON),
    Row(said('{"name": "Ann, ]", "age": 3}'), "", "comma and bracket inside a string", JSON),
    Row(said('{"name": "Ann", "age": 3}\nHope that helps!'), "extra_data", "text after it", JSON),
    Row(said('{"name": "Ann", "age": 3}\n{"name": "Bo", "age": 4}'), "extra_data", "two values", JSON),
    Row(said('{"name": "Ann"}'), "schema_violation", "a key is missing", JSON),
    Row(said('{"name": "Ann", "age": "3"}'), "schema_violation", "a number as text", JSON),
    Row(said('{"name": "Ann", "age": 3, "x": 1}'), "schema_violation", "a key too much", JSON),
    Row(said('{"a": NaN}'), "repaired_json", "NaN is not JSON", ANY_JSON),
    Row(said("42 apples"), "invalid_json", "starts like a number, but is prose", ANY_JSON),
    Row(said('{"name": "Ann", "a', finish="length"), "", "cut, and fine so far", JSON),
    Row(said('{"name": "Ann", age', finish="length"), "invalid_json", "cut, but no JSON already", JSON),
    Row(said('```json\n{"name": "An', finish="length"), "repaired_json", "cut, and fenced already", JSON),
    Row(said("Sure! Here is the", finish="length"), "invalid_json", "cut, and prose instead of JSON", JSON),
    Row(said('{"name": "Ann"}', finish="length"), "schema_violation", "cut after a whole value", JSON),
    # tool calls
    Row(said("It is sunny in Oslo."), "missing_call", "talks instead of calling", TOOLS),
    Row(said("Let me look th", finish="length"), "", "cut before it could call", TOOLS),
    Row(
        called("get_weather", '{"city": "Oslo"}'),
        "spurious_call",
        "none was due",
        Expect(tools={"get_weather": {}}, call="forbidden"),
    ),
    Row(called("get_climate", "{}"), "unknown_tool", "there is no such tool", TOOLS),
    Row(called("send_mail", "{}"), "", "dots and underscores are spelled at will", TOOLS),
    Row(called("get_weather", '{"city": "Oslo"'), "args_not_json", "a brace is missing", TOOLS),
    Row(called("get_weather", '["Oslo"]'), "args_not_json", "arguments are an object", TOOLS),
    Row(called("get_weather", '{"city": "Os', finish="length"), "", "cut inside the arguments", TOOLS),
    Row(called("get_weather", '{"unit": "c"}'), "missing_required", "no city", TOOLS),
    Row(
        called("get_weather", '{"city": "Oslo", "day": 1}'),
        "unexpected_arg",
        "an argument that the tool has not",
        TOOLS,
    ),
    Row(called("get_weather", '{"city": "Oslo", "days": "1"}'), "type_mismatch", "text for a number", TOOLS),
    Row(called("get_weather", '{"city": "Oslo", "days": 1.0}'), "", "1.0 is an integer in JSON Schema", TOOLS),
    Row(called("get_weather", '{"city": "Oslo", "unit": "k"}'), "enum_violation", "not one of the values", TOOLS),
    Row(called("get_weather", '{"city": " oslo "}'), "", "case and blanks do not change a city", OSLO),
    Row(called("get_weather", '{"city": "Rome"}'), "value_drift", "another city", OSLO),
    Row(called("send_mail", "{}"), "wrong_tool", "a tool that exists, but not the right one", OSLO),
    Row(
        said("", ("get_weather", '{"city": "Oslo"}'), ("get_weather", '{"city": "Rome"}')),
        "wrong_count",
        "one too many",
        OSLO,
    ),
    # content
    Row(said("```python\ndef f(x):\n    return x\n```"), "", "parses", CODE),
    Row(said("```python\ndef f(x:\n    return x\n```"), "code_unparsable", "a bracket is missing", CODE),
    Row(said("Sorry, no code today, only words."), "code_unparsable", "prose does not parse", CODE),
    Row(said("```\nprint(1)\n```\nText that is no code."), "", "text after the block", CODE),
    Row(said("```python\ndef f(x", finish="length"), "", "cut inside the block", CODE),
    Row(
        said("```python\nx = (\n```\nand so", finish="length"),
        "code_unparsable",
        "the block had ended before the cut",
        CODE,
    ),
    Row(said("That makes 1,234.50 euros."), "", "thousands separator", Expect(numbers=("1234.5",))),
    Row(said("Das macht 1.234,50 Euro."), "", "the German spelling", Expect(numbers=("1234.5",))),
    Row(said("It is 60."), "", "a full stop after the number", Expect(numbers=("60",))),
    Row(said("It is 61."), "number_drift", "another number", Expect(numbers=("60",))),
    Row(said("It is 160."), "number_drift", "60 is inside, but not the number", Expect(numbers=("60",))),
    Row(said("Let me see, 12 times", finish="length"), "", "cut before the result", Expect(numbers=("60",))),
    Row(said("Invoice  INV-7\nis paid"), "", "case and white space are free", Expect(contains=("invoice inv-7",))),
    Row(said("Invoice INV-8"), "missing_text", "not the text asked for", Expect(contains=("INV-7",))),
    Row(said("I'm sorry, but I can't help with that."), "refusal_flip", "a refusal"),
    Row(said("I’m sorry, but I cannot assist."), "refusal_flip", "with a curly apostrophe"),
    Row(said("申し訳ありませんが、お答えできません。"), "refusal_flip", "in Japanese"),
    Row(said("I'm sorry to hear that your parcel is late. It will come tomorrow."), "", "polite, and helpful"),
    Row(said("You can't mix the two."), "", "about the matter, not a refusal"),
    Row(said("Water boils at 100 C."), "refusal_flip", "answers where a refusal was due", Expect(refuse=True)),
    Row(said("I can't help with that."), "", "the refusal that was due", Expect(refuse=True)),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{r.cls or 'clean'}: {r.why}" for r in ROWS])
def test_first_class_of_an_answer(row: Row) -> None:
    """Each class catches its answers, and its near misses stay clean."""
    seen = inspect(row.answer, row.expect)

    assert (public_class(seen.flags[0].cls) if seen.flags else "") == row.cls, seen.flags


def test_extra_data_in_a_tool_tag_is_named_before_the_markup() -> None:
    """Two calls in one tag: a structural break of type extra_data, both flags kept, nothing raised (case parse-39)."""
    text = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n'
        '{"name": "get_time", "arguments": {"tz": "CET"}}\n</tool_call>'
    )

    flags = inspect(said(text), Expect()).flags

    assert [public_class(f.cls) for f in flags] == ["extra_data", "tool_markup"]
    assert flags[0].detail.startswith("2 JSON values")


def test_streamed_arguments_without_the_last_brace_are_not_json() -> None:
    """What a stream parser loses is a break when it is looked at, and the whole text is none (case parse-40)."""
    expect = Expect(tools={"get": {"type": "object", "properties": {"id": {"type": "integer"}}}}, call="required")

    assert inspect(called("get", '{"id": 42'), expect).flags[0].cls == "args_not_json"
    assert inspect(called("get", '{"id": 42}'), expect).flags == ()


def test_all_flags_are_kept_in_the_order_of_the_taxonomy() -> None:
    """A looping, fenced answer that misses a key has three flags; the worst comes first."""
    text = '```json\n{"name": "' + "spam " * 60 + '"}'

    flags = inspect(said(text), JSON).flags

    assert [f.cls for f in flags] == ["repetition_loop", "repaired_json", "schema_violation"]


def test_a_schema_violation_names_its_path() -> None:
    """The detail is the JSON path of the outermost violation."""
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "integer"}}}}

    flag = inspect(said('{"items": [1, "two"]}'), Expect(json=True, schema=schema)).flags[0]

    assert flag.detail.startswith("$.items[1]: 'two' is not of type")


def test_checks_of_a_cut_answer_are_unknown_not_ok() -> None:
    """A valid prefix says that it parses so far, and nothing about strictness or schema."""
    states = inspect(said('{"name": "Ann", "a', finish="length"), JSON).states

    assert (states["json_parses"], states["json_strict"], states["json_schema"]) == (
        State.OK,
        State.UNKNOWN,
        State.UNKNOWN,
    )


@pytest.mark.parametrize(
    "body", [None, {}, {"text": 5, "tool_calls": "x", "finish_reason": 7}, {"tool_calls": [None, {"function": 3}, 4]}]
)
def test_bodies_of_a_wrong_shape_are_answers_without_content(body: Any) -> None:
    """Nothing in a body is trusted; what is of a wrong type is empty."""
    answer = Answer.from_body(body)

    assert answer.text == ""
    assert inspect(answer, TOOLS).flags


def test_arguments_as_an_object_are_read_like_text() -> None:
    """Some servers return the arguments as an object instead of as text."""
    answer = Answer.from_body({"tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}]})

    assert inspect(answer, OSLO).flags == ()
