"""The needle suite: haystacks, lengths, scores, metrics, and the defect that it must catch."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from chat_lab import Lines, at_desks, context, fake_tokens, observed
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvgate.core.engine import Generate, Generated, Tokens
from kvgate.core.errors import EngineDied, UserError
from kvgate.core.estimate import Estimate
from kvgate.core.estimate import Test as TestResult
from kvgate.core.observation import Case, Raw, Records
from kvgate.core.registry import get
from kvgate.suites._needle import score as score_module
from kvgate.suites._needle.fit import fit_units
from kvgate.suites._needle.haystack import make_needle, sentences
from kvgate.suites._needle.score import codes_in, flags_of, value_of
from kvgate.suites.needle import MIN_HAYSTACKS, SUITE, TEMPLATE_TOKENS, NeedleParams
from kvgate.testing.suite import check_suite

SMALL = NeedleParams(lengths=(512, 1024), salts=2)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """10 haystacks at each of two lengths."""
    return list(SUITE.cases(context(SMALL)))


def estimate(summary: Any, name: str) -> Estimate:
    m = summary.metrics[name]
    assert isinstance(m, Estimate)
    return m


def net(summary: Any) -> TestResult:
    m = summary.metrics["needle.net_losses"]
    assert isinstance(m, TestResult)
    return m


def test_the_suite_is_found_by_name() -> None:
    """One file in the folder is all that registration needs."""
    assert get("suite", "needle") is SUITE


def test_presets_are_the_stated_sizes() -> None:
    """smoke: 4 needles at 512; default: powers of two up to the context x 5 depths, 60 to 80 in all."""
    smoke = list(SUITE.cases(context(SUITE.presets()["smoke"], tokens=1024)))
    full = list(SUITE.cases(context(SUITE.presets()["default"], tokens=3000)))

    assert [c.bucket for c in smoke] == ["512"] * 4
    assert len({c.cluster for c in smoke}) == 4
    assert {c.bucket for c in full} == {"512", "1024", "2048"}
    assert len(full) == (7 + 4 + 2) * 5
    assert len(list(SUITE.cases(context(SUITE.presets()["default"], tokens=1000)))) == 60
    assert len({c.cluster for c in full}) == 65


@pytest.mark.parametrize("tokens", [512, 1024, 4096, 32768])
def test_no_length_takes_most_of_the_time(tokens: int) -> None:
    """At least 60 needles, 5 of the longest length or more, and about the same tokens for each."""
    made = list(SUITE.cases(context(SUITE.presets()["default"], tokens=tokens)))
    spent = Counter(int(c.bucket) for c in made)
    costs = [n * count for n, count in spent.items()]

    assert MIN_HAYSTACKS <= len(made) <= 100
    assert min(spent.values()) >= 5
    assert len(spent) == 1 or max(c for n, c in zip(spent, costs, strict=True) if n <= 4096) <= 2 * min(costs)


def test_cases_depend_on_the_seed_and_on_nothing_else(cases: list[Case]) -> None:
    """The same twice; another seed hides other codes in other texts."""
    again = list(SUITE.cases(context(SMALL)))
    other = list(SUITE.cases(context(SMALL, seed=1)))

    assert [c.id for c in again] == [c.id for c in cases]
    assert not {c.body["code"] for c in other} & {c.body["code"] for c in cases}
    assert not {c.id for c in other} & {c.id for c in cases}


def test_lengths_fit_within_one_sentence(cases: list[Case]) -> None:
    """Prompt, template and answer stay within the length; one more sentence would not have fitted."""
    longest = max(len(fake_tokens(" " + s).ids) for s in islice(sentences(random.Random(0)), 300))

    for case in cases:
        room = case.body["length"] - TEMPLATE_TOKENS - case.body["max_tokens"] - case.body["tokens"]
        assert 0 <= room < longest
        assert case.body["tokens"] == len(fake_tokens(case.body["messages"][0]["content"]).ids)


def test_the_needle_stands_at_its_depth_and_nowhere_else(cases: list[Case]) -> None:
    """The code occurs once, at the stated share of the text, and the filler has no digits."""
    for case in cases:
        text = case.body["messages"][0]["content"].split("\n\n")[1]
        at = text.index(case.body["code"]) / len(text)

        assert re.findall(r"\d+", text) == [case.body["code"]]
        assert abs(at - case.body["depth"]) < 0.1


def test_no_two_prompts_share_a_prefix_or_a_needle(cases: list[Case]) -> None:
    """The salt differs in the first characters; every prompt has a haystack and a code of its own."""
    starts = {c.body["messages"][0]["content"][:8] for c in cases}

    assert len(starts) == len({c.body["code"] for c in cases}) == len({c.cluster for c in cases}) == len(cases)


def test_filler_is_varied() -> None:
    """A thousand sentences, hardly any twice, no digits, each one sentence."""
    some = list(islice(sentences(random.Random(7)), 1000))

    assert len(set(some)) > 990
    assert all(re.fullmatch(r"[A-Z][a-z ,]+\.", s) for s in some)


@pytest.mark.parametrize(
    ("params", "tokens", "says"),
    [
        (NeedleParams(lengths=(2048,)), 1024, "a needle length of 2048 tokens is beyond the context of 1024"),
        (NeedleParams(), 256, "a context of 256 tokens is too short for needles"),
        (NeedleParams(lengths=(256,), max_tokens=150), 1024, "256 tokens are too short for a needle"),
    ],
)
def test_impossible_lengths_are_refused(params: NeedleParams, tokens: int, says: str) -> None:
    """Before anything runs, with the fix."""
    with pytest.raises(UserError, match=says):
        list(SUITE.cases(context(params, tokens=tokens)))


@pytest.mark.parametrize("bad", [{"lengths": (100,)}, {"lengths": ()}, {"depths": (1.5,)}, {"depths": ()}, {"salt": 1}])
def test_bad_parameters_are_refused(bad: dict[str, Any]) -> None:
    """Unknown names and impossible values."""
    with pytest.raises(ValidationError):
        NeedleParams.model_validate(bad)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 600), st.integers(0, 200), st.integers(0, 30)
)
def test_fit_finds_the_most_units(sizes: list[int], target: int, guess: int, fixed: int) -> None:
    """Whatever the sizes and the guess: the fit fits, and one more would not; in few calls."""
    calls = 0

    def count(n: int) -> int:
        nonlocal calls
        calls += 1
        return fixed + sum(sizes[i % len(sizes)] for i in range(n))

    fit = fit_units(count, target, guess)

    if fit is None:
        assert fixed > target
        return
    assert fit.tokens == count(fit.units) <= target
    assert count(fit.units + 1) > target
    assert calls < 80


CASE = Case.make("needle", cluster="c", bucket="512", body={"code": "4821973", "messages": [], "max_tokens": 32})
ANSWERS: list[tuple[str, float, str, str]] = [
    ("4821973", 1, "", "the code"),
    ("The secret code of the amber lynx is 4821973.", 1, "", "in a sentence"),
    ("**4821973**\n4821973", 1, "", "the same code twice is one code"),
    ("4,821,973", 1, "", "with thousands separators"),
    ("<think>1234567?</think>4821973", 1, "", "thoughts do not count"),
    ("4821974", 0, "wrong_code", "one digit off"),
    ("4821973 or 4821974", 0, "several_codes", "a list of guesses"),
    ("14821973", 0, "no_code", "inside a longer number"),
    ("48219730", 0, "no_code", "a digit too much"),
    ("482197", 0, "no_code", "a digit too few"),
    ("0.4821973", 0, "no_code", "behind a decimal point"),
    ("4 821 973", 0, "no_code", "blanks are not accepted: 4 could be a count"),
    ("I do not know.", 0, "no_code", "no number"),
    ("", 0, "no_code", "nothing"),
]


@pytest.mark.parametrize(("text", "value", "flag", "why"), ANSWERS, ids=[a[3] for a in ANSWERS])
def test_scores(text: str, value: float, flag: str, why: str) -> None:
    """Exact match, and no credit for guessing."""
    raw = Raw({"text": text, "finish_reason": "stop"})

    assert value_of(CASE, raw) == value
    assert flags_of(CASE, raw) == ((flag,) if flag else ())
    assert SUITE.score(CASE, raw).value == value


def test_a_mutant_that_takes_any_mention_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Substring credit would pay for a list of guesses."""
    monkeypatch.setattr(score_module, "codes_in", lambda text: ["4821973"] if "4821973" in text else [])

    with pytest.raises(AssertionError):
        test_scores(*ANSWERS[6])


def test_codes_of_huge_texts_come_quickly() -> None:
    """A megabyte of digits and commas is read once."""
    assert codes_in("1" * 500_000 + ",111" * 100_000) == []


def test_failures_are_raised_by_run_and_never_scored(cases: list[Case]) -> None:
    """An engine that dies has not lost a needle."""

    def dies(_: Generate, n: int) -> Generated:
        raise EngineDied("gone")

    def right(r: Generate, n: int) -> Generated:
        found = re.search(r"\d{7}", r.messages[0]["content"]) if r.messages else None
        return Generated(found[0] if found else "", "stop")

    some = cases[:3]
    with pytest.raises(EngineDied):
        asyncio.run(SUITE.run(Lines(dies), some[0], 0, 0))  # type: ignore[arg-type]
    seen = asyncio.run(observed(SUITE, some, {"base": Lines(right), "floor": Lines(right), "cand": Lines(dies)}))
    summary = SUITE.summarise(seen.pair_with("cand"))

    assert SUITE.score(some[0], seen.raws["cand", some[0].id][0]).value is None
    assert "needle: 3 of 3 needles have no answer on one side" in summary.untested
    assert "needle.net_losses" not in summary.metrics


def test_planted_decay_is_caught_at_its_length(cases: list[Case]) -> None:
    """Retrieval that fails past 600 tokens: the long bucket is lost on every haystack, the short one is whole."""
    fault = SUITE.planted_defect()
    summary = SUITE.summarise(at_desks(SUITE, cases, fault.clean, fault.script).pair_with("candidate"))

    assert net(summary).statistic == 10
    assert net(summary).p == 0.5**10
    assert estimate(summary, "needle.accuracy{bucket=512}").value == 1
    assert estimate(summary, "needle.accuracy{bucket=1024}").value == 0
    assert estimate(summary, "needle.lost").value == 10
    ratio = estimate(summary, "needle.accuracy_ratio")
    assert ratio.value == 0.5
    assert ratio.hi is not None
    assert ratio.hi < 0.95
    assert estimate(summary, "needle.base_accuracy{bucket=1024}").value == 1


def test_equal_arms_lose_nothing_and_keep_a_width(cases: list[Case]) -> None:
    """A/A: p = 1, ratio 1, and an interval that knows how few haystacks there were."""
    summary = SUITE.summarise(at_desks(SUITE, cases, {}, {}).pair_with("candidate"))
    accuracy = estimate(summary, "needle.accuracy")

    assert net(summary).p == 1.0
    assert accuracy.value == 1
    assert accuracy.lo is not None
    assert 0.8 < accuracy.lo < 1
    ratio = estimate(summary, "needle.accuracy_ratio")
    assert ratio.value == 1
    assert ratio.lo is not None
    # 20 haystacks, all found: on 1 - 0.05 ** (1/20) = 14 % of all haystacks it could still fail.
    assert ratio.lo <= 0.05 ** (1 / 20)
    assert summary.floor["floor0"]["needle.net_losses"] == net(summary)


def test_losses_and_gains_are_paired_by_needle(cases: list[Case]) -> None:
    """Three lost and one gained: 4 discordant needles, p of 3 or more heads in 4."""

    def right(r: Generate, n: int) -> Generated:
        found = re.search(r"\d{7}", r.messages[0]["content"]) if r.messages else None
        return Generated(found[0] if found else "", "stop")

    def without(*which: int) -> Lines:
        codes = {cases[i].body["code"] for i in which}

        def forgets(r: Generate, n: int) -> Generated:
            answer = right(r, n)
            return Generated("gone", "stop") if answer.text in codes else answer

        return Lines(forgets)

    arms = {"base": without(0), "floor": without(0), "cand": without(1, 2, 3)}
    seen = asyncio.run(observed(SUITE, cases, arms))
    summary = SUITE.summarise(seen.pair_with("cand"))

    assert (estimate(summary, "needle.lost").value, estimate(summary, "needle.gained").value) == (3, 1)
    assert (net(summary).statistic, net(summary).n, net(summary).p) == (2, 4, 5 / 16)
    pairs = [SUITE.compare(c, seen.raws["base", c.id], seen.raws["cand", c.id]) for c in cases]
    assert [p.break_class for p in pairs].count("lost_needle") == 3
    assert [p.repaired for p in pairs].count(True) == 1


def test_lengths_where_the_base_is_at_its_floor_are_untested(cases: list[Case]) -> None:
    """A base that finds nothing past 600 tokens: that length is left out and named; the other decides."""
    summary = SUITE.summarise(at_desks(SUITE, cases, {"needle_decay_tokens": 600}, {}).pair_with("candidate"))

    assert summary.untested == ["needle: at 1024 tokens the base finds 0 of 10 needles: too few to show a loss"]
    assert estimate(summary, "needle.base_accuracy{bucket=1024}").value == 0
    assert "needle.accuracy{bucket=1024}" not in summary.metrics
    assert estimate(summary, "needle.accuracy").n == 10
    assert estimate(summary, "needle.gained").value == 0


def test_a_base_that_finds_nothing_makes_the_suite_untested(cases: list[Case]) -> None:
    """No metric that a gate could read is left."""
    summary = SUITE.summarise(at_desks(SUITE, cases, {"needle_decay_tokens": 0}, {}).pair_with("candidate"))

    assert summary.untested[-1] == "needle: the base is at its floor at every length, so this suite says nothing"
    assert not {"needle.net_losses", "needle.accuracy_ratio"} & set(summary.metrics)


def test_blind_spots_say_what_four_needles_cannot_show() -> None:
    """Four haystacks cannot reach 5 %, whatever is lost; a server without a tokenizer gives guessed lengths."""
    made = list(SUITE.cases(context(SUITE.presets()["smoke"])))
    summary = SUITE.summarise(at_desks(SUITE, made, {}, {}).pair_with("candidate"))

    assert summary.blind_spots == ["needle: 4 haystacks: a loss on 53 % of them would go unseen"]
    assert summary.metrics["needle.net_losses"].best_p == 0.5**4  # type: ignore[union-attr]
    guessing = replace(
        context(SUITE.presets()["smoke"]), tokenize=lambda t: Tokens(tuple(range(len(t) // 4)), exact=False)
    )
    guessed = list(SUITE.cases(guessing))
    summary = SUITE.summarise(at_desks(SUITE, guessed, {}, {}).pair_with("candidate"))
    assert summary.blind_spots[-1] == "needle: lengths are guesses, the server has no tokenizer"


def test_nothing_is_rerun(cases: list[Case]) -> None:
    """Every needle is asked once; many needles decide, not one that is asked often."""
    seen = at_desks(SUITE, cases, {}, SUITE.planted_defect().script)

    assert all(len(r) == 1 for r in seen.raws.values())
    assert SUITE.next_work(Records("needle", "base", (), ("c",), {})) == ()


def test_needles_are_seven_digits_that_do_not_start_with_zero() -> None:
    """A leading zero could be dropped by a model that means the right thing."""
    made = [make_needle(random.Random(i)) for i in range(300)]

    assert all(re.fullmatch(r"[1-9]\d{6}", n.code) for n in made)
    assert len({n.name for n in made}) > 100


def test_suite_conforms_over_the_fake_server() -> None:
    """Cases, planted defect and A/A pairs, over HTTP."""
    report = asyncio.run(check_suite(SUITE, context_tokens=1024, pairs=1))

    assert len(report.checks) == 4


def test_the_default_set_has_the_haystacks_that_a_margin_of_95_percent_needs() -> None:
    """60 in any context: the rule of three leaves under 5 % unseen with 59, not with 58."""
    for tokens in (512, 1024, 2048):
        made = list(SUITE.cases(context(SUITE.presets()["default"], tokens=tokens)))
        assert len({c.cluster for c in made}) >= MIN_HAYSTACKS

    assert 1 - 0.05 ** (1 / 59) < 0.05 < 1 - 0.05 ** (1 / 58)
    assert MIN_HAYSTACKS >= 59
