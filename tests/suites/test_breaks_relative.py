"""Breaks, repairs and drift of one answer against the base's."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kvgate.suites._breaks import relative
from kvgate.suites._breaks.answer import Answer, Call
from kvgate.suites._breaks.expect import Expect
from kvgate.suites._breaks.relative import answer_key, difference
from kvgate.suites._breaks.taxonomy import public_class

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = Expect(json=True, schema=SCHEMA)
TOOLS = Expect(tools={"get": {}, "put": {}})
JA = Expect(prompt="日本語で答えてください。空はなぜ青いのですか。")


def said(text: str, finish: str = "stop") -> Answer:
    return Answer(text, (), finish)


def called(*names: str, finish: str = "tool_calls", arguments: str = "{}") -> Answer:
    return Answer("", tuple(Call(n, arguments) for n in names), finish)


class Row(NamedTuple):
    base: Answer
    arm: Answer
    breaks: str
    repairs: str
    why: str
    expect: Expect = Expect()


GOOD, FENCED = said('{"a": 1}'), said('```json\n{"a": 1}\n```')
CUT, PROSE = said('{"a": ', "length"), said("The answer is one.")
WRONG, FENCED_WRONG = said('{"b": 1}'), said('```json\n{"b": 1}\n```')
SKY = said("空が青いのは、太陽の光が大気で散らばるからです。")
SKY_EN = said("The sky is blue because sunlight is scattered by the air.")

ROWS = [
    Row(said("a b c"), said("a b d"), "", "", "other words are drift"),
    Row(said("a b c"), said(""), "empty_output", "", "nothing comes any more"),
    Row(said(""), said("a b c"), "", "empty_output", "the reverse is a repair"),
    Row(said(""), said(""), "", "", "broken on both sides says nothing"),
    Row(said("done"), said("and on and", "length"), "truncated", "", "the base ends, the arm does not"),
    Row(said("done"), said("and on and", "length"), "", "", "a preset's lower limit only", Expect(lowered_limit=48)),
    Row(
        said("done"),
        Answer("and", (), "length", tokens=20),
        "truncated",
        "",
        "cut by the server before any limit of ours",
        Expect(lowered_limit=48),
    ),
    Row(
        said("done"),
        Answer("and on", (), "length", tokens=48),
        "",
        "",
        "at the preset's limit by the server's own count",
        Expect(lowered_limit=48),
    ),
    Row(said("and on", "length"), said("done"), "", "truncated", "the reverse"),
    Row(said("and on", "length"), said("and off", "length"), "", "", "the suite's own limit cuts both"),
    Row(said("done", ""), said("and on", "length"), "truncated", "", "an empty finish reason is not the limit"),
    Row(GOOD, PROSE, "invalid_json", "", "no JSON at all", JSON),
    Row(GOOD, FENCED, "repaired_json", "", "strict readers fail on a fence", JSON),
    Row(GOOD, WRONG, "schema_violation", "", "another key", JSON),
    Row(FENCED, PROSE, "invalid_json", "", "a lenient reader still had a value before", JSON),
    Row(FENCED, FENCED_WRONG, "schema_violation", "", "fenced on both sides, but now also wrong", JSON),
    Row(PROSE, FENCED_WRONG, "", "invalid_json", "at least it parses now", JSON),
    Row(WRONG, FENCED, "repaired_json", "schema_violation", "one question worse, another better", JSON),
    Row(FENCED, GOOD, "", "repaired_json", "strict again", JSON),
    Row(CUT, CUT, "", "", "an unfinished prefix on both sides", JSON),
    Row(CUT, WRONG, "", "truncated", "the base was cut before its schema could be seen", JSON),
    Row(CUT, said("Sure! Here", "length"), "", "", "the base's strictness was not known yet", JSON),
    Row(CUT, said('{"a": x', "length"), "invalid_json", "", "the prefix itself broke", JSON),
    Row(SKY, SKY_EN, "script_switch", "", "answers in another script than the base", JA),
    Row(SKY_EN, SKY, "", "script_switch", "it was the base that had switched", JA),
    Row(SKY, said("空が青いのは Rayleigh 散乱のためです。"), "", "", "a loan word is no switch", JA),
    Row(said("Bonjour à tous"), said("Hello to everyone"), "", "", "another language in the same script is not seen"),
    Row(
        said("The result is good."),
        said("The result 是非常好的 good."),
        "script_switch",
        "",
        "a few words of another script",
    ),
    Row(said("The angle is alpha."), said("The angle is α, β, γ or δ."), "", "", "Greek letters are formulas"),
    Row(said("It is fine."), said("I'm sorry, but I can't help with that."), "refusal_flip", "", "refuses only now"),
    Row(called("get"), said("I would look."), "missing_call", "", "the base calls, the arm talks", TOOLS),
    Row(said("Hi."), called("get"), "spurious_call", "", "the base talks, the arm calls", TOOLS),
    Row(called("get"), called("put"), "wrong_tool", "", "another tool", TOOLS),
    Row(called("get"), called("get", "get"), "wrong_count", "", "once more", TOOLS),
    Row(called("get", "put"), called("put", "get"), "", "", "the order is free", TOOLS),
    Row(called("get"), said("I would lo", "length"), "truncated", "", "cut before it could call", TOOLS),
    Row(called("get", arguments='{"x": 1}'), called("get", arguments='{"x": 2}'), "", "", "values are drift", TOOLS),
    Row(
        said("Hi."),
        called("get"),
        "",
        "missing_call",
        "due by the file, so the base was wrong",
        Expect(tools={"get": {}}, call="required"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[r.why for r in ROWS])
def test_first_break_and_first_repair(row: Row) -> None:
    """A break is what the base passes and the arm fails; a repair is the reverse."""
    seen = difference(row.base, row.arm, row.expect)

    assert [public_class(f.cls) for f in seen.breaks[:1]] == [row.breaks] * bool(row.breaks), seen.breaks
    assert [public_class(f.cls) for f in seen.repairs[:1]] == [row.repairs] * bool(row.repairs), seen.repairs


def test_breaks_of_one_direction_are_repairs_of_the_other() -> None:
    """Swapping base and arm swaps breaks and repairs, but where the base is the only measure (calls, script)."""
    for row in ROWS:
        there, back = difference(row.base, row.arm, row.expect), difference(row.arm, row.base, row.expect)
        if any(f.check in ("calls_made", "script") for f in (*there.breaks, *there.repairs)):
            continue
        assert {f.cls for f in there.breaks} == {f.cls for f in back.repairs}, row.why


def test_drift_is_described_and_breaks_nothing() -> None:
    """Numbers, argument values and length are soft: in `drift`, never in `breaks`."""
    seen = difference(
        said("It costs 12 euros."), said("It costs 13 euros, or perhaps a little more than that."), Expect()
    )
    calls = difference(called("get", arguments='{"x": 1}'), called("get", arguments='{"x": 2}'), TOOLS)

    assert [f.cls for f in seen.drift] == ["number_drift", "length_ratio"]
    assert [f.cls for f in calls.drift] == ["value_drift"]
    assert seen.breaks == calls.breaks == ()
    assert seen.first_word == 2
    assert 0 < seen.similarity < 1


@pytest.mark.parametrize(("length", "flagged"), [(5, False), (4, True), (20, False), (21, True)])
def test_length_ratio_at_its_edges(length: int, flagged: bool) -> None:
    """Half and twice the length are allowed, beyond them is drift."""
    seen = difference(said("x" * 10), said("x" * length), Expect())

    assert any(f.cls == "length_ratio" for f in seen.drift) is flagged


def test_ids_of_tool_calls_do_not_make_answers_differ() -> None:
    """Servers draw call ids at random; the same call twice is bit-equal."""
    one, two = (
        Answer.from_body({"tool_calls": [{"id": i, "function": {"name": "get", "arguments": "{}"}}]}) for i in "ab"
    )

    assert answer_key(one) == answer_key(two)


def test_a_mutant_that_ignores_the_base_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every bad check counted as a break, prompts that are broken on the base would accuse the arm."""

    def ignores_base(before: object, after: object, flags: tuple[object, ...]) -> list[object]:
        return list(flags)

    monkeypatch.setattr(relative, "_newly_bad", ignores_base)

    with pytest.raises(AssertionError):
        test_first_break_and_first_repair(next(r for r in ROWS if r.why == "broken on both sides says nothing"))
