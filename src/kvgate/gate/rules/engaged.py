"""engaged: the engine really runs the recipe that was asked for.

A contradicted recipe is INVALID under any policy: what was measured is something else.
"""

from __future__ import annotations

from typing import ClassVar

from kvgate.core.deployment import Engaged, Engagement
from kvgate.core.verdict import CandidateEvidence, Finding, Status
from kvgate.gate.rule import BaseRule, Example, RuleParams, RuleSpec, Setting


class Params(RuleParams):
    """`accept`: levels that pass; by default only a confirmation in the engine's own words."""

    accept: tuple[Engagement, ...] = (Engagement.CONFIRMED,)


def _example(what: str, level: Engagement | None, status: Status, accept: tuple[str, ...] = ()) -> Example:
    places = {} if level is None else {"serving": Engaged(level, "example")}
    return Example(
        what, {"accept": accept} if accept else {}, CandidateEvidence("c", "q8_0", "q8_0", places), (status,)
    )


class EngagedRule(BaseRule):
    """One finding a place: accepted PASS, assumed WARN, contradicted INVALID, anything less INCONCLUSIVE."""

    name = "engaged"
    Params = Params
    quality: ClassVar[bool] = False
    examples = (
        _example("confirmed", Engagement.CONFIRMED, Status.PASS),
        _example("behavioural is less", Engagement.BEHAVIOURAL, Status.INCONCLUSIVE),
        _example("unobserved is less", Engagement.UNOBSERVED, Status.INCONCLUSIVE),
        _example("behavioural, accepted", Engagement.BEHAVIOURAL, Status.PASS, accept=("confirmed", "behavioural")),
        _example("taken on the person's word", Engagement.ASSUMED, Status.WARN),
        _example("contradicted", Engagement.CONTRADICTED, Status.INVALID),
        _example("contradicted, accepted by mistake", Engagement.CONTRADICTED, Status.INVALID, ("contradicted",)),
        _example("nobody looked", None, Status.UNTESTED),
    )

    def judge(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> tuple[Finding, ...]:
        if not evidence.engaged:
            return (spec.finding(Status.UNTESTED, "no deployment said which KV types it runs"),)
        return tuple(self._one(spec, place, seen) for place, seen in evidence.engaged.items())

    def _one(self, spec: RuleSpec, place: str, seen: Engaged) -> Finding:
        said = f"{place}: {seen.level.value}: {seen.reason}" + (f" | {seen.lines[0]}" if seen.lines else "")
        if seen.level is Engagement.CONTRADICTED:
            return spec.finding(Status.INVALID, said)
        if seen.level in spec.params.accept:
            return spec.finding(Status.PASS, said)
        if seen.level is Engagement.ASSUMED:
            return spec.finding(Status.WARN, said)
        accepted = ", ".join(level.value for level in spec.params.accept)
        return spec.finding(Status.INCONCLUSIVE, f"{said} (the policy accepts: {accepted})")


RULE = EngagedRule()
