"""Coordinates of the concurrency chart: x in percent of the width, y in px, both on logarithmic scales.

Pure arithmetic; the template draws. Sequences below one (a context that does not fit) lie on the bottom line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvgate.report.plan_page.model import Curve

HEIGHT_PX, TOP_PX, BOTTOM_PX = 300, 14, 36
#: Room for the labels of the y axis and for the last marker, in percent of the width.
LEFT_PERCENT, RIGHT_PERCENT = 9.0, 3.0
STYLES = tuple(f"s{i}" for i in range(6))


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line with its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One point: where, and what it says."""

    x: float
    y: float
    label: str
    hollow: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a line, x in percent, y in px."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Series:
    """One recipe: its line, its markers, and the whole of it in words."""

    recipe: str
    style: str
    segments: tuple[Segment, ...]
    marks: tuple[Mark, ...]
    aria: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What the template draws. asked: x of the context that the plan is for; None outside the scale."""

    height: int
    base: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    asked: float | None
    asked_label: str


def concurrency(curves: Sequence[Curve], *, asked_tokens: int, engine: str) -> Chart | None:
    """The chart; None where there is nothing to draw."""
    contexts = sorted({p.context_tokens for c in curves for p in c.points})
    values = [v for c in curves for p in c.points for v in (p.ideal, p.reserved) if v]
    if len(contexts) < 2 or not values:
        return None
    x = _Scale(contexts[0], contexts[-1], LEFT_PERCENT, 100 - RIGHT_PERCENT)
    y = _Scale(1, max(values), HEIGHT_PX - BOTTOM_PX, TOP_PX)
    return Chart(
        height=HEIGHT_PX,
        base=HEIGHT_PX - BOTTOM_PX,
        x_ticks=tuple(Tick(x(t), tokens_text(t)) for t in _spread(contexts)),
        y_ticks=tuple(Tick(y(v), f"{v:,}") for v in _decades(max(values))),
        series=tuple(_series(c, STYLES[i % len(STYLES)], x, y, engine) for i, c in enumerate(curves)),
        asked=x(asked_tokens) if contexts[0] <= asked_tokens <= contexts[-1] else None,
        asked_label=f"{asked_tokens:,} tokens",
    )


def tokens_text(tokens: int) -> str:
    """32768 -> "32K", 1500 -> "1,500"."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return f"{tokens:,}"


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic scale from [low, high] to [start, end]; smaller values lie at the start."""

    low: int
    high: int
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if value <= self.low or self.high <= self.low:
            return self.start
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 2)


def _series(curve: Curve, style: str, x: _Scale, y: _Scale, engine: str) -> Series:
    known = [(p.context_tokens, p.ideal) for p in curve.points if p.ideal is not None]
    line = [(x(t), y(v)) for t, v in known]
    marks = [Mark(x(t), y(v), f"{curve.recipe}, {t:,} tokens: {v:,} sequences, ideal", False) for t, v in known]
    marks += [
        Mark(
            x(p.context_tokens),
            y(p.reserved),
            f"{curve.recipe}, {p.context_tokens:,} tokens: {p.reserved:,}, {engine}",
            True,
        )
        for p in curve.points
        if p.reserved is not None and p.reserved != p.ideal
    ]
    segments = tuple(Segment(a, b, c, d) for (a, b), (c, d) in pairwise(line))
    words = "; ".join(f"{t:,} tokens {v:,}" for t, v in known)
    return Series(curve.recipe, style, segments, tuple(marks), f"{curve.recipe}: whole sequences by context: {words}")


def _spread(contexts: Sequence[int]) -> Iterable[int]:
    """Powers of two, at most seven, the last one among them."""
    powers = [t for t in contexts if t & (t - 1) == 0]
    step = -(-len(powers) // 7) or 1
    return powers[::-1][::step][::-1]


def _decades(top: int) -> Iterable[int]:
    """1, 10, 100, ... up to the top; with 2 and 5 between where there are few."""
    decades = [10**n for n in range(len(str(top))) if 10**n <= top]
    if len(decades) > 2:
        return decades
    return [v for d in decades for v in (d, 2 * d, 5 * d) if v <= top]
