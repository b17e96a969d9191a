"""Which breaks count: reruns on the candidate, floor arms, repairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from chat_lab import Lines, observed

from kvgate.core.engine import Generate, Generated
from kvgate.core.errors import EngineTimeout
from kvgate.core.estimate import Test as TestResult
from kvgate.core.observation import Case, Raw, Records
from kvgate.suites._golden import confirm
from kvgate.suites._golden.confirm import MAX_RUNS, compare_runs, outcomes, reproduced, reruns
from kvgate.suites.golden import SUITE

#: (broken of each run, the rerun is bit-equal) -> confirmed, with the reason.
TABLE: list[tuple[str, bool, bool | None, str]] = [
    (".", False, False, "nothing broke"),
    ("X", False, None, "one run decides nothing"),
    ("XX", True, True, "the rerun is the same to the bit"),
    ("XX", False, None, "two that differ are two of three"),
    ("XXX", False, True, "three of five"),
    ("X.", False, None, "still possible"),
    ("X..", False, None, "two more could come"),
    ("X...", False, False, "three of five cannot be reached any more"),
    ("X.X", False, None, "two of three"),
    ("X.X.X", False, True, "three of five, the last one"),
    ("XX..", False, None, "the fifth decides"),
    ("XX...", False, False, "two of five"),
    (".X", False, None, "a planned repeat broke, the first did not"),
    (".XXX", False, True, "three of four"),
    ("..", True, False, "two that are the same and fine"),
    ("..XXX", True, True, "the same at first, then three breaks"),
]


@pytest.mark.parametrize(("runs", "equal", "expected", "why"), TABLE, ids=[t[3] for t in TABLE])
def test_confirmation_rule(runs: str, equal: bool, expected: bool | None, why: str) -> None:
    """3 of 5 runs, or two where the rerun is bit-equal; False as soon as it cannot be reached; None before."""
    assert reproduced([c == "X" for c in runs], equal, MAX_RUNS - len(runs)) is expected


CASE = Case.make("golden", cluster="p", body={"messages": [], "checks": {"json": True}, "max_tokens": 9, "repeats": 1})
OK, OK2, BAD, BAD2 = '{"a": 1}', '{"a": 2}', "no", "nope"


def raws(*texts: str) -> tuple[Raw, ...]:
    return tuple(Raw(None, error="EngineDied: gone") if t == "ERR" else body(t) for t in texts)


def body(text: str) -> Raw:
    return Raw({"text": text, "tool_calls": [], "finish_reason": "stop"})


@pytest.mark.parametrize(
    ("base", "arm", "break_class", "confirmed"),
    [
        ([OK], [OK2], "", None),
        ([OK], [BAD], "invalid_json", None),
        ([OK], [BAD, BAD], "invalid_json", True),
        ([OK], [BAD, BAD2], "invalid_json", None),
        ([OK], [BAD, OK, OK, OK], "invalid_json", False),
        ([OK], ["ERR", BAD, BAD], "invalid_json", True),
        ([OK], [BAD, "ERR", "ERR", "ERR"], "invalid_json", False),
        ([OK], ["ERR"], "", None),
        (["ERR"], [BAD], "", None),
        ([BAD], [BAD2], "", None),
        ([OK, BAD], [BAD, BAD], "", None),
    ],
)
def test_comparison_of_runs(base: list[str], arm: list[str], break_class: str, confirmed: bool | None) -> None:
    """Engine failures are no answers; what the base's own rerun shows is not held against the arm."""
    pair = compare_runs(CASE, raws(*base), raws(*arm))

    assert (pair.break_class, pair.confirmed) == (break_class, confirmed)


def test_a_repair_says_what_it_repaired() -> None:
    """Base broken, arm not."""
    pair = compare_runs(CASE, raws(BAD), raws(OK))

    assert pair.repaired
    assert pair.break_class == ""
    assert pair.detail.startswith("repaired invalid_json")


def records(base: str, floors: Sequence[str], candidate: Sequence[str]) -> Records:
    named = {"base": [base], **{f"floor{i}": [t] for i, t in enumerate(floors)}, "cand": list(candidate)}
    return Records(
        "golden",
        "base",
        tuple(n for n in named if n.startswith("floor")),
        ("cand",),
        {CASE.id: CASE},
        {(arm, CASE.id): raws(*texts) for arm, texts in named.items()},
        digest="ab" * 32,
    )


@pytest.mark.parametrize(
    ("base", "floors", "cand", "confirmed", "repair", "wants", "why"),
    [
        (OK, [OK], [BAD], False, False, True, "a first break asks for a rerun"),
        (OK, [OK], [BAD, BAD], True, False, False, "confirmed, floor clean"),
        (OK, [OK2], [BAD, BAD], True, False, False, "other words on the floor are clean"),
        (OK, [BAD], [BAD, BAD], False, False, False, "the base breaks against itself"),
        (OK, [OK, BAD2], [BAD], False, False, False, "one dirty floor arm is enough, no rerun is wasted"),
        (OK, ["ERR"], [BAD, BAD], False, False, False, "no floor arm answered: nobody knows if the base breaks too"),
        (OK, ["ERR", OK], [BAD, BAD], True, False, False, "one clean floor arm is enough"),
        (OK, [], [BAD, BAD], True, False, False, "the policy names no floor arm"),
        (OK, [OK], [BAD, BAD2, OK, OK], False, False, True, "two of four may become three of five"),
        (OK, [OK], [BAD, BAD2, OK, OK, OK], False, False, False, "two of five"),
        (BAD, [BAD], [OK], False, True, False, "a repair, and the floor is broken like the base"),
        (BAD, [OK], [OK], False, False, False, "the base broke only once"),
        (BAD, [OK, BAD], [OK], False, True, False, "one floor arm is broken like the base"),
        (BAD, [], [OK], False, True, False, "no floor to ask"),
        (OK, [OK], [OK2], False, False, False, "nothing broke"),
    ],
)
def test_outcome_of_a_prompt(
    base: str, floors: list[str], cand: list[str], confirmed: bool, repair: bool, wants: bool, why: str
) -> None:
    """Confirmed needs reruns and clean floors; repairs need a floor arm that is broken too."""
    seen = records(base, floors, cand)
    (outcome,) = outcomes(seen, "cand")

    assert (outcome.confirmed, outcome.repair) == (confirmed, repair)
    assert [(w.arm, w.repeat) for w in reruns(seen)] == ([("cand", len(cand))] if wants else [])


def test_mutants_of_the_rule_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirming at once, or ignoring floor arms, fails the tables above."""
    monkeypatch.setattr(confirm, "reproduced", lambda broken, equal, left: any(broken))
    with pytest.raises(AssertionError):
        test_outcome_of_a_prompt(OK, [OK], [BAD], False, False, True, "")
    monkeypatch.undo()

    monkeypatch.setattr(confirm, "NEEDED", 2)
    with pytest.raises(AssertionError):
        test_confirmation_rule("XX...", False, False, "")
    monkeypatch.undo()

    def no_floors(seen: Records, candidate: str) -> list[confirm.Outcome]:
        return confirm.outcomes(replace(seen, floors=()), candidate)

    monkeypatch.setitem(globals(), "outcomes", no_floors)
    try:
        with pytest.raises(AssertionError):
            test_outcome_of_a_prompt(OK, [BAD], [BAD, BAD], False, False, False, "")
    finally:
        monkeypatch.undo()


def made_case(n: int, **more: Any) -> Case:
    body = {
        "messages": [{"role": "user", "content": f"q{n}"}],
        "checks": {"json": True},
        "max_tokens": 50,
        "repeats": 1,
    }
    return Case.make("golden", cluster=f"q{n}", body=body | more)


def said(text: str) -> Generated:
    return Generated(text, "stop")


def run(cases: Sequence[Case], **arms: Callable[[Generate, int], Generated]) -> tuple[Records, Mapping[str, Lines]]:
    sessions = {name: Lines(say) for name, say in arms.items()}
    return asyncio.run(observed(SUITE, cases, sessions)), sessions


def test_a_deterministic_break_costs_one_rerun() -> None:
    """Bit-equal reruns decide at once; prompts that did not break are asked once."""
    cases = [made_case(n) for n in range(3)]

    def breaks_first(r: Generate, _: int) -> Generated:
        return said("no" if r.messages and r.messages[0]["content"] == "q0" else OK)

    seen, sessions = run(cases, base=lambda *_: said(OK), floor=lambda *_: said(OK), cand=breaks_first)

    assert sorted(sessions["cand"].asked.values()) == [1, 1, 2]
    assert set(sessions["base"].asked.values()) == set(sessions["floor"].asked.values()) == {1}
    assert SUITE.summarise(seen.pair_with("cand")).metrics["golden.confirmed_breaks"].value == 1  # type: ignore[union-attr]


def test_a_break_that_does_not_come_back_is_dropped_after_four_runs() -> None:
    """One break and three clean reruns: three of five are out of reach."""

    def once(_: Generate, n: int) -> Generated:
        return said("no" if n == 0 else f'{{"a": {n}}}')

    seen, sessions = run([made_case(0)], base=lambda *_: said(OK), floor=lambda *_: said(OK), cand=once)
    summary = SUITE.summarise(seen.pair_with("cand"))

    assert list(sessions["cand"].asked.values()) == [4]
    assert summary.metrics["golden.confirmed_breaks"].value == 0  # type: ignore[union-attr]
    assert summary.metrics["golden.unconfirmed_breaks"].value == 1  # type: ignore[union-attr]


def test_reruns_that_fail_leave_the_break_undecided_and_said() -> None:
    """An engine that dies on every rerun confirms nothing and denies nothing."""

    def dies(_: Generate, n: int) -> Generated:
        if n:
            raise EngineTimeout("no answer within 300 s")
        return said("no")

    seen, _ = run([made_case(0)], base=lambda *_: said(OK), floor=lambda *_: said(OK), cand=dies)
    summary = SUITE.summarise(seen.pair_with("cand"))
    net = summary.metrics["golden.net_breaks"]

    assert isinstance(net, TestResult)
    assert net.n == 0
    assert summary.metrics["golden.unconfirmed_breaks"].value == 1  # type: ignore[union-attr]


def test_planned_repeats_are_run_on_every_arm_first() -> None:
    """`repeats: 3` gives three runs of each prompt on each arm."""
    case = made_case(0, repeats=3)

    _, sessions = run([case], base=lambda *_: said(OK), floor=lambda *_: said(OK), cand=lambda *_: said(OK))

    assert [list(s.asked.values()) for s in sessions.values()] == [[3], [3], [3]]
