"""noninferior: a ratio to the base (or any score where larger is better) must not lie under a margin."""

from __future__ import annotations

from kvgate.core.estimate import Estimate
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence, Finding, Status
from kvgate.gate.rule import (
    BaseRule,
    Example,
    MetricParams,
    RuleSpec,
    Setting,
    blind_spot,
    expect_estimate,
    find,
    untested,
)
from kvgate.stats.noninferiority import judge
from kvgate.stats.power import clusters_to_decide


class Params(MetricParams):
    """`margin`: lowest acceptable value, e.g. 0.95 for a ratio."""

    margin: float


def _example(what: str, lo: float | None, hi: float | None, status: Status) -> Example:
    e = Estimate(0.97, lo, hi, 0.90, 100, 50, "ratio", "example", "" if lo is not None else "4 units")
    evidence = CandidateEvidence("c", "q8_0", "q8_0", {}, summaries={"s": Summary(metrics={"s.ratio": e})})
    return Example(what, {"metric": "s.ratio", "margin": 0.95}, evidence, (status,))


class NonInferior(BaseRule):
    """lo >= margin PASS, hi < margin FAIL, else INCONCLUSIVE; no correction over several such rules is needed."""

    name = "noninferior"
    Params = Params
    examples = (
        _example("the lower end at the margin", 0.95, 1.0, Status.PASS),
        _example("the lower end just under it", 0.9499, 1.0, Status.INCONCLUSIVE),
        _example("the upper end at the margin", 0.90, 0.95, Status.INCONCLUSIVE),
        _example("the upper end just under it", 0.90, 0.9499, Status.FAIL),
        _example("no interval", None, None, Status.INCONCLUSIVE),
    )

    def judge(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> tuple[Finding, ...]:
        return tuple(self._one(spec, evidence, setting, metric) for metric in spec.params.metrics)

    def _one(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting, metric: str) -> Finding:
        found = find(spec, evidence, metric)
        if found is None:
            return untested(spec, evidence, metric)
        e = expect_estimate(spec, metric, found.measure)
        if isinstance(e, Finding):
            return e
        margin: float = spec.params.margin
        status, why = judge(e, margin, alpha=setting.alpha)
        n, decide_why = (None, "")
        if status is Status.INCONCLUSIVE:
            n, decide_why = clusters_to_decide(e, margin, alpha=setting.alpha)
        return spec.finding(
            status,
            f"{metric} {why}",
            metric=metric,
            observed=e,
            threshold=margin,
            decide_n=n,
            decide_why=decide_why,
            blind_spot=blind_spot(spec, found.summary),
        )


RULE = NonInferior()
