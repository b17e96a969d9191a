"""Geometry of the small charts: strips with a value and its interval per arm. No drawing here, only positions.

Our own strips instead of a chart library: positions are percentages of the strip's width, so the same SVG is readable
at 375 px and at 1280 px without a script and its labels keep their size, the text stays text, and nothing that a model
wrote is ever pasted into JSON inside a script element.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvgate.core.estimate import Estimate
from kvgate.report.measure import sentence, value_text

#: Marks stay this far from the edges, in percent of the width, so that no marker or label is cut.
_INSET = 4.0
_LANE_PX = 15


@dataclass(frozen=True, slots=True)
class Series:
    """One arm in a chart. `style` selects colour and marker; floors share a style of their own."""

    name: str
    label: str
    style: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One value: position of the marker and of the interval's ends in percent, None where there is none.

    `off` is "" or the side on which the value lies outside the axis: a zero has no place on a logarithmic one.
    """

    style: str
    y: int
    x: float
    lo: float | None
    hi: float | None
    off: str
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    """One strip. `missing` names arms without a value."""

    label: str
    height: int
    marks: tuple[Mark, ...]
    missing: tuple[str, ...] = ()

    @property
    def aria(self) -> str:
        """The strip in words."""
        return f"{self.label}. " + "; ".join([m.label for m in self.marks] + [f"{m}: ?" for m in self.missing])


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A line across all strips: a policy's limit, or zero."""

    x: float
    label: str
    kind: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Strips over one axis."""

    title: str
    axis: str
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    limits: tuple[Limit, ...] = ()

    @property
    def has_open(self) -> bool:
        """Whether some value has no interval and its marker is drawn hollow."""
        return any(m.lo is None or m.hi is None for row in self.rows for m in row.marks)

    @property
    def has_off(self) -> bool:
        """Whether some value has no place on the axis and is drawn as an arrow."""
        return any(m.off for row in self.rows for m in row.marks)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to percent of the width."""

    low: float
    high: float
    log: bool

    def at(self, x: float) -> float:
        """Position of `x`, clamped to the strip."""
        if self.log:
            if x <= 0:
                return _INSET
            share = (math.log10(x) - self.low) / (self.high - self.low)
        else:
            share = (x - self.low) / (self.high - self.low)
        return round(_INSET + (100 - 2 * _INSET) * min(1.0, max(0.0, share)), 2)

    def outside(self, x: float) -> str:
        """ "left" where a logarithmic axis has no place for `x`."""
        return "left" if self.log and x <= 0 else ""

    def ticks(self, unit: str, metric: str) -> tuple[Tick, ...]:
        """Round numbers inside the range."""
        values = _decades(self.low, self.high) if self.log else _steps(self.low, self.high)
        return tuple(Tick(self.at(v), _tick_text(v, unit, metric)) for v in values)


def _tick_text(x: float, unit: str, metric: str) -> str:
    text = value_text(x, unit, metric)
    return text.removesuffix(f" {unit}") if unit not in ("", "1") else text.removesuffix(" ×")


def _decades(low: float, high: float) -> list[float]:
    """1, 2, 5 per decade while that gives at most six ticks, else fewer; every digit where the range is narrow."""

    def inside(factors: Sequence[int]) -> list[float]:
        values = [f * 10.0**d for d in range(math.floor(low), math.ceil(high) + 1) for f in factors]
        return [v for v in values if low - 1e-9 <= math.log10(v) <= high + 1e-9]

    if len(inside((1, 2, 5))) < 2:
        return inside(range(1, 10))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = inside(factors)
        if len(values) <= 6:
            return values
    return values[:: math.ceil(len(values) / 6)]


def _steps(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about five of them."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((f * power for f in (1, 2, 5) if f * power >= rough), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [n * step + 0.0 for n in range(first, math.floor(high / step + 1e-9) + 1)]


def scale_for(values: Iterable[float], *, log: bool) -> Scale:
    """A scale that holds all `values`; a logarithmic one ignores what is not positive."""
    seen = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if log:
        # Under 1e-12 a KL is rounding, and would stretch the axis over the part that is not.
        low, high = min(seen, default=1e-4), max(seen, default=1.0)
        low = max(low, high * 1e-9, 1e-12)
        a, b = math.log10(low), math.log10(max(high, low))
        pad = max(0.05 * (b - a), 0.15)
        return Scale(a - pad, b + pad, True)
    low, high = min([0.0, *seen]), max([0.0, *seen])
    if high == low:
        high = low + 1.0
    pad = 0.04 * (high - low)
    return Scale(low - (pad if low < 0 else 0), high + pad, False)


def ends(estimates: Iterable[Estimate]) -> list[float]:
    """Every finite number of some estimates: values and interval ends."""
    return [x for e in estimates for x in (e.value, e.lo, e.hi) if x is not None]


def strip_chart(
    title: str,
    axis: str,
    rows: Sequence[tuple[str, Sequence[tuple[Series, Estimate | None]]]],
    *,
    metric: str,
    log: bool,
    limits: Sequence[tuple[float, str, str]] = (),
) -> Chart | None:
    """A chart of `rows` (label, (series, estimate) ...); None when there is nothing to draw.

    Args:
        limits: (value, label, kind) of lines across all strips; kind is a CSS class.
    """
    known = [e for _, cells in rows for _, e in cells if e is not None and e.value is not None]
    if not known:
        return None
    scale = scale_for([*ends(known), *(v for v, _, _ in limits)], log=log)
    unit = known[0].unit
    series = tuple(dict.fromkeys(s for _, cells in rows for s, _ in cells))
    return Chart(
        title,
        axis,
        tuple(_row(label, cells, scale, metric) for label, cells in rows),
        scale.ticks(unit, metric),
        series,
        tuple(Limit(scale.at(v), label, kind) for v, label, kind in limits if not scale.outside(v)),
    )


def _row(label: str, cells: Sequence[tuple[Series, Estimate | None]], scale: Scale, metric: str) -> Row:
    marks, missing = [], []
    for lane, (series, e) in enumerate(cells):
        if e is None or e.value is None:
            missing.append(series.label)
            continue
        marks.append(
            Mark(
                series.style,
                12 + _LANE_PX * lane,
                scale.at(e.value),
                None if e.lo is None else scale.at(e.lo),
                None if e.hi is None else scale.at(e.hi),
                scale.outside(e.value),
                f"{series.label}: {sentence(e, metric)}",
            )
        )
    return Row(label, 24 + _LANE_PX * max(0, len(cells) - 1), tuple(marks), tuple(missing))


def bar_percent(value: float, largest: float) -> float:
    """Length of a bar in percent of the largest."""
    return round(100 * value / largest, 2) if largest > 0 else 0.0
