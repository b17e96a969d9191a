"""Our own golden prompts: how many there are, what they cost, and that each tells a right answer from a wrong one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_lab import context

from kvgate.core.observation import Case
from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.expect import Expect
from kvgate.suites._breaks.inspect import inspect
from kvgate.suites._breaks.relative import difference
from kvgate.suites._golden.reader import read_prompts
from kvgate.suites.golden import SUITE, TEMPLATE_TOKENS, choose

PER_CATEGORY = {
    "arithmetic": 9,
    "chat": 4,
    "code": 9,
    "context": 4,
    "extraction": 10,
    "json": 12,
    "languages": 10,
    "long": 6,
    "refusal": 4,
    "tools": 12,
}
#: The twelve that `smoke` asks; numbers of earlier runs refer to exactly these.
SMOKE = [
    "json-ticket-triage",
    "json-home-command",
    "extract-contact",
    "extract-review-sentiment",
    "code-even-sum",
    "arithmetic-tickets",
    "arithmetic-stock",
    "language-french-reply",
    "language-japanese-explain",
    "long-incident-report",
    "tools-weather",
    "tools-small-talk",
]
#: One right and one wrong answer, written by hand, for each prompt beyond the first 24, and the class of what is wrong.
ANSWERS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "golden_answers.jsonl").read_text(encoding="utf-8").splitlines()
]
MAX_BYTES = 150_000


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {c.cluster: c for c in SUITE.cases(context(SUITE.presets()["default"]))}


def answered(given: dict[str, Any]) -> Answer:
    """An answer as a server returns it."""
    calls = [
        {"id": f"call_{i}", "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}}
        for i, c in enumerate(given.get("calls", ()))
    ]
    finish = "tool_calls" if calls else "stop"
    return Answer.from_body({"text": given.get("text", ""), "tool_calls": calls, "finish_reason": finish})


def test_there_are_eighty_prompts_of_ten_categories() -> None:
    """80 prompts with ids of their own, so many of each category, each with a limit."""
    prompts = read_prompts(None)
    assert len(prompts) == len({p.id for p in prompts}) == 80
    assert Counter(p.category for p in prompts) == PER_CATEGORY
    assert all(p.max_tokens and p.max_tokens <= 512 for p in prompts)
    assert len({json.dumps(p.model_dump(mode="json")["messages"]) for p in prompts}) == 80


def test_smoke_asks_the_same_twelve_as_ever() -> None:
    """The prompts of smoke are named; default asks all, in the order of the file."""
    prompts = read_prompts(None)
    assert [p.id for p in choose(prompts, 12)] == SMOKE
    assert [p.id for p in choose(prompts, None)] == [p.id for p in prompts]


def test_default_costs_what_its_docstring_says(cases: dict[str, Case]) -> None:
    """The stated tokens are written an arm, and every prompt fits into a context of 2,048."""
    cost = SUITE.cost(list(cases.values()), None)
    assert cost.cases == 80
    assert f"{cost.decode_tokens:,} tokens" in (SUITE.presets.__doc__ or "")
    assert max(c.body["tokens"] + TEMPLATE_TOKENS + c.body["max_tokens"] for c in cases.values()) <= 2048


def test_every_prompt_can_show_a_break_of_its_own(cases: dict[str, Case]) -> None:
    """A prompt has a check of its own, or asks for a long text or another language, where the general ones look."""
    for name, case in cases.items():
        if case.category not in ("languages", "long"):
            assert case.body["checks"], name


def test_the_prompts_are_small() -> None:
    """The file stays readable: under 150 kB."""
    from importlib.resources import files

    assert len(files("kvgate.suites").joinpath("data/golden.jsonl").read_bytes()) < MAX_BYTES


def test_each_new_prompt_has_a_right_and_a_wrong_answer(cases: dict[str, Case]) -> None:
    """The table of answers covers the prompts from the 25th on, and every category."""
    names = [a["id"] for a in ANSWERS]
    assert names == list(cases)[24:]
    assert {cases[n].category for n in names} == set(PER_CATEGORY)


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row["id"])
def test_the_right_answer_passes_and_the_wrong_one_breaks(row: dict[str, Any], cases: dict[str, Case]) -> None:
    """No flag on the right answer; on the wrong one exactly the class that it was written for comes first."""
    expect = Expect.from_body(cases[row["id"]].body)
    right, wrong = answered(row["right"]), answered(row["wrong"])

    assert inspect(right, expect).flags == ()
    breaks = difference(right, wrong, expect).breaks
    assert breaks[0].cls == row["class"], breaks


def test_two_histories_are_longer_than_a_window_of_512_tokens(cases: dict[str, Case]) -> None:
    """A table and a talk whose early lines lie outside Gemma's window when the question comes."""
    long = {"context-hut-table", "context-latest-room"}
    # Seen with their own tokenizers: 612 and 606 tokens of SmolLM2 and Gemma for the talk, 624 and 597 for the table.
    said = {n: sum(len(m["content"].split()) for m in c.body["messages"]) for n, c in cases.items()}
    assert {n for n in said if n.startswith("context-") and cases[n].body["tokens"] > 512} == long
    assert said["context-hut-table"] > 300 and said["context-latest-room"] > 440
