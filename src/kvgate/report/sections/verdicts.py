"""Verdict cards: decision, the reasons for it, what changed, what was not tested, and the next step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.core.estimate import Estimate, Measure, Test
from kvgate.core.source import NOT_TESTED
from kvgate.core.units import bytes_text, number_text
from kvgate.core.verdict import Decision, Finding, NextStep, Status, Verdict, worst
from kvgate.report.measure import cell, level_text
from kvgate.report.model import CapacityRow, PublishedView, RunView
from kvgate.report.sections.findings import FindingView, finding_view, void
from kvgate.report.visible import one_line

_ORDER = (Status.INVALID, Status.FAIL, Status.INCONCLUSIVE, Status.UNTESTED, Status.WARN, Status.PASS)
_DECIDES = {
    Decision.INVALID: {Status.INVALID},
    Decision.FAIL: {Status.FAIL},
    Decision.INCONCLUSIVE: {Status.INCONCLUSIVE, Status.UNTESTED},
    Decision.PASS: {Status.PASS},
}

#: Longest line of the answer on top of the page.
_SHORT = 240
#: What each decision means, for somebody who sees the page for the first time.
MEANING = {
    Decision.PASS: "Every deciding rule of the policy held, with its uncertainty counted.",
    Decision.FAIL: "At least one rule is broken by more than noise can explain.",
    Decision.INCONCLUSIVE: "The evidence does not decide. This is not a pass.",
    Decision.INVALID: "The comparison is void: what was asked for did not run, or the two sides are not comparable.",
}


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
    def why(self) -> str:
        """The first reason, and how many more there are."""
        if not self.reasons:
            return "no rule explains this decision"
        more = len(self.reasons) - 1
        return one_line(self.reasons[0].brief, _SHORT) + (
            f" – and {more} more reason{'s' if more > 1 else ''} below" if more else ""
        )

    @property
    def open(self) -> str:
        """The first thing that was not tested, and how many more there are."""
        gaps = [f.brief for f in (*self.reasons, *self.others) if f.status == Status.UNTESTED.value]
        gaps += self.untested
        if not gaps:
            return "nothing that this policy asks for"
        more = len(gaps) - 1
        return one_line(gaps[0], _SHORT) + (f" – and {more} more below" if more else "")

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
    reasons = [finding_view(f, evidence) for f in findings if f.status in deciding]
    if v.decision is Decision.INVALID and evidence is not None:
        said = " ".join(f.message for f in v.findings)
        reasons += [void(why) for why in evidence.invalid if why not in said]
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
        tuple(finding_view(f, evidence) for f in findings if f.status not in deciding),
        v.untested,
        v.next,
        tuple(c for c in v.caveats if c not in view.caveats),
        tuple(view.published[v.candidate]) if v.candidate in view.published else None,
    )


def _rank(f: Finding) -> tuple[int, bool, bool, bool]:
    """Worst first, deciding before guards, and what was measured on the candidate before what made it comparable."""
    return (_ORDER.index(f.status), f.role != "decide", f.use == "built-in", not f.metric)


def _tiles(view: RunView, candidate: str, recipe: str, effective: str) -> list[Fact]:
    tiles = []
    row = capacity_of(view, recipe, effective)
    if row is not None:
        note = f"{number_text(row.ratio)} × the base's tokens in the same memory"
        tiles.append(Fact("KV cache per token", bytes_text(row.bytes_per_token), note))
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
        elif metric == "golden.confirmed_breaks":
            note = _repaired(summary.metrics.get("golden.net_breaks"))
        elif isinstance(measure, Estimate) and measure.method != "count":
            note = f"{level_text(measure.level)} interval {c.interval}" if c.interval else c.why
        tiles.append(Fact(name, c.text, note, c.title))
    return tiles


def _repaired(net: Measure | None) -> str:
    """The other side of the breaks: 'prompts; 1 repaired'. The test's statistic is breaks minus repairs, of n."""
    repairs = round((net.n - net.statistic) / 2) if isinstance(net, Test) and math.isfinite(net.statistic) else 0
    return f"prompts; {repairs} repaired" if repairs else "prompts"


_TILE_METRICS: Sequence[tuple[str, str]] = (
    ("prefill.kl_mean", "Mean KL, prefill"),
    ("decode.kl_mean", "Mean KL, decode"),
    ("prefill.top1_flip_rate", "Top token flips"),
    ("golden.confirmed_breaks", "Confirmed breaks"),
    ("needle.accuracy", "Needles found"),
)
