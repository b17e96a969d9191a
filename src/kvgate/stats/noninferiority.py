"""Non-inferiority: is the candidate at least as good as the base, less a margin? Three answers."""

from __future__ import annotations

from typing import NamedTuple

from kvgate.core.estimate import Estimate
from kvgate.core.units import number_text
from kvgate.core.verdict import Status


class Judgement(NamedTuple):
    """pass, fail or inconclusive, with the reason in words."""

    status: Status
    why: str


def judge(estimate: Estimate, margin: float, *, alpha: float = 0.05) -> Judgement:
    """Hold an interval against a margin; larger is better.

    lo >= margin passes, hi < margin fails, anything else is inconclusive. Reading both ends of a two-sided interval
    at 1 - 2 alpha is a one-sided test at alpha in each direction. A wider interval than needed is accepted.

    Args:
        margin: e.g. 0.95 for a ratio to the base.
    """
    refused = level_refusal(estimate, alpha)
    if refused:
        return Judgement(Status.INCONCLUSIVE, refused)
    if estimate.lo is not None and estimate.lo >= margin:
        return Judgement(Status.PASS, f"{interval_text(estimate)} lies at or above {margin:g}")
    if estimate.hi is not None and estimate.hi < margin:
        return Judgement(Status.FAIL, f"{interval_text(estimate)} lies below {margin:g}")
    return Judgement(Status.INCONCLUSIVE, _undecided(estimate, f"{margin:g}"))


def judge_ceiling(estimate: Estimate, ceiling: float, *, alpha: float = 0.05) -> Judgement:
    """The mirror image; smaller is better: hi <= ceiling passes, lo > ceiling fails."""
    refused = level_refusal(estimate, alpha)
    if refused:
        return Judgement(Status.INCONCLUSIVE, refused)
    if estimate.hi is not None and estimate.hi <= ceiling:
        return Judgement(Status.PASS, f"{interval_text(estimate)} lies at or below {ceiling:g}")
    if estimate.lo is not None and estimate.lo > ceiling:
        return Judgement(Status.FAIL, f"{interval_text(estimate)} lies above {ceiling:g}")
    return Judgement(Status.INCONCLUSIVE, _undecided(estimate, f"{ceiling:g}"))


def level_refusal(estimate: Estimate, alpha: float) -> str:
    """Why this interval is too narrow for a test at alpha; "" if it is not."""
    if estimate.value is None:
        return estimate.why
    if estimate.level < 1 - 2 * alpha - 1e-9:
        return f"the interval is at {estimate.level:.3g}, a test at alpha {alpha:g} needs {1 - 2 * alpha:.3g}"
    return ""


def interval_text(e: Estimate) -> str:
    """'0.004 [0.001, 0.02]'; an unbounded end is '?'."""
    return f"{number_text(e.value)} [{number_text(e.lo)}, {number_text(e.hi)}]"


def _undecided(e: Estimate, threshold: str) -> str:
    if e.lo is None or e.hi is None:
        return f"{interval_text(e)} has no bound: {e.why}" if e.why else f"{interval_text(e)} has no bound"
    return f"{interval_text(e)} spans {threshold}"
