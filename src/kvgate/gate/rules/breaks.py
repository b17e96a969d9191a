"""breaks: confirmed structural breaks of golden prompts.

FAIL on a break of a prompt tagged critical, or on net breaks by one-sided exact McNemar at alpha. Any other confirmed
break is INCONCLUSIVE, with the number of prompts that would decide. PASS needs none, or no more prompts that broke in
their first run than on a floor arm: what the base does to itself is not held against a candidate. Both are counts of
single runs; a floor's breaks are not rerun.

It does not join the detect family: a confirmed break has already survived clean floor arms and reruns, so its chance
of being noise is far below the pair-wise coin that McNemar assumes.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from kvgate.core.estimate import Estimate, Measure, Test
from kvgate.core.suite import Summary
from kvgate.core.units import number_text
from kvgate.core.verdict import CandidateEvidence, Finding, Status
from kvgate.gate.rule import BaseRule, Example, RuleParams, RuleSpec, Setting, blind_spot, find, untested
from kvgate.stats.paired import mcnemar
from kvgate.stats.power import prompts_to_decide


class Params(RuleParams):
    """`prefix`: the suite's metric prefix; reads PREFIX.net_breaks and its counts of breaks."""

    prefix: str = Field(default="golden", pattern=r"^[a-z0-9_]+$")


def _example(
    what: str,
    breaks: int,
    repairs: int,
    critical: int,
    status: Status,
    prompts: int = 24,
    floor: int = 0,
    once: int = 0,
    undecided: int = 0,
) -> Example:
    def count(x: int) -> Estimate:
        return Estimate(x, None, None, 0.90, prompts, prompts, "prompts", "count", "a count")

    metrics: dict[str, Measure] = {
        "golden.net_breaks": mcnemar(breaks, repairs),
        "golden.confirmed_breaks": count(breaks),
        "golden.critical_breaks": count(critical),
        "golden.unconfirmed_breaks": count(once),
        "golden.undecided_breaks": count(undecided),
    }
    floors = {"batch": {"golden.confirmed_breaks": count(floor)}, "restart": {"golden.confirmed_breaks": count(0)}}
    evidence = CandidateEvidence("c", "q8_0", "q8_0", {}, summaries={"golden": Summary(metrics=metrics, floor=floors)})
    return Example(what, {}, evidence, (status,))


class Breaks(BaseRule):
    """Critical or significant: FAIL; any other confirmed break: INCONCLUSIVE; none beyond the floor's: PASS."""

    name = "breaks"
    Params = Params
    examples = (
        _example("no break", 0, 0, 0, Status.PASS),
        _example("repairs alone are no break", 0, 3, 0, Status.PASS),
        _example("one break", 1, 0, 0, Status.INCONCLUSIVE),
        _example("4 of 0 is p = 0.0625", 4, 0, 0, Status.INCONCLUSIVE),
        _example("5 of 0 is p = 0.031", 5, 0, 0, Status.FAIL),
        _example("as many repairs as breaks", 6, 6, 0, Status.INCONCLUSIVE),
        _example("one break of a critical prompt", 1, 0, 1, Status.FAIL),
        _example("one break where a floor arm has four", 1, 9, 0, Status.PASS, floor=4),
        _example("as many as a floor arm, one of them on its prompt", 3, 0, 0, Status.PASS, floor=4, once=1),
        _example("one more than a floor arm", 3, 0, 0, Status.INCONCLUSIVE, floor=4, once=2),
        _example("undecided, whatever the floor", 0, 0, 0, Status.INCONCLUSIVE, floor=4, once=1, undecided=1),
        _example("significant, whatever the floor", 5, 0, 0, Status.FAIL, floor=5),
        _example("critical, whatever the floor", 1, 0, 1, Status.FAIL, floor=4),
        _example("no prompt was compared", 0, 0, 0, Status.UNTESTED, prompts=0),
    )

    def reads(self, spec: RuleSpec) -> tuple[str, ...]:
        return (f"{spec.params.prefix}.net_breaks",)

    def judge(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> tuple[Finding, ...]:
        return (self._one(spec, evidence, setting),)

    def _one(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> Finding:
        names = [f"{spec.params.prefix}.{x}" for x in ("net_breaks", "confirmed_breaks", "critical_breaks")]
        found = [find(spec, evidence, name) for name in names]
        for name, f in zip(names, found, strict=True):
            if f is None:
                return untested(spec, evidence, name)
        net, confirmed, critical = (f.measure for f in found if f is not None)
        first = found[0]
        summary = first.summary if first is not None else Summary()
        if not isinstance(net, Test) or not isinstance(confirmed, Estimate) or not isinstance(critical, Estimate):
            return untested(spec, evidence, names[0], "its three metrics are a test and two counts")
        if not confirmed.n or confirmed.value is None or critical.value is None:
            return untested(spec, evidence, names[1], confirmed.why or critical.why or "no prompt could show a break")
        undecided, once = (
            _count(summary.metrics, f"{spec.params.prefix}.{x}_breaks") for x in ("undecided", "unconfirmed")
        )
        noise = _as_noisy_floor(summary, names[1], round(confirmed.value) + once)
        return _decide(
            spec, setting, net, confirmed, round(critical.value), undecided, noise, summary, tagged=critical.n > 0
        )


def _count(metrics: Mapping[str, Measure], name: str) -> int:
    """A count that the suite may not have; 0 then."""
    found = metrics.get(name)
    return round(found.value or 0.0) if isinstance(found, Estimate) else 0


def _as_noisy_floor(summary: Summary, name: str, broke: int) -> str:
    """The floor arm on which as many prompts broke in one run as on the candidate, and its count; "" if none."""
    arm, most = max(((a, _count(m, name)) for a, m in summary.floor.items()), key=lambda x: x[1], default=("", 0))
    return f"{most} on {arm}" if 0 < broke <= most else ""


def _decide(
    spec: RuleSpec,
    setting: Setting,
    net: Test,
    confirmed: Estimate,
    critical: int,
    undecided: int,
    noise: str,
    summary: Summary,
    *,
    tagged: bool,
) -> Finding:
    prompts, seen = confirmed.n, round(confirmed.value or 0)
    breaks = round((net.n + net.statistic) / 2)
    repairs = net.n - breaks
    counts = f"confirmed breaks {seen}, repairs {repairs}, in {prompts} prompts"
    n, why = None, ""
    if critical > 0:
        status, message = Status.FAIL, f"{critical} of them on a prompt tagged critical"
    elif net.p <= setting.alpha:
        status, message = Status.FAIL, f"exact McNemar p = {number_text(net.p)}, alpha {setting.alpha:g}"
    elif noise and not undecided:
        status, message = Status.PASS, f"no more than the base against itself, {noise}"
    elif seen > 0:
        status, message = Status.INCONCLUSIVE, f"exact McNemar p = {number_text(net.p)} does not decide"
        n, why = prompts_to_decide(max(breaks, 0), max(repairs, 0), max(prompts, net.n), alpha=setting.alpha)
    elif undecided > 0:
        status, message = Status.INCONCLUSIVE, f"{undecided} more broke, and the reruns that would confirm them failed"
        why = "the reruns decide: find out why they failed"
    else:
        status, message = Status.PASS, "none to explain"
        if net.best_p is not None and net.best_p > setting.alpha and not tagged:
            message += f", in too few to fail on: all of them broken would give p = {number_text(net.best_p)}"
    return spec.finding(
        status,
        f"{counts}: {message}",
        metric=f"{spec.params.prefix}.net_breaks",
        observed=net,
        threshold=setting.alpha,
        decide_n=n,
        decide_why=why,
        blind_spot=blind_spot(spec, summary),
    )


RULE = Breaks()
