"""detect: a significant test fails the candidate. Its p values are corrected over all detect rules (Holm).

A pass means "no loss was detected", not "no loss": a guard prints what sizes like these cannot see. A test that could
not have come out significant, whatever happened, is untested: silence of the blind is no pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.core.estimate import Test
from kvgate.core.suite import Summary
from kvgate.core.units import number_text
from kvgate.core.verdict import CandidateEvidence, Finding, Status
from kvgate.gate.rule import BaseRule, Example, MetricParams, RuleSpec, Setting, blind_spot, find, untested


class Params(MetricParams):
    """Metrics whose measure is a Test."""


def _example(what: str, p: tuple[float, ...], statuses: tuple[Status, ...], best_p: float | None = None) -> Example:
    names = [f"s.test{i}" for i in range(len(p))]
    metrics = {name: Test(5.0, x, "greater", "example", 5, best_p) for name, x in zip(names, p, strict=True)}
    evidence = CandidateEvidence("c", "q8_0", "q8_0", {}, summaries={"s": Summary(metrics=metrics)})
    return Example(what, {"metrics": names}, evidence, statuses)


class Detect(BaseRule):
    """Adjusted p <= alpha FAIL, else PASS; UNTESTED where no p that was possible is <= alpha."""

    name = "detect"
    Params = Params
    examples = (
        _example("p at alpha", (0.05,), (Status.FAIL,)),
        _example("p just over alpha", (0.0501,), (Status.PASS,)),
        _example("two tests: the smaller p counts twice", (0.03, 0.9), (Status.PASS, Status.PASS)),
        _example("two tests: half of alpha rejects", (0.025, 0.9), (Status.FAIL, Status.PASS)),
        _example("the smallest possible p at alpha", (1.0,), (Status.PASS,), best_p=0.05),
        _example("the smallest possible p just over alpha", (1.0,), (Status.UNTESTED,), best_p=0.0501),
    )

    def tests(self, spec: RuleSpec, evidence: CandidateEvidence) -> Mapping[str, float]:
        found = {metric: find(spec, evidence, metric) for metric in spec.params.metrics}
        return {
            f"{spec.id}:{metric}": f.measure.p
            for metric, f in found.items()
            if f is not None and isinstance(f.measure, Test)
        }

    def judge(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> tuple[Finding, ...]:
        return tuple(self._one(spec, evidence, setting, metric) for metric in spec.params.metrics)

    def _one(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting, metric: str) -> Finding:
        found = find(spec, evidence, metric)
        if found is None:
            return untested(spec, evidence, metric)
        test = found.measure
        if not isinstance(test, Test):
            message = f"{metric} is an estimate, not a test; judge it with use = 'ceiling' or 'noninferior'"
            return spec.finding(Status.UNTESTED, message, metric=metric, observed=test)
        if test.best_p is not None and test.best_p > setting.alpha:
            message = f"{metric} is blind at these sizes: the worst that could happen gives p = "
            message += f"{number_text(test.best_p)}, over alpha {setting.alpha:g}"
            return spec.finding(Status.UNTESTED, message, metric=metric, observed=test, threshold=setting.alpha)
        p = setting.adjusted.get(f"{spec.id}:{metric}", test.p)
        significant = p <= setting.alpha
        corrected = f", {number_text(p)} after correction" if p != test.p else ""
        return spec.finding(
            Status.FAIL if significant else Status.PASS,
            f"{metric} {'shows a loss' if significant else 'shows no significant loss'}: "
            f"{test.method}, p = {number_text(test.p)}{corrected}, alpha {setting.alpha:g}",
            metric=metric,
            observed=test,
            threshold=setting.alpha,
            blind_spot=blind_spot(spec, found.summary),
        )


RULE = Detect()
