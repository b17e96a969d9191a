"""The decision: every row of the table, what always makes a comparison void, and the mutants that must not survive."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from evidence_cases import CONFIRMED, est, fidelity, golden, good, needle, with_suite

from kvgate.core.deployment import Engaged, Engagement, FieldDelta, Sameness
from kvgate.core.estimate import Estimate
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence, Decision, Finding, Status, worst
from kvgate.gate.policy import Floor, Policy, load_policy, parse_policy
from kvgate.gate.verdict import decide, judge
from kvgate.stats.paired import mcnemar

SMOKE, DEFAULT, STRICT = (load_policy(name) for name in ("smoke", "default", "strict"))


def finding(status: Status, role: str) -> Finding:
    return Finding("r", "ceiling", role, status, "m")


def by_the_table(rows: list[tuple[Status, str]], quality: bool) -> Decision:
    """The rule of the contract, written once more in its own words."""
    statuses = [s for s, _ in rows]
    if Status.INVALID in statuses:
        return Decision.INVALID
    if Status.FAIL in statuses:
        return Decision.FAIL
    if {(Status.INCONCLUSIVE, "decide"), (Status.UNTESTED, "decide")} & set(rows):
        return Decision.INCONCLUSIVE
    return Decision.PASS if quality else Decision.INCONCLUSIVE


def test_every_row_of_the_decision_table() -> None:
    """All combinations of up to three findings of any status and role."""
    kinds = list(itertools.product(Status, ("decide", "guard")))

    for n in range(4):
        for rows in itertools.combinations_with_replacement(kinds, n):
            for quality in (True, False):
                got = decide([finding(s, r) for s, r in rows], quality=quality)
                assert got is by_the_table(list(rows), quality), rows


@pytest.mark.parametrize(
    ("evidence", "policy", "decision", "code"),
    [
        (good(), SMOKE, Decision.PASS, 0),
        (good(), DEFAULT, Decision.PASS, 0),
        (good(), STRICT, Decision.PASS, 0),
        (with_suite(good(), fidelity=fidelity(0.05, 0.015)), SMOKE, Decision.FAIL, 1),
        (with_suite(good(), fidelity=fidelity(0.05, 0.015)), DEFAULT, Decision.FAIL, 1),
        (with_suite(good(), fidelity=fidelity(0.007, 0.002)), DEFAULT, Decision.PASS, 0),
        (with_suite(good(), fidelity=fidelity(0.007, 0.001)), STRICT, Decision.FAIL, 1),
        (with_suite(good(), fidelity=fidelity(0.009, 0.003)), DEFAULT, Decision.INCONCLUSIVE, 3),
        (with_suite(good(), golden=golden(breaks=5)), DEFAULT, Decision.FAIL, 1),
        (with_suite(good(), golden=golden(breaks=5)), SMOKE, Decision.FAIL, 1),  # a guard may fail
        (with_suite(good(), golden=golden(breaks=1)), DEFAULT, Decision.INCONCLUSIVE, 3),
        (with_suite(good(), golden=golden(breaks=1)), SMOKE, Decision.PASS, 0),  # a guard does not block
        (with_suite(good(), golden=golden(breaks=1, critical=1)), SMOKE, Decision.FAIL, 1),
        (with_suite(good(), needle=needle(0.97, 0.05)), DEFAULT, Decision.INCONCLUSIVE, 3),
        (with_suite(good(), needle=needle(0.97, 0.05)), SMOKE, Decision.PASS, 0),
        (with_suite(good(), needle=needle(0.80, 0.05)), DEFAULT, Decision.FAIL, 1),
        (with_suite(good(), needle=needle(losses=6)), SMOKE, Decision.FAIL, 1),
        (good(invalid=("the engine died while loading",)), SMOKE, Decision.INVALID, 4),
        (good(engaged={"panel": Engaged(Engagement.CONTRADICTED, "log says f16")}), SMOKE, Decision.INVALID, 4),
        (good(engaged={"panel": Engaged(Engagement.UNOBSERVED, "no log")}), SMOKE, Decision.INCONCLUSIVE, 3),
        (good(errors={"fidelity": ["1 of 12 answers: EngineDied"]}), SMOKE, Decision.INCONCLUSIVE, 3),
        (good(summaries={}), SMOKE, Decision.INCONCLUSIVE, 3),
        (good(summaries={}, engaged={}), DEFAULT, Decision.INCONCLUSIVE, 3),
    ],
)
def test_decisions_and_exit_codes(evidence: CandidateEvidence, policy: Policy, decision: Decision, code: int) -> None:
    """Each kind of evidence under the shipped policies gives its decision and its exit code."""
    verdict = judge(evidence, policy)

    assert (verdict.decision, verdict.decision.exit_code) == (decision, code), verdict.findings


def test_the_worst_candidate_sets_the_exit_code() -> None:
    """INVALID outranks FAIL outranks INCONCLUSIVE outranks PASS; no candidate at all is INVALID."""
    order = [Decision.PASS, Decision.INCONCLUSIVE, Decision.FAIL, Decision.INVALID]

    for i, a in enumerate(order):
        for j, b in enumerate(order):
            assert worst([a, b]) is order[max(i, j)]
    assert [d.exit_code for d in order] == [0, 3, 1, 4]
    assert worst([]).exit_code == 4


def test_q8_0_and_q4_0_as_seen_on_the_demo_model() -> None:
    """Smoke sizes: q8_0 (mean excess 0.0005, p99 0.003) passes, q4_0 (0.048, 0.3) fails, f16 again passes."""
    q8_0 = judge(with_suite(good(), fidelity=fidelity(0.0005, 0.0004)), SMOKE)
    q4_0 = judge(with_suite(good(recipe="q4_0"), fidelity=fidelity(0.048, 0.02)), SMOKE)
    below_floor = judge(with_suite(good(), fidelity=fidelity(-0.004, 0.001)), SMOKE)

    assert q8_0.headline() == "PASS (smoke: not a ship decision)"
    assert q4_0.headline() == "FAIL"
    assert below_floor.decision is Decision.PASS


@pytest.mark.parametrize("policy", [SMOKE, DEFAULT, STRICT, Policy(name="empty")], ids=lambda p: p.name)
def test_an_undeclared_difference_is_invalid_and_named(policy: Policy) -> None:
    """A differing identity field voids the comparison under every policy, with the field and both values."""
    delta = FieldDelta("flash_attention", Sameness.DIFFERS, "on", "off")

    verdict = judge(good(deltas={"serving": [delta]}), policy)

    assert verdict.decision is Decision.INVALID
    assert any("flash_attention ('on' and 'off')" in f.message for f in verdict.findings)


def test_an_unknown_field_is_untested_not_invalid() -> None:
    """What nobody could read is listed with its place and does not void the comparison."""
    deltas = [FieldDelta("device", Sameness.UNKNOWN, None, None), FieldDelta("threads", Sameness.SAME, 2, 2)]

    verdict = judge(good(deltas={"serving": deltas}), DEFAULT)

    assert verdict.decision is Decision.PASS
    assert "serving: not known to be equal between the arms: device" in verdict.untested


def test_contradiction_is_invalid_without_an_engaged_rule() -> None:
    """A policy cannot leave the check of engagement out."""
    policy = parse_policy('schema = "kvgate.policy/1"\nname = "x"\n', "x")
    contradicted = {"panel": Engaged(Engagement.CONTRADICTED, "log says f16", ("K (f16)",))}

    verdict = judge(good(engaged=contradicted), policy)

    assert verdict.decision is Decision.INVALID
    assert any("K (f16)" in f.message for f in verdict.findings)


def test_no_rules_and_no_quality_rules_never_pass() -> None:
    """An empty policy, or one that only asks whether something ran, decides nothing and says so."""
    only_ran = parse_policy(
        'schema = "kvgate.policy/1"\nname = "x"\n[[rule]]\nid = "e"\nuse = "engaged"\n'
        '[[rule]]\nid = "c"\nuse = "coverage"\nsuites = ["golden"]\n',
        "x",
    )

    for policy, why in ((Policy(name="empty"), "has no rules"), (only_ran, "looks at the candidate's answers")):
        verdict = judge(good(), policy)
        assert verdict.decision is Decision.INCONCLUSIVE
        assert any(why in f.message for f in verdict.findings)


def test_guards_alone_never_pass() -> None:
    """All rules guards, all passing: nothing was decided."""
    policy = parse_policy(
        'schema = "kvgate.policy/1"\nname = "x"\n[[rule]]\nid = "b"\nuse = "breaks"\nrole = "guard"\n', "x"
    )

    assert judge(good(), policy).decision is Decision.INCONCLUSIVE


def test_noisy_base_is_inconclusive_never_pass() -> None:
    """A floor over the policy's limit takes the PASS away, although every excess is small; at the limit it stays."""
    noisy = with_suite(good(), fidelity=fidelity(0.0005, 0.0003, floor=0.0101))
    at_limit = with_suite(good(), fidelity=fidelity(0.0005, 0.0003, floor=0.01))

    verdict = judge(noisy, SMOKE)

    assert verdict.decision is Decision.INCONCLUSIVE
    assert any("too noisy to judge" in f.message and "ubatch32" in f.message for f in verdict.findings)
    assert judge(at_limit, SMOKE).decision is Decision.PASS


def test_noisy_base_does_not_hide_a_fail() -> None:
    """An excess clearly over its limit still fails."""
    assert judge(with_suite(good(), fidelity=fidelity(0.05, 0.01, floor=0.02)), SMOKE).decision is Decision.FAIL


def test_unmeasured_floor_is_inconclusive() -> None:
    """A policy that limits the floor cannot pass without one."""
    whole = fidelity()
    no_floor = Summary(whole.metrics, whole.excess, {})

    verdict = judge(with_suite(good(), fidelity=no_floor), SMOKE)

    assert verdict.decision is Decision.INCONCLUSIVE
    assert any("base's own noise is not known" in f.message for f in verdict.findings if f.status is Status.UNTESTED)


def test_missing_floor_arm_is_untested_and_does_not_block() -> None:
    """A floor arm of the policy that did not run is named; the others still serve."""
    policy = SMOKE.model_copy(update={"floor": Floor(arms=("restart", "slots"), max=SMOKE.floor.max)})

    verdict = judge(good(), policy)

    assert verdict.decision is Decision.PASS
    assert any("floor arm slots did not run" in f.message for f in verdict.findings if f.status is Status.UNTESTED)


def test_detect_rules_of_one_candidate_share_the_error() -> None:
    """p = 0.03 fails alone and not beside another test; Holm spans rules, not only the metrics of one rule."""
    head = 'schema = "kvgate.policy/1"\nname = "x"\n'
    table = '[[rule]]\nid = "{0}"\nuse = "detect"\nmetric = "{0}.t"\n'
    from kvgate.core.estimate import Test

    tests = {"a.t": Test(5, 0.03, "greater", "m", 5), "b.t": Test(0, 0.9, "greater", "m", 5)}
    evidence = good(summaries={"s": Summary(tests)})
    one, two = parse_policy(head + table.format("a"), "x"), parse_policy(head + "".join(map(table.format, "ab")), "x")

    assert judge(evidence, one).decision is Decision.FAIL
    assert judge(evidence, two).decision is Decision.PASS


BLIND = 'schema = "kvgate.policy/1"\nname = "x"\n[[rule]]\nid = "l"\nuse = "detect"\nmetric = "needle.net_losses"\n'


@pytest.mark.parametrize(
    ("found", "status", "decision"),
    [(4, Status.UNTESTED, Decision.INCONCLUSIVE), (5, Status.PASS, Decision.PASS)],
)
def test_a_test_that_could_not_fail_is_no_evidence(found: int, status: Status, decision: Decision) -> None:
    """All of four needles lost is p = 0.0625: such a rule is untested and passes nothing; with five it may decide."""
    evidence = good(summaries={"needle": Summary({"needle.net_losses": mcnemar(0, 0, could_break=found)})})

    verdict = judge(evidence, parse_policy(BLIND, "x"))

    assert (verdict.findings[-1].status, verdict.decision) == (status, decision)
    if status is Status.UNTESTED:
        assert "blind at these sizes: the worst that could happen gives p = 0.0625" in verdict.findings[-1].message


def test_a_blind_guard_is_not_called_ok_and_blocks_nothing() -> None:
    """Smoke's four needles: the guard says that it is blind, and smoke still passes on what decides there."""
    metrics = dict(needle().metrics) | {"needle.net_losses": mcnemar(0, 0, could_break=4)}
    verdict = judge(with_suite(good(), needle=replace(needle(), metrics=metrics)), SMOKE)

    assert verdict.decision is Decision.PASS
    assert [f.status for f in verdict.findings if f.rule == "needle-losses"] == [Status.UNTESTED]


@pytest.mark.parametrize(("critical", "said"), [(0, True), (1, False)])
def test_breaks_of_too_few_prompts_to_fail_on_say_so(critical: int, said: bool) -> None:
    """Four of four broken would be p = 0.0625, no FAIL; one prompt tagged critical is enough for one."""
    metrics = dict(golden(prompts=4).metrics) | {
        "golden.net_breaks": mcnemar(0, 0, could_break=4),
        "golden.critical_breaks": Estimate(0.0, 0.0, 0.0, 0.9, critical, critical, "prompts", "count"),
    }
    verdict = judge(with_suite(good(), golden=replace(golden(), metrics=metrics)), SMOKE)
    (found,) = (f for f in verdict.findings if f.rule == "golden-breaks")

    assert found.status is Status.PASS and ("too few to fail on" in found.message) is said


def test_a_suite_that_measured_nothing_is_not_covered() -> None:
    """That it ran is no result: coverage is untested, with the suite's reason, and blocks."""
    empty = Summary(untested=("the base has no positions",))
    verdict = judge(with_suite(good(), fidelity=empty), SMOKE)
    (found,) = (f for f in verdict.findings if f.rule == "coverage")

    assert found.status is Status.UNTESTED and "measured nothing: the base has no positions" in found.message
    assert verdict.decision is Decision.INCONCLUSIVE


def test_a_gap_is_said_once() -> None:
    """What a finding says it did not test is not listed again; the reasons of both alternatives stand in it."""
    policy = 'schema = "kvgate.policy/1"\nname = "x"\n[[rule]]\nid = "k"\nuse = "ceiling"\nexcess_max = 1.0\n'
    policy += 'metric = "prefill.kl_mean|topk_prefill.kl_mean"\n'
    topk = Summary({"topk_decode.kl_mean": est(0.0)}, untested=("no prompt_logprobs in the answer",))
    evidence = good(summaries={"topk": topk}, untested={"fidelity": "no panel", "long contexts": "no more was run"})

    verdict = judge(evidence, parse_policy(policy, "x"))

    said = "prefill.kl_mean was not measured (fidelity: no panel; topk: no prompt_logprobs in the answer)"
    assert [f.message for f in verdict.findings] == [said]
    assert verdict.untested == ("long contexts: no more was run",)


def test_untested_lists_everything_once() -> None:
    """Suites that did not run, blind spots of guards and suites, and reasons of suites, each one time."""
    evidence = good(untested={"decode": "no such lane"})

    verdict = judge(evidence, SMOKE)

    assert "decode: no such lane" in verdict.untested
    assert any("golden-breaks (guard): golden: 24 prompts" in line for line in verdict.untested)
    assert len(verdict.untested) == len(set(verdict.untested))
    assert sum("12 % break rate" in line for line in verdict.untested) == 1
    assert not any("golden: golden:" in line for line in judge(evidence, DEFAULT).untested)


def test_caveats_and_loud_changes_pass_through() -> None:
    """What the campaign warns of, and a changed kernel, reach the verdict."""
    verdict = judge(good(loud=("attention backend: FLASHINFER instead of FLASH_ATTN",)), DEFAULT)

    assert verdict.caveats[0].startswith("a 135M model")
    assert verdict.caveats[1].startswith("attention backend")


def test_verdict_is_json_and_deterministic() -> None:
    """The same evidence and policy give the same JSON, with the digest of the policy."""
    import json

    one, two = (json.dumps(judge(good(), DEFAULT).to_json(), allow_nan=False) for _ in range(2))

    assert one == two
    assert DEFAULT.digest() in one


def test_eval_01_invalid_answers_are_no_ship_and_not_a_matter_of_calibration() -> None:
    """NVFP4 KV answers mostly empty: FAIL on structural breaks, cause engine or kernel (real case eval-01).

    Exact counts from the published shares: FP8 1,275 right and 9 invalid of 1,319, NVFP4 86 and 1,229, 60 and 1,252.
    """
    from kvgate.stats.binomial import two_proportions

    n, base_right, base_invalid = 1319, round(0.96664 * 1319), round(0.00682 * 1319)
    assert (base_right, base_invalid) == (1275, 9)
    policy = parse_policy(
        'schema = "kvgate.policy/1"\nname = "x"\n'
        '[[rule]]\nid = "invalid"\nuse = "detect"\nmetric = "tasks.more_invalid"\n',
        "x",
    )
    for exact, invalid, right, broken, valid_share in (
        (0.0652, 0.93177, 86, 1229, 0.956),
        (0.04549, 0.9492, 60, 1252, 0.896),
    ):
        assert (round(exact * n), round(invalid * n)) == (right, broken)
        among_valid = right / (n - broken)
        assert round(among_valid, 3) == valid_share
        summary = Summary(
            {
                "tasks.more_invalid": two_proportions(broken, n, base_invalid, n),
                "tasks.invalid_rate": est((broken - base_invalid) / n, 0.02, unit="1"),
                "tasks.valid_accuracy_ratio": est(among_valid / (base_right / (n - base_invalid)), 0.05, unit="ratio"),
            }
        )
        verdict = judge(good(summaries={"tasks": summary}, recipe="nvfp4", engine="vllm"), policy)

        assert verdict.decision is Decision.FAIL
        assert "kernel is suspected" in verdict.next.why
        assert "Calibration will not fix it" in verdict.next.why
        assert verdict.next.recipe is None


def test_confirmed_engagement_is_needed_at_every_place() -> None:
    """One confirmed place does not vouch for another."""
    mixed = {"serving": CONFIRMED, "panel": Engaged(Engagement.BEHAVIOURAL, "KL over the floor")}

    assert judge(good(engaged=mixed), SMOKE).decision is Decision.INCONCLUSIVE
