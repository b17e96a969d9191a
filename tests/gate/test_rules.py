"""Conformance: every registered rule at the boundaries that it states itself."""

from __future__ import annotations

import pytest
from evidence_cases import est, good
from pydantic import ValidationError

from kvgate.core.errors import UserError
from kvgate.core.registry import discover
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence, Status
from kvgate.gate.rule import Example, MetricParams, RuleSpec, Setting
from kvgate.gate.rules.coverage import error_share
from kvgate.stats.multiplicity import holm_adjusted

RULES = discover("rule")
EXAMPLES = [(name, example) for name, rule in RULES.items() for example in rule.examples]


def judged(name: str, example: Example, role: str = "decide") -> tuple[Status, ...]:
    rule = RULES[name]
    spec = RuleSpec("r", name, role, rule.Params.model_validate(example.params))
    setting = Setting(0.05, holm_adjusted(rule.tests(spec, example.evidence)))
    return tuple(f.status for f in rule.judge(spec, example.evidence, setting))


def test_the_shipped_rules_are_found() -> None:
    """Each file in gate/rules is a rule, without any list of them."""
    assert set(RULES) >= {"noninferior", "ceiling", "detect", "breaks", "engaged", "coverage"}


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[f"{n}: {e.what}" for n, e in EXAMPLES])
def test_rule_at_its_boundaries(name: str, example: Example) -> None:
    """The rule finds what its example says, whatever its role."""
    assert judged(name, example) == example.statuses
    assert judged(name, example, role="guard") == example.statuses


@pytest.mark.parametrize("name", RULES)
def test_examples_show_a_pass_and_its_opposite(name: str) -> None:
    """A rule whose examples never pass, or always do, has shown no boundary."""
    statuses = {s for example in RULES[name].examples for s in example.statuses}

    assert Status.PASS in statuses and len(statuses) > 1


@pytest.mark.parametrize("name", RULES)
def test_without_evidence_no_rule_passes(name: str) -> None:
    """Missing evidence is untested, never a pass and never an exception."""
    empty = CandidateEvidence("c", "q8_0", "q8_0", {}, untested={"s": "the engine has no such lane"})

    for example in RULES[name].examples:
        assert set(judged(name, example._replace(evidence=empty))) == {Status.UNTESTED}


@pytest.mark.parametrize("name", RULES)
def test_unknown_params_are_refused(name: str) -> None:
    """A rule's Params forbid keys that they do not know."""
    params = dict(RULES[name].examples[0].params)

    with pytest.raises(ValidationError, match="not permitted"):
        RULES[name].Params.model_validate({**params, "not_a_key": 1})


def spec(use: str, role: str = "decide", suite: str | None = None, **params: object) -> RuleSpec:
    return RuleSpec("r", use, role, RULES[use].Params.model_validate(params), suite)


def test_ceiling_judges_the_excess_not_the_distance() -> None:
    """A raw distance far over the limit passes where its excess over the floor is small; without a floor: untested."""
    distance, excess = est(0.2, 0.01), est(0.002, 0.001)
    rule, asked = RULES["ceiling"], spec("ceiling", metric="a.kl", excess_max=0.01)

    over_floor = good(summaries={"s": Summary({"a.kl": distance}, {"a.kl": excess})})
    no_floor = good(summaries={"s": Summary({"a.kl": distance})})

    assert rule.judge(asked, over_floor, Setting())[0].status is Status.PASS
    (missing,) = rule.judge(asked, no_floor, Setting())
    assert missing.status is Status.UNTESTED
    assert "excess over a floor is not known" in missing.message


def test_unknown_estimates_are_untested_with_their_reason() -> None:
    """A quantile that needs 10,000 positions is untested and says so."""
    from kvgate.core.estimate import Estimate

    unknown = Estimate.unknown("2,304 positions; p99.9 needs 10,000")
    evidence = good(summaries={"s": Summary({"a.kl": unknown, "a.r": unknown}, {"a.kl": unknown})})

    for use, params in (
        ("ceiling", {"metric": "a.kl", "excess_max": 1.0}),
        ("noninferior", {"metric": "a.r", "margin": 0.9}),
    ):
        (finding,) = RULES[use].judge(spec(use, **params), evidence, Setting())
        assert finding.status is Status.UNTESTED
        assert "p99.9 needs 10,000" in finding.message


def test_wrong_kind_of_measure_is_named() -> None:
    """A test given to an estimate rule, and the reverse, is untested with the rule to use."""
    evidence = good()
    cases = (("noninferior", {"metric": "golden.net_breaks", "margin": 1.0}), ("detect", {"metric": "prefill.kl_mean"}))

    for use, params in cases:
        (finding,) = RULES[use].judge(spec(use, **params), evidence, Setting())
        assert finding.status is Status.UNTESTED
        assert "judge it with use" in finding.message


def test_inconclusive_names_the_number_that_decides() -> None:
    """An interval over the limit and a lone break both say how many units would decide."""
    wide = good(summaries={"s": Summary({}, {"a.kl": est(0.008, 0.006)})})
    (ceiling,) = RULES["ceiling"].judge(spec("ceiling", metric="a.kl", excess_max=0.01), wide, Setting())
    (breaks,) = RULES["breaks"].judge(spec("breaks"), RULES["breaks"].examples[2].evidence, Setting())

    assert ceiling.status is breaks.status is Status.INCONCLUSIVE
    assert ceiling.decide_n == 247 and "80%" in ceiling.decide_why
    assert breaks.decide_n == 160 and "confirmed breaks 1," in breaks.message


def test_guards_carry_their_blind_spot() -> None:
    """A guard that passes says what its size cannot see; a deciding rule leaves that to the suite."""
    asked = {"metric": "golden.net_breaks"}

    assert "12 %" in RULES["detect"].judge(spec("detect", "guard", **asked), good(), Setting())[0].blind_spot
    assert "12 %" in RULES["breaks"].judge(spec("breaks", "guard"), good(), Setting())[0].blind_spot
    assert not RULES["detect"].judge(spec("detect", **asked), good(), Setting())[0].blind_spot


def test_untested_carries_the_campaigns_reason() -> None:
    """Why the panel lane is missing reaches the finding of every metric of that lane."""
    evidence = good(summaries={}, untested={"panel": "wheel 1.2 is not in the verified table"})

    (finding,) = RULES["ceiling"].judge(spec("ceiling", metric="prefill.kl_mean", excess_max=0.01), evidence, Setting())

    assert "panel: wheel 1.2 is not in the verified table" in finding.message


def test_untested_carries_the_suites_own_reason() -> None:
    """Needles that the base itself does not find: the suite ran, has no ratio, and said why."""
    evidence = good(summaries={"needle": Summary(untested=("needle: the base is at its floor at 512 tokens",))})

    (finding,) = RULES["noninferior"].judge(
        spec("noninferior", metric="needle.accuracy_ratio", margin=0.95), evidence, Setting()
    )

    assert finding.status is Status.UNTESTED
    assert "the base is at its floor" in finding.message


def test_many_errors_are_quoted_briefly() -> None:
    """A finding quotes three failures and counts the rest."""
    evidence = good(errors={"golden": [f"base: EngineTimeout {i}" for i in range(24)]})

    (finding,) = RULES["coverage"].judge(spec("coverage", suites=["golden"]), evidence, Setting())

    assert "EngineTimeout 2 (and 21 more)" in finding.message


def test_suite_restricts_where_a_metric_is_read() -> None:
    """With `suite` a metric of the same name in another suite does not count."""
    evidence = good(summaries={"one": Summary({"a.r": est(1.0, 0.01)}), "two": Summary({"a.r": est(0.5, 0.01)})})
    rule = RULES["noninferior"]

    assert (
        rule.judge(spec("noninferior", suite="two", metric="a.r", margin=0.9), evidence, Setting())[0].status
        is Status.FAIL
    )
    assert (
        rule.judge(spec("noninferior", suite="three", metric="a.r", margin=0.9), evidence, Setting())[0].status
        is Status.UNTESTED
    )


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"metrics": []}, "empty"),
        ({"metric": "noDot"}, "not a metric id"),
        ({"metric": "a.b", "metrics": ["a.c"]}, "not both"),
        ({}, "Field required"),
    ],
)
def test_metric_params_are_checked(params: dict[str, object], match: str) -> None:
    """A metric list is one or more well-formed ids, spelled one way."""
    with pytest.raises(ValidationError, match=match):
        MetricParams.model_validate(params)


@pytest.mark.parametrize(("limits", "ok"), [({}, False), ({"max": 0.0}, True), ({"max": 1, "excess_max": 1}, False)])
def test_ceiling_has_exactly_one_limit(limits: dict[str, float], ok: bool) -> None:
    """Neither none nor both; zero is a limit."""
    params = RULES["ceiling"].Params
    if ok:
        assert params.model_validate({"metric": "a.b", **limits}).limit == 0.0
    else:
        with pytest.raises(ValidationError, match="one of them"):
            params.model_validate({"metric": "a.b", **limits})


def test_error_share_is_summed_and_capped() -> None:
    """Lines add up to at most 1; a line without a total has no share."""
    assert error_share(["3 of 24 answers: EngineTimeout", "3 of 24 answers: BadAnswer"]) == 0.25
    assert error_share(["20 of 24 answers: x", "20 of 24 answers: y"]) == 1.0
    assert error_share(["base: 3 of 24 answers: EngineTimeout"]) == 0.125
    assert error_share(["3 of 0 answers: x"]) is None
    assert error_share(["3 of 24 answers: x", "candidate: EngineDied: exit 9"]) is None
    assert error_share([]) == 0.0


def test_unknown_rule_is_a_user_error() -> None:
    """The registry lists what there is."""
    from kvgate.core.registry import get

    with pytest.raises(UserError, match="ceiling"):
        get("rule", "cieling")
