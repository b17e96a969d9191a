"""Conformance of a suite: deterministic cases, and the proof that it catches what it says and passes an A/A pair."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvgate.core.engine import Driver, Lane, Tokens
from kvgate.core.estimate import Estimate, Test
from kvgate.core.metric import parse_metric
from kvgate.core.observation import Case, Records
from kvgate.core.registry import get
from kvgate.core.suite import Fault, Suite, SuiteContext, Summary
from kvgate.testing import _campaign as campaign
from kvgate.testing._need import need

#: Noise of an A/A pair of servers: a few answers in a hundred, in bursts, heavy-tailed, growing over the run.
SERVING_NOISE: Mapping[str, Any] = {
    "noise_rate": 0.03,
    "noise_clustered": 0.7,
    "noise_tail": 1.2,
    "noise_drift": 0.05,
}
#: Upper tail of the count of false alarms that is still chance: a right suite fails the check once in a thousand runs.
_CHANCE = 1e-3


@dataclass
class SuiteReport:
    """What was seen, for a plug-in's own tests."""

    cases: Sequence[Case] = ()
    planted: Summary | None = None
    clean: list[Summary] = field(default_factory=list)
    false_alarms: int = 0
    checks: list[str] = field(default_factory=list)


async def check_suite(
    suite: Suite,
    *,
    preset: str = "default",
    context_tokens: int = 4096,
    files: Mapping[str, Path] | None = None,
    seed: int = 0,
    pairs: int = 20,
    alpha: float = 0.05,
) -> SuiteReport:
    """Hold `suite` to its contract, over the fake engine.

    The suite's planted defect must show in its metric against a clean base; `pairs` A/A pairs under noise may show it
    no more often than chance allows at rate `alpha`.

    Args:
        preset: sizes to run with. pairs: independent A/A pairs.

    Raises:
        AssertionError: what is wrong, in one sentence.
    """
    report = SuiteReport()
    _check_statics(suite, report)
    ctx = _context(suite, preset, context_tokens, files or {}, seed)
    report.cases = _check_cases(suite, ctx, report)
    fault = suite.planted_defect()
    parse_metric(fault.metric)
    driver: Driver = get("engine", "fake")
    if Lane.PANEL in suite.needs:
        _check_panel(suite, driver, fault, report, pairs, alpha)
    else:
        await _check_serving(suite, driver, fault, report, ctx, pairs, alpha)
    return report


def _check_statics(suite: Suite, report: SuiteReport) -> None:
    need(suite.name.isidentifier() and suite.name.islower(), f"suite name {suite.name!r} is not lower_case")
    need(suite.version >= 1 and suite.scorer_version >= 1, f"{suite.name}: versions start at 1")
    need(suite.needs and all(isinstance(n, Lane) for n in suite.needs), f"{suite.name}: needs is no set of lanes")
    presets = suite.presets()
    for name in ("smoke", "default"):
        need(name in presets, f"{suite.name}: no preset {name!r}")
    for name, params in presets.items():
        need(isinstance(params, suite.Params), f"{suite.name}: preset {name!r} is no instance of Params")
        again = suite.Params.model_validate(params.model_dump(mode="json"))
        need(again == params, f"{suite.name}: preset {name!r} does not survive JSON")
    need(suite.Params.model_config.get("extra") == "forbid", f"{suite.name}: Params must forbid unknown fields")
    report.checks.append("presets are valid")


def _context(suite: Suite, preset: str, context_tokens: int, files: Mapping[str, Path], seed: int) -> SuiteContext:
    from kvgate.engines._fake_tokens import encode

    def tokenize(text: str) -> Tokens:
        return Tokens(tuple(encode(text)))

    return SuiteContext(suite.presets()[preset], seed, tokenize, context_tokens, files)


def _check_cases(suite: Suite, ctx: SuiteContext, report: SuiteReport) -> Sequence[Case]:
    cases, again = list(suite.cases(ctx)), list(suite.cases(ctx))
    need(cases, f"{suite.name}: no cases")
    need(cases == again, f"{suite.name}: two calls of cases() with one context differ")
    ids = [c.id for c in cases]
    need(len(set(ids)) == len(ids), f"{suite.name}: case ids are not unique")
    for case in cases:
        need(case.suite == suite.name, f"{suite.name}: a case says it belongs to {case.suite!r}")
        need(case.cluster, f"{suite.name}: case {case.id} has no cluster")
        stored = json.loads(json.dumps(case.body))
        made = Case.make(suite.name, cluster=case.cluster, body=stored, bucket=case.bucket, category=case.category)
        need(made.id == case.id, f"{suite.name}: case {case.id} is not named by its content, or its body is no JSON")
    cost = suite.cost(cases, ctx.params)
    need(cost.cases == len(cases), f"{suite.name}: cost() counts {cost.cases} of {len(cases)} cases")
    need(cost.prefill_tokens + cost.decode_tokens > 0, f"{suite.name}: cost() says that nothing is computed")
    report.checks.append("cases are deterministic and named by content")
    return cases


async def _check_serving(
    suite: Suite,
    driver: Driver,
    fault: Fault,
    report: SuiteReport,
    ctx: SuiteContext,
    pairs: int,
    alpha: float,
) -> None:
    clean = dict(fault.clean)
    scripts = {
        campaign.BASE: clean,
        "restart": clean,
        "planted": clean | dict(fault.script),
    }
    async with campaign.Servers(driver, scripts, ctx.context_tokens) as servers:
        records = await campaign.serve(
            suite, report.cases, servers.sessions, floors=("restart",), candidate="planted", seed=ctx.seed
        )
        _check_planted(suite, fault, records, report, alpha)
    noisy = {**SERVING_NOISE, **clean}
    scripts = {arm: noisy | {"noise_seed": i} for i, arm in enumerate((campaign.BASE, "restart", "same"), start=1)}
    async with campaign.Servers(driver, scripts, ctx.context_tokens) as servers:
        for _ in range(pairs):
            # The same servers go on: their noise is drawn by request number, so each round is another pair.
            records = await campaign.serve(
                suite, report.cases, servers.sessions, floors=("restart",), candidate="same", seed=ctx.seed
            )
            report.clean.append(suite.summarise(records.pair_with("same")))
    _check_false_alarms(suite, fault, report, alpha)


def _check_panel(suite: Suite, driver: Driver, fault: Fault, report: SuiteReport, pairs: int, alpha: float) -> None:
    clean = dict(fault.clean)
    floors: Mapping[str, Mapping[str, Any]] = {"twin": {}, "ubatch32": {"ubatch_tokens": 32}}
    base: dict[str, Mapping[str, Any]] = dict.fromkeys((campaign.BASE, *floors), clean)
    records = campaign.panel(
        suite, report.cases, driver, base | {"planted": clean | dict(fault.script)}, floors=floors, candidate="planted"
    )
    _check_planted(suite, fault, records, report, alpha)
    for i in range(pairs):
        # Another seed is another model and other noise: an independent pair.
        scripts = dict.fromkeys((*base, "same"), clean | {"seed": i + 1})
        records = campaign.panel(suite, report.cases, driver, scripts, floors=floors, candidate="same")
        report.clean.append(suite.summarise(records.pair_with("same")))
    _check_false_alarms(suite, fault, report, alpha)


def _check_planted(suite: Suite, fault: Fault, records: Records, report: SuiteReport, alpha: float) -> None:
    summary = report.planted = suite.summarise(records.pair_with("planted"))
    again = suite.summarise(records.pair_with("planted"))
    need(summary == again, f"{suite.name}: summarise is not deterministic in its records")
    for metric in (*summary.metrics, *summary.excess):
        parse_metric(metric)
    name = fault.metric
    need(name in summary.metrics, f"{suite.name}: the planted metric {name} is not summarised")
    said = summary.excess.get(name, summary.metrics[name])
    need(side(summary, name, alpha), f"{suite.name}: the planted defect {dict(fault.script)} goes unseen: {said}")
    report.checks.append("the planted defect is caught")


def _check_false_alarms(suite: Suite, fault: Fault, report: SuiteReport, alpha: float) -> None:
    from scipy.stats import binom

    # Only the side on which the planted defect lies is an alarm: an excess over the *largest* floor is often below 0.
    alarm = side(report.planted, fault.metric, alpha) if report.planted is not None else 0
    report.false_alarms = sum(side(s, fault.metric, alpha) == alarm for s in report.clean)
    n = len(report.clean)
    allowed = int(binom.ppf(1 - _CHANCE, n, alpha)) if n else 0
    found = f"{report.false_alarms} of {n} A/A pairs show {fault.metric}"
    need(report.false_alarms <= allowed, f"{suite.name}: {found}; at rate {alpha:g} at most {allowed} may")
    report.checks.append(f"{n} A/A pairs: {report.false_alarms} false alarms, {allowed} allowed")


def side(summary: Summary, metric: str, alpha: float) -> int:
    """On which side a metric says that the candidate is not the base: +1 above, -1 below, 0 says nothing.

    A test speaks by its p value. An estimate speaks by its excess over the floor arms where the suite gives one (an
    interval without 0), else by an interval without any floor arm's own value. An unbounded end says nothing.
    """
    own = summary.metrics.get(metric)
    if isinstance(own, Test):
        return int(own.p < alpha)
    excess = summary.excess.get(metric)
    if excess is not None:
        return _side_of(excess, [0.0])
    floors = [m.value for arm in summary.floor.values() if isinstance(m := arm.get(metric), Estimate)]
    known = [v for v in floors if v is not None]
    return _side_of(own, known) if own is not None and known else 0


def _side_of(e: Estimate, values: Sequence[float]) -> int:
    if e.lo is not None and e.lo > max(values):
        return 1
    return -1 if e.hi is not None and e.hi < min(values) else 0
