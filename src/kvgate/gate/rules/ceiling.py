"""ceiling: a distance to the base must not exceed a limit.

`excess_max` limits the excess over the noise floor, `max` the distance itself (for what has no floor). A candidate is
never judged by its raw distance where the policy asks for the excess: without a floor arm the rule is untested.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from kvgate.core.estimate import Estimate
from kvgate.core.metric import metric_id
from kvgate.core.suite import Summary
from kvgate.core.units import number_text
from kvgate.core.verdict import CandidateEvidence, Finding, Status
from kvgate.gate.rule import (
    LONGER_TOPS,
    BaseRule,
    Example,
    Found,
    MetricParams,
    RuleSpec,
    Setting,
    blind_spot,
    expect_estimate,
    find,
    untested,
)
from kvgate.stats.noninferiority import judge_ceiling
from kvgate.stats.power import clusters_to_decide


class Params(MetricParams):
    """Exactly one of the two limits."""

    excess_max: float | None = None
    max: float | None = None
    #: A divergence between tops of distributions is a lower bound: it only passes where they cover so much of the base.
    covered_min: float = Field(default=0.98, gt=0.0, le=1.0)

    @model_validator(mode="after")
    def _one_limit(self) -> Params:
        if (self.excess_max is None) == (self.max is None):
            raise ValueError("give excess_max (over the floor) or max (the distance itself), one of them")
        return self

    @property
    def on_excess(self) -> bool:
        return self.excess_max is not None

    @property
    def limit(self) -> float:
        return self.excess_max if self.excess_max is not None else float(self.max or 0.0)


def _example(what: str, lo: float | None, hi: float | None, status: Status, key: str = "excess_max") -> Example:
    e = Estimate(0.05, lo, hi, 0.90, 2304, 12, "nat", "example", "" if lo is not None else "4 units")
    raw = Estimate(9.0, 8.0, 10.0, 0.90, 2304, 12, "nat", "example")
    on_excess = key == "excess_max"
    summary = Summary(metrics={"s.kl": raw if on_excess else e}, excess={"s.kl": e if on_excess else raw})
    evidence = CandidateEvidence("c", "q8_0", "q8_0", {}, summaries={"s": summary})
    return Example(what, {"metric": "s.kl", key: 0.10}, evidence, (status,))


class Ceiling(BaseRule):
    """hi <= limit PASS, lo > limit FAIL, else INCONCLUSIVE, on the two-sided interval at 1 - 2 alpha."""

    name = "ceiling"
    Params = Params
    examples = (
        _example("the upper end at the limit", 0.01, 0.10, Status.PASS),
        _example("the upper end just over it", 0.01, 0.1001, Status.INCONCLUSIVE),
        _example("the lower end at the limit", 0.10, 0.20, Status.INCONCLUSIVE),
        _example("the lower end just over it", 0.1001, 0.20, Status.FAIL),
        _example("no interval", None, None, Status.INCONCLUSIVE),
        _example("`max` reads the distance, not the excess", 0.01, 0.10, Status.PASS, "max"),
    )

    def judge(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> tuple[Finding, ...]:
        return tuple(self._one(spec, evidence, setting, metric) for metric in spec.params.metrics)

    def _one(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting, metric: str) -> Finding:
        params: Params = spec.params
        found = find(spec, evidence, metric, excess=params.on_excess)
        if found is None:
            seen = params.on_excess and find(spec, evidence, metric) is not None
            return untested(spec, evidence, metric, "its excess over a floor is not known" if seen else "")
        metric = found.metric
        e = expect_estimate(spec, metric, found.measure)
        if isinstance(e, Finding):
            return e
        status, why = judge_ceiling(e, params.limit, alpha=setting.alpha)
        n, decide_why = (None, "")
        loudest = _loudest_floor(found.summary, metric) if params.on_excess else None
        if status is Status.PASS and loudest is not None and loudest > params.limit:
            # What a base adds to itself and what a candidate adds to it cannot be told apart beyond this.
            status, why = Status.INCONCLUSIVE, f"is small, but the base differs from itself by {number_text(loudest)}"
            return spec.finding(
                status,
                f"{metric} excess over the floor {why}, more than the limit of {params.limit:g}",
                metric=metric,
                observed=e,
                threshold=params.limit,
                decide_why="a quieter base would decide",
                blind_spot=blind_spot(spec, found.summary),
            )
        if status is Status.PASS and (thin := _too_thin(found, params.covered_min)):
            return spec.finding(
                Status.INCONCLUSIVE,
                f"{metric} {why}, but {thin}",
                metric=metric,
                observed=e,
                threshold=params.limit,
                decide_why=LONGER_TOPS,
                blind_spot=blind_spot(spec, found.summary),
            )
        if status is Status.INCONCLUSIVE:
            n, decide_why = clusters_to_decide(e, params.limit, alpha=setting.alpha)
        return spec.finding(
            status,
            f"{metric}{' excess over the floor' if params.on_excess else ''} {why}",
            metric=metric,
            observed=e,
            threshold=params.limit,
            decide_n=n,
            decide_why=decide_why,
            blind_spot=blind_spot(spec, found.summary),
        )


def _too_thin(found: Found, covered_min: float) -> str:
    """Why a lower bound says too little; "" for a divergence over the whole vocabulary, or tops that cover enough."""
    covered = found.summary.metrics.get(metric_id(f"{found.metric.partition('.')[0]}.covered"))
    if not isinstance(covered, Estimate):
        return ""
    if covered.value is not None and covered.value >= covered_min:
        return ""
    seen = "an unknown share" if covered.value is None else f"{covered.value:.3f}"
    return f"the tops cover {seen} of the base's mass, under {covered_min:g}: it is only a lower bound"


def _loudest_floor(summary: Summary, metric: str) -> float | None:
    """The largest of the metric over the floor arms."""
    values = [m.value for arm in summary.floor.values() if isinstance(m := arm.get(metric), Estimate)]
    return max((v for v in values if v is not None), default=None)


RULE = Ceiling()
