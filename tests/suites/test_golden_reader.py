"""The golden file: what is accepted, and one line with file and line number for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.suites._golden.format import Prompt
from kvgate.suites._golden.reader import MAX_LINE_BYTES, parse_prompts, read_prompts

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}


def line(**fields: Any) -> str:
    return json.dumps({"id": "a", "messages": [USER], **fields})


GOOD = line(id="good")
BAD_LINES: list[tuple[str, str, str]] = [
    ("{", "not JSON", "cut"),
    ("hello", "not JSON", "prose"),
    ("[1]", "not an object", "a list"),
    ("null", "not an object", "null"),
    ('{"id": "a", "messages": [{"role": "user", "content": "x"}], "max_tokens": NaN}', "not JSON", "NaN"),
    ("[" * 100_000, "nested too deep", "a bomb"),
    (line(x=1), "x: Extra inputs are not permitted", "an unknown key"),
    ('{"id": "a"}', "messages: Field required", "no messages"),
    (line(messages=[]), "messages: ", "empty messages"),
    (line(messages="Hi"), "messages: ", "text instead of messages"),
    (
        line(messages=[{"role": "robot", "content": "Hi"}]),
        "messages.0.role: Input should be 'system'",
        "an unknown role",
    ),
    (line(messages=[{"role": "user"}]), "messages.0: a user message without content", "no content"),
    (line(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages.0.content", "an image"),
    (
        line(messages=[USER, {"role": "assistant", "content": "Yo"}]),
        "last message is from assistant",
        "ends with an answer",
    ),
    ('{"messages": [{"role": "user", "content": "x"}]}', "id: Field required", "no id"),
    (line(id=""), "id: ", "an empty id"),
    (line(max_tokens=0), "max_tokens: ", "no tokens"),
    (line(max_tokens="many"), "max_tokens: ", "tokens as text"),
    (line(category="a{b}"), "category: ", "a category that breaks metric names"),
    (line(schema={"$ref": "https://example.org/x"}), "schema: schema: $ref", "a remote reference"),
    (
        line(tools=[{"function": {"name": "f", "parameters": {"$ref": "http://x/y"}}}]),
        "tools.0.function.parameters: schema",
        "remote in a tool",
    ),
    (
        line(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "x"}}}),
        "never fetches",
        "remote in a format",
    ),
    (line(response_format={"type": "json_schema"}), "json_schema goes with", "a format without a schema"),
    (line(tools=[TOOL, TOOL]), "two tools have one name", "a tool twice"),
    (line(tool_choice="required"), "need tools", "a choice without tools"),
    (line(tools=[TOOL], checks={"calls": [{"name": "put"}]}), "not one of the tools", "a check of an unknown tool"),
    (
        line(tools=[TOOL], checks={"call": "forbidden", "calls": [{"name": "get"}]}),
        "exclude each other",
        "a contradiction",
    ),
    (line(checks={"numbers": ["a dozen"]}), "'a dozen' is not a number", "a number that is none"),
    (line(checks={"numbers": ["Infinity"]}), "is not a number", "an infinite number"),
    (line(checks={"language": "fr"}), "checks.language: Extra inputs", "an unknown check"),
    ('{"id": "\\ud800", "messages": []}', "surrogate", "half a character"),
    (line(id="good"), "id 'good' is also on line 1", "an id twice"),
]


@pytest.mark.parametrize(("text", "says", "why"), BAD_LINES, ids=[b[2] for b in BAD_LINES])
def test_a_bad_line_is_one_line_with_file_and_number(text: str, says: str, why: str) -> None:
    """The message starts with the place, names the thing, and is one line without the prompt's own text."""
    with pytest.raises(UserError) as caught:
        parse_prompts(f"{GOOD}\n\n{text}\n".encode(), "mine.jsonl")

    message = str(caught.value)
    assert message.startswith("mine.jsonl:3: ")
    assert says in message
    assert "\n" not in message


def test_the_private_text_of_a_prompt_is_not_in_its_error() -> None:
    """Production prompts are private: an error names the field, not what stands in it."""
    with pytest.raises(UserError) as caught:
        parse_prompts(line(messages=[{"role": "secret-role", "content": "secret-text"}]).encode(), "f")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"  \r\n"])
def test_an_empty_file_is_an_error(data: bytes) -> None:
    """No prompt at all: says so, and shows the format."""
    with pytest.raises(UserError, match=r"mine\.jsonl: no prompt in it.*messages"):
        parse_prompts(data, "mine.jsonl")


def test_invalid_utf8_and_long_lines_are_named() -> None:
    """The byte is named, the limit is named."""
    with pytest.raises(UserError, match=r"f:2: not UTF-8 at byte 2"):
        parse_prompts(GOOD.encode() + b'\n{"\xc3\x28"}', "f")
    with pytest.raises(UserError, match=r"f:1: [\d,]+ bytes in one line; the limit is 1,048,576"):
        parse_prompts(b" " * 3 + b"x" * MAX_LINE_BYTES, "f")


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    """The path and the reason, no traceback; a folder is no file either."""
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UserError, match="give a JSONL file with --golden"):
            read_prompts(path)


def test_byte_order_mark_crlf_and_blank_lines_are_fine(tmp_path: Path) -> None:
    """Files from any editor are read."""
    path = tmp_path / "g.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\r\n" + line(id="b").encode())

    assert [p.id for p in read_prompts(path)] == ["good", "b"]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda s: s.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_prompts_or_a_user_error(data: bytes) -> None:
    """Nothing else comes out, whatever goes in."""
    try:
        prompts = parse_prompts(data, "f")
    except UserError as e:
        assert str(e).startswith("f:")
    else:
        assert prompts


KEYS = st.sampled_from(["id", "messages", "role", "content", "tools", "schema", "checks", "max_tokens", "$ref", "type"])
SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, SCRAPS, max_size=6))
def test_any_object_gives_a_prompt_or_a_user_error(value: dict[str, Any]) -> None:
    """Objects made of the format's own keys neither crash the reader nor slip through without an id."""
    try:
        (prompt,) = parse_prompts(json.dumps({"id": "x", "messages": [USER], **value}).encode(), "f")
    except UserError as e:
        assert str(e).startswith("f:1: ")
    else:
        assert prompt.id
        assert prompt.messages


def test_our_own_prompts_span_the_categories() -> None:
    """80 prompts, 12 of them in the smoke set, which spans seven categories; none is tagged critical."""
    prompts = read_prompts(None)
    categories = {"json", "extraction", "code", "arithmetic", "languages", "long", "tools"}

    assert len(prompts) == 80
    assert {p.category for p in prompts} == categories | {"chat", "context", "refusal"}
    smoke = [p for p in prompts if "smoke" in p.tags]
    assert len(smoke) == 12
    assert {p.category for p in smoke} == categories
    assert not any("critical" in p.tags for p in prompts)
    assert all(p.max_tokens for p in prompts)


def test_schema_and_format_say_what_the_answer_must_be() -> None:
    """`schema` goes before the response format's; json_object asks for an object; text asks for nothing."""

    def schema(**fields: Any) -> Any:
        return Prompt.model_validate({"id": "a", "messages": [USER], **fields}).answer_schema()

    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
    assert schema(response_format=named) == {"type": "array"}
    assert schema(response_format=named, schema={"type": "null"}) == {"type": "null"}
    assert schema(response_format={"type": "json_object"}) == {"type": "object"}
    assert schema(response_format={"type": "text"}) is None
    assert schema() is None
