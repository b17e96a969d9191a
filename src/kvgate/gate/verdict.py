"""From evidence to a verdict. Pure: the same evidence and policy give the same verdict.

    any invalid                                -> INVALID
    else a fail, of any role                   -> FAIL
    else a deciding rule inconclusive/untested -> INCONCLUSIVE
    else, if a deciding rule passed on quality -> PASS

A guard may FAIL a candidate but never blocks a PASS; what it cannot see is printed under `untested`. No rules, or no
evidence, is INCONCLUSIVE: silence is not a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvgate.core.deployment import Sameness
from kvgate.core.estimate import Estimate
from kvgate.core.registry import get
from kvgate.core.units import number_text
from kvgate.core.verdict import CandidateEvidence, Decision, Finding, Status, Verdict
from kvgate.gate.ladder import next_step
from kvgate.gate.policy import Policy
from kvgate.gate.rule import RuleSpec, Setting, alternatives, of_suite
from kvgate.stats.multiplicity import holm_adjusted

#: `use` of findings that every policy gets.
BUILT_IN = "built-in"


def judge(evidence: CandidateEvidence, policy: Policy) -> Verdict:
    """The verdict on one candidate."""
    findings = (
        *_void(evidence),
        *_identity(evidence),
        *_engagement(evidence, policy),
        *_floor(evidence, policy),
        *_rules(evidence, policy),
    )
    deciding = {r.id for r in policy.rules if r.role == "decide" and get("rule", r.use).quality}
    quality = any(f.status is Status.PASS and f.use != BUILT_IN and f.rule in deciding for f in findings)
    decision = decide(findings, quality=quality)
    if decision is Decision.INCONCLUSIVE and not any(_blocks(f) for f in findings):
        findings = (*findings, _nothing_decided(evidence, policy))
    return Verdict(
        candidate=evidence.candidate,
        decision=decision,
        findings=findings,
        untested=_untested(evidence, findings),
        next=next_step(evidence, findings, decision, policy),
        policy=policy.name,
        policy_digest=policy.digest(),
        records_digest=evidence.records_digest,
        caveats=(*evidence.caveats, *evidence.loud),
    )


def decide(findings: Sequence[Finding], *, quality: bool) -> Decision:
    """The decision table.

    Args:
        quality: whether a deciding rule about the candidate's answers passed.
    """
    if any(f.status is Status.INVALID for f in findings):
        return Decision.INVALID
    if any(f.status is Status.FAIL for f in findings):
        return Decision.FAIL
    if any(_blocks(f) for f in findings) or not quality:
        return Decision.INCONCLUSIVE
    return Decision.PASS


def _blocks(f: Finding) -> bool:
    return f.role == "decide" and f.status in (Status.INCONCLUSIVE, Status.UNTESTED)


def _used(policy: Policy) -> frozenset[str]:
    return frozenset(r.use for r in policy.rules)


def _void(evidence: CandidateEvidence) -> Iterator[Finding]:
    for reason in evidence.invalid:
        yield Finding("comparison", BUILT_IN, "decide", Status.INVALID, reason)


def _identity(evidence: CandidateEvidence) -> Iterator[Finding]:
    """Arms that differ in more than the recipe are not compared."""
    for place, deltas in evidence.deltas.items():
        differing = [f"{d.field} ({d.a!r} and {d.b!r})" for d in deltas if d.status is Sameness.DIFFERS]
        if differing:
            message = f"{place}: the arms differ in more than the recipe: {', '.join(differing)}"
            yield Finding("identity", BUILT_IN, "decide", Status.INVALID, message)


def _engagement(evidence: CandidateEvidence, policy: Policy) -> Iterator[Finding]:
    """A contradicted recipe is INVALID even where the policy has no engaged rule."""
    if "engaged" in _used(policy):
        return
    rule = get("rule", "engaged")
    spec = RuleSpec("engaged", "engaged", "guard", rule.Params())
    yield from (f for f in rule.judge(spec, evidence, Setting(policy.alpha)) if f.status is Status.INVALID)


def _floor(evidence: CandidateEvidence, policy: Policy) -> Iterator[Finding]:
    ran = {arm for summary in evidence.summaries.values() for arm in summary.floor}
    absent = [arm for arm in policy.floor.arms if arm not in ran]
    if absent:
        # The floor is the largest over the arms: without one it can only be too small, the excess too large.
        who = f"floor arm{'s' if absent[1:] else ''} {' and '.join(absent)}"
        message = f"{who} did not run; the floor may be understated, which is against the candidate"
        yield Finding("floor", BUILT_IN, "guard", Status.UNTESTED, message)
    for metric, limit in policy.floor.max.items():
        yield _floor_limit(evidence, metric, limit)


def _floor_limit(evidence: CandidateEvidence, metric: str, limit: float) -> Finding:
    seen: list[tuple[float, str, Estimate]] = []
    measured = {m for summary in evidence.summaries.values() for arm in summary.floor.values() for m in arm}
    chosen = next((m for m in alternatives(metric) if m in measured), alternatives(metric)[0])
    for summary in evidence.summaries.values():
        for arm, metrics in summary.floor.items():
            e = metrics.get(chosen)
            if isinstance(e, Estimate) and e.value is not None:
                seen.append((e.value, arm, e))
    metric = chosen
    if not seen:
        message = f"no floor arm measured {metric}, so the base's own noise is not known"
        return Finding("floor", BUILT_IN, "decide", Status.UNTESTED, message, metric=metric, threshold=limit)
    value, arm, e = max(seen, key=lambda s: (s[0], s[1]))
    noisy = value > limit
    message = f"the base differs from itself: {metric} {number_text(value)} between base and {arm}, " + (
        f"over {limit:g}: too noisy to judge a candidate by" if noisy else f"within {limit:g}"
    )
    status = Status.INCONCLUSIVE if noisy else Status.PASS
    why = "none would: more of the same does not make the base quieter" if noisy else ""
    return Finding(
        "floor", BUILT_IN, "decide", status, message, metric=metric, observed=e, threshold=limit, decide_why=why
    )


def _rules(evidence: CandidateEvidence, policy: Policy) -> Iterator[Finding]:
    p_values: dict[str, float] = {}
    for spec in policy.rules:
        p_values |= get("rule", spec.use).tests(spec, evidence)
    setting = Setting(policy.alpha, holm_adjusted(p_values))
    for spec in policy.rules:
        yield from get("rule", spec.use).judge(spec, evidence, setting)


def _nothing_decided(evidence: CandidateEvidence, policy: Policy) -> Finding:
    if not policy.rules:
        why = f"policy {policy.name} has no rules"
    elif not evidence.summaries:
        why = "no suite gave a result"
    else:
        why = f"no deciding rule of policy {policy.name} looks at the candidate's answers"
    return Finding("policy", BUILT_IN, "decide", Status.INCONCLUSIVE, f"{why}: nothing was decided")


def _untested(evidence: CandidateEvidence, findings: Sequence[Finding]) -> tuple[str, ...]:
    """What this verdict does not cover, each thing once; a finding that is untested says so itself, and not again."""
    lines = [f"{what}: {reason}" for what, reason in evidence.untested.items()]
    for place, deltas in evidence.deltas.items():
        unknown = [d.field for d in deltas if d.status is Sameness.UNKNOWN]
        if unknown:
            lines.append(f"{place}: not known to be equal between the arms: {', '.join(unknown)}")
    lines += [f"{f.rule} (guard): {f.blind_spot}" for f in findings if f.blind_spot and f.status is not Status.FAIL]
    said = " ".join(f.blind_spot for f in findings)
    for suite, summary in evidence.summaries.items():
        lines += [of_suite(suite, text) for text in summary.untested]
        lines += [of_suite(suite, text) for text in summary.blind_spots if text not in said]
    messages = [f.message for f in findings if f.status is Status.UNTESTED]
    return tuple(line for line in dict.fromkeys(lines) if not any(line in message for message in messages))
