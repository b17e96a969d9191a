"""What a rule found, said for somebody who does not know the metrics' ids."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.estimate import Estimate, Test
from kvgate.core.verdict import CandidateEvidence, Finding, Status
from kvgate.report.measure import Cell, cell, level_text, p_text, value_text
from kvgate.report.words import metric_title


@dataclass(frozen=True, slots=True)
class FindingView:
    """One rule's outcome.

    Attributes:
        says: what was found, in words. brief: the same without the interval.
        message: the rule's own, with its numbers to four digits and what it quotes; may be what `says` says.
        facts: short phrases: role, p value, how many would decide.
    """

    status: str
    rule: str
    says: str
    brief: str
    message: str
    facts: tuple[str, ...]
    blind_spot: str
    observed: Cell | None

    @property
    def details(self) -> tuple[str, ...]:
        """The facts, and what the rule's own message has beyond `says`."""
        rest = self.message.removeprefix(self.says).removeprefix(" | ")
        return (*self.facts, rest) if rest else self.facts


def void(why: str) -> FindingView:
    """A reason that voids the comparison, where no finding says it."""
    return FindingView("invalid", "comparison", why, why, why, (), "", None)


def finding_view(f: Finding, evidence: CandidateEvidence | None = None) -> FindingView:
    """A finding with its numbers in words; `evidence` tells whether it is an excess over the floor."""
    observed = cell(f.observed, f.metric, f.threshold) if f.observed is not None else None
    facts = ["guard: may fail, cannot block a pass" if f.role == "guard" else "deciding rule"]
    if isinstance(f.observed, Test):
        facts.append(_luck(f.observed, None if "after correction" in f.message else f.threshold))
    elif f.use == "coverage" and f.threshold is not None:
        facts.append(f"allowed: {f'{100 * f.threshold:g} %' if f.threshold else 'no'} engine failures")
    if f.decide_n is not None:
        facts.append(f"about {f.decide_n:,} documents or prompts would decide (80 % power, if the estimate is true)")
    elif f.decide_why:
        facts.append(f"what would decide: {f.decide_why}")
    brief, interval, limit = _restated(f, evidence)
    plain = f.message.split(" | ")[0]
    return FindingView(
        f.status.value,
        f.rule,
        f"{brief} ({interval}), {_against_limit(f)} {limit}" if brief else plain,
        f"{brief}, limit {limit}" if brief else plain,
        f.message,
        tuple(facts),
        f.blind_spot,
        observed,
    )


def _restated(f: Finding, evidence: CandidateEvidence | None) -> tuple[str, str, str]:
    """Name with value, interval and limit of an estimate held to a limit; "" for all else: its message is in words."""
    e = f.observed
    if not isinstance(e, Estimate) or f.threshold is None or not f.metric or e.value is None:
        return "", "", ""
    inside = f.status is Status.INCONCLUSIVE and e.hi is not None and e.hi <= f.threshold
    if f.use == "built-in" or inside:  # why is in the rule's own words, not in number and limit
        return "", "", ""
    c = cell(e, f.metric, f.threshold)
    what = f"{metric_title(f.metric)}{', over the noise floor' if _is_excess(f, evidence) else ''}"
    interval = f"{level_text(e.level)} interval {c.interval}{f': {c.why}' if c.why else ''}"
    return f"{what}: {c.text}", interval, value_text(f.threshold, e.unit, f.metric)


def _is_excess(f: Finding, evidence: CandidateEvidence | None) -> bool:
    summaries = evidence.summaries.values() if evidence is not None else ()
    return any(s.excess.get(f.metric) == f.observed for s in summaries)


def _against_limit(f: Finding) -> str:
    """Where the interval lies, as far as both ends are known."""
    e, t = f.observed, f.threshold
    if not isinstance(e, Estimate) or t is None or e.lo is None or e.hi is None:
        return "limit"
    if e.hi <= t:
        return "all of it at or below the limit of"
    return "all of it at or above the limit of" if e.lo >= t else "on both sides of the limit of"


def _luck(test: Test, alpha: float | None) -> str:
    """A p value in a sentence that is true of it: how often luck alone would give so much."""
    p = test.p
    share = "?" if p != p else "under 0.1 % of" if p < 0.001 else f"{100 * p:.2g} % of" if p < 0.995 else "all"
    counts = f"; {alpha:g} or less would be a loss" if alpha is not None else ""
    return f"{p_text(p)} (luck alone gives this or more in {share} such runs{counts})"
