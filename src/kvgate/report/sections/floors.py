"""The noise floor in words: what each floor arm is, with its exact settings, and how much of a distance it explains."""

from __future__ import annotations

from kvgate.core.estimate import Estimate, Measure
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence
from kvgate.report.measure import estimate_text
from kvgate.report.model import ArmView, RunView


def estimate_of(measure: Measure | None) -> Estimate | None:
    """The measure if it is an estimate, not a test."""
    return measure if isinstance(measure, Estimate) else None


def floor_sentences(view: RunView) -> list[str]:
    """What each floor arm is, and how much of each candidate's distance it explains."""
    lines = [
        "A candidate is judged on the excess over the base's own noise, not on its distance from zero: each floor arm "
        "is the base again with one declared change, compared with the base in the same way."
    ]
    lines += [f"{arm.name}: {_floor_words(arm, view)}." for arm in view.role("floor")]
    for candidate in view.candidates:
        evidence = view.evidence.get(candidate)
        if evidence is not None:
            lines += [s for lane in ("prefill", "decode") if (s := _floor_share(evidence, lane))]
    return lines


def _floor_words(arm: ArmView, view: RunView) -> str:
    text = " ".join((arm.name, *arm.perturb)).lower()
    if "ubatch" in text:
        meaning = "the base computed in smaller physical batches"
        if view.engine == "llama_cpp":
            meaning += (
                ". Under 64 rows this engine's CPU takes another kernel for f16 and f32, so this floor is the size of "
                "a kernel switch that nobody would call a quality loss"
            )
    elif "restart" in text:
        meaning = "the same server stopped and started again after all other arms, so it also brackets drift"
    elif "slot" in text or "batch" in text:
        meaning = "the base with other batching, as other traffic would cause"
    else:
        meaning = "a second context of the base: what a rerun alone changes"
    changes = declared(arm, view)
    return meaning + (f" (declared change: {changes})" if changes else " (no setting is changed)")


def declared(arm: ArmView, view: RunView) -> str:
    """What an arm declares to do differently, with both values where they are known: 'ubatch_tokens 512 → 32'."""
    return ", ".join(_change(arm, field, view) for field in arm.perturb)


def _change(arm: ArmView, field: str, view: RunView) -> str:
    base = view.base
    for place, mine in arm.deployments.items():
        theirs = base.deployments.get(place) if base is not None else None
        before, after = getattr(theirs and theirs.identity, field, None), getattr(mine.identity, field, None)
        if before is not None and after is not None and before != after:
            return f"{field} {before} → {after}"
    return field


def _values(summary: Summary, metric: str) -> list[tuple[str, Estimate]]:
    found = [(arm, estimate_of(measures.get(metric))) for arm, measures in summary.floor.items()]
    return [(arm, e) for arm, e in found if e is not None and e.value is not None]


def _percent(share: float) -> str:
    return "under 1 %" if share < 0.01 else f"{100 * share:.0f} %"


def _floor_share(evidence: CandidateEvidence, lane: str) -> str:
    metric = f"{lane}.kl_mean"
    for summary in evidence.summaries.values():
        mine = estimate_of(summary.metrics.get(metric))
        floors = [(e.value or 0.0, arm, e) for arm, e in _values(summary, metric)]
        if mine is None or mine.value is None or not floors:
            continue
        largest, arm, floor = max(floors, key=lambda f: f[:2])
        whole = estimate_text(mine, metric)
        if largest == 0:
            return f"{evidence.candidate}, {lane}: the floor is exactly 0, so the whole {whole} counts."
        if mine.value <= 0:
            return ""
        return (
            f"{evidence.candidate}, {lane}: the largest floor ({arm}) is {estimate_text(floor, metric)}, which is "
            f"{_percent(largest / mine.value)} of the candidate's {whole}."
        )
    return ""
