"""Verdict cards: decision, the reasons for it, what changed, what was not tested, and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.core.estimate import Estimate, Test
from kvgate.core.source import NOT_TESTED
from kvgate.core.units import bytes_text, number_text
from kvgate.core.verdict import Decision, Finding, NextStep, Status, Verdict, worst
from kvgate.report.measure import Cell, cell, level_text, metric_words, value_text
from kvgate.report.model import CapacityRow, PublishedView, RunView

_ORDER = (Status.INVALID, Status.FAIL, Status.INCONCLUSIVE, Status.UNTESTED, Status.WARN, Status.PASS)
_DECIDES = {
    Decision.INVALID: {Status.INVALID},
    Decision.FAIL: {Status.FAIL},
    Decision.INCONCLUSIVE: {Status.INCONCLUSIVE, Status.UNTESTED},
    Decision.PASS: {Status.PASS},
}

#: What each decision means, for somebody who sees the page for the first time.
MEANING = {
    Decision.PASS: "Every deciding rule of the policy held, with its uncertainty counted.",
    Decision.FAIL: "At least one rule is broken by more than noise can explain.",
    Decision.INCONCLUSIVE: "The evidence does not decide. This is not a pass.",
    Decision.INVALID: "The comparison is void: what was asked for did not run, or the two sides are not comparable.",
}


@dataclass(frozen=True, slots=True)
class FindingView:
    """One rule's outcome. `facts` are short phrases: observed, limit, role, how many would decide."""

    status: str
    rule: str
    message: str
    facts: tuple[str, ...]
    blind_spot: str
    observed: Cell | None


@dataclass(frozen=True, slots=True)
class Fact:
    """A tile of the card: a name, a value with unit, and its interval or a note."""

    name: str
    value: str
    note: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class VerdictView:
    """One candidate."""

    candidate: str
    decision: Decision
    headline: str
    meaning: str
    base: str
    recipe: str
    effective: str
    tiles: tuple[Fact, ...]
    reasons: tuple[FindingView, ...]
    others: tuple[FindingView, ...]
    untested: tuple[str, ...]
    next: NextStep
    caveats: tuple[str, ...]
    #: None where it was not looked up.
    published: tuple[PublishedView, ...] | None

    @property
    def published_words(self) -> str:
        """The heading of what others say, apart from what was measured here."""
        n = len(self.published or ())
        said = f"{n} claim{'s' if n != 1 else ''}" if n else NOT_TESTED
        return f"Published elsewhere, not measured here: {said}"


def overall(view: RunView) -> Decision:
    """The decision that sets the exit code."""
    return worst([v.decision for v in view.verdicts])


def verdict_views(view: RunView) -> list[VerdictView]:
    """One card per candidate, in the order they were asked for."""
    return [_card(view, v) for v in view.verdicts]


def capacity_of(view: RunView, recipe: str, effective: str) -> CapacityRow | None:
    """The capacity row of a recipe."""
    rows = [r for r in view.capacity if r.recipe == recipe] or [r for r in view.capacity if r.effective == effective]
    return rows[0] if rows else None


def _card(view: RunView, v: Verdict) -> VerdictView:
    evidence, arm = view.evidence.get(v.candidate), view.arm(v.candidate)
    recipe = arm.recipe if arm else evidence.recipe if evidence else v.candidate
    effective = arm.effective if arm else evidence.effective if evidence else recipe
    findings = sorted(v.findings, key=_rank)
    deciding = _DECIDES[v.decision]
    reasons = [finding_view(f) for f in findings if f.status in deciding]
    if v.decision is Decision.INVALID and evidence is not None:
        said = " ".join(f.message for f in v.findings)
        reasons += [_void(why) for why in evidence.invalid if why not in said]
    return VerdictView(
        v.candidate,
        v.decision,
        v.headline(),
        MEANING[v.decision],
        view.base.recipe if view.base else "?",
        recipe,
        effective,
        tuple(_tiles(view, v.candidate, recipe, effective)),
        tuple(reasons),
        tuple(finding_view(f) for f in findings if f.status not in deciding),
        v.untested,
        v.next,
        tuple(c for c in v.caveats if c not in view.caveats),
        tuple(view.published[v.candidate]) if v.candidate in view.published else None,
    )


def _rank(f: Finding) -> tuple[int, bool, bool, bool]:
    """Worst first, deciding before guards, and what was measured on the candidate before what made it comparable."""
    return (_ORDER.index(f.status), f.role != "decide", f.use == "built-in", not f.metric)


def _void(why: str) -> FindingView:
    return FindingView("invalid", "comparison", why, (), "", None)


def finding_view(f: Finding) -> FindingView:
    """A finding with its numbers in words."""
    facts = []
    observed = cell(f.observed, f.metric) if f.observed is not None else None
    if observed is not None:
        level = f"{level_text(f.observed.level)} " if isinstance(f.observed, Estimate) else ""
        spread = f" ({level}interval {observed.interval})" if level and observed.interval else ""
        facts.append(f"{metric_words(f.metric) or 'observed'}: {observed.text}{spread}")
    if f.threshold is not None:
        unit = f.observed.unit if isinstance(f.observed, Estimate) else ""
        name = "alpha" if isinstance(f.observed, Test) else "limit"
        facts.append(f"{name} {value_text(f.threshold, unit, f.metric if name == 'limit' else '')}")
    if f.decide_n is not None:
        facts.append(f"{f.decide_n:,} independent units would decide at 80 % power, if the estimate is true")
    elif f.decide_why:
        facts.append(f"no number would decide: {f.decide_why}")
    facts.append("guard: may fail, cannot block a pass" if f.role == "guard" else "deciding rule")
    return FindingView(f.status.value, f.rule, f.message, tuple(facts), f.blind_spot, observed)


def _tiles(view: RunView, candidate: str, recipe: str, effective: str) -> list[Fact]:
    tiles = []
    row = capacity_of(view, recipe, effective)
    if row is not None:
        note = f"{number_text(row.ratio)} × the base's tokens in the same memory"
        tiles.append(Fact("Bytes per token", bytes_text(row.bytes_per_token), note))
    evidence = view.evidence.get(candidate)
    if evidence is None:
        return tiles
    metrics = {m: (s, e) for s in evidence.summaries.values() for m, e in s.metrics.items()}
    for metric, name in _TILE_METRICS:
        found = metrics.get(metric)
        if found is None:
            continue
        summary, measure = found
        c = cell(measure, metric)
        excess = summary.excess.get(metric)
        note = c.interval
        if excess is not None:
            x = cell(excess, metric)
            note = f"over the floor: {x.text}" + (f" ({x.interval})" if x.interval else "")
        elif metric == "golden.confirmed_breaks" and "golden.net_breaks" in summary.metrics:
            note = f"prompts; net of repairs {cell(summary.metrics['golden.net_breaks']).text}"
        elif isinstance(measure, Estimate) and measure.method != "count":
            note = f"{level_text(measure.level)} interval {c.interval}" if c.interval else c.why
        tiles.append(Fact(name, c.text, note, c.title))
    return tiles


_TILE_METRICS: Sequence[tuple[str, str]] = (
    ("prefill.kl_mean", "Mean KL, prefill"),
    ("decode.kl_mean", "Mean KL, decode"),
    ("prefill.top1_flip_rate", "Top token flips"),
    ("golden.confirmed_breaks", "Confirmed breaks"),
    ("needle.accuracy", "Needles found"),
)
