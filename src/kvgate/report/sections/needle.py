"""Needle map: share of needles found by length and depth, for the base, each candidate, and the difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvgate.core.observation import Records
from kvgate.report.model import RunView
from kvgate.report.sections.results import natural


@dataclass(frozen=True, slots=True)
class GridCell:
    """`share` in 0..1 (or -1..1 for a difference), None where nothing was scored; `count` in words; `level` -4..4."""

    share: float | None
    count: str
    level: int

    @property
    def text(self) -> str:
        return "?" if self.share is None else f"{100 * self.share:.0f} %"

    @property
    def signed(self) -> str:
        return "?" if self.share is None else "0" if self.share == 0 else f"{100 * self.share:+.0f} pt"


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells by depth (rows) and length (columns)."""

    title: str
    difference: bool
    lengths: tuple[str, ...]
    rows: tuple[tuple[str, tuple[GridCell, ...]], ...]


def needle_grids(view: RunView) -> list[tuple[Grid, Grid, Grid]]:
    """Per candidate: the base's grid, its own, and the difference; [] without a suite that has lengths and depths."""
    for records in view.records.values():
        cases = [c for c in records.cases.values() if "length" in c.body and "depth" in c.body]
        if cases and records.scores:
            return _grids(view, records)
    return []


def _grids(view: RunView, records: Records) -> list[tuple[Grid, Grid, Grid]]:
    cases = [c for c in records.cases.values() if "length" in c.body and "depth" in c.body]
    lengths = sorted({str(c.body["length"]) for c in cases}, key=natural)
    depths = sorted({c.body["depth"] for c in cases}, key=lambda d: float(d) if isinstance(d, int | float) else 0.0)
    ids: dict[tuple[str, str], list[str]] = {}
    for c in cases:
        ids.setdefault((str(c.body["length"]), str(c.body["depth"])), []).append(c.id)

    def found(arm: str, length: str, depth: str) -> tuple[float, int]:
        scores = [s for i in ids.get((length, depth), ()) for s in records.scores.get((arm, i), ())]
        values = [s.value for s in scores if s.value is not None]
        return sum(values), len(values)

    def grid(title: str, difference: bool, make: Callable[[str, str], GridCell]) -> Grid:
        rows = tuple((_depth(d, depths), tuple(make(length, str(d)) for length in lengths)) for d in depths)
        return Grid(title, difference, tuple(f"{int(x):,}" if x.isdecimal() else x for x in lengths), rows)

    def plain(arm: str) -> Callable[[str, str], GridCell]:
        return lambda length, depth: _share(*found(arm, length, depth))

    def against(arm: str) -> Callable[[str, str], GridCell]:
        return lambda length, depth: _gap(found(arm, length, depth), found(records.base, length, depth))

    base = grid(f"{records.base} (base)", False, plain(records.base))
    return [
        (base, grid(name, False, plain(name)), grid(f"{name} minus base", True, against(name)))
        for name in view.candidates
        if name in records.candidates
    ]


def _share(total: float, n: int) -> GridCell:
    if n == 0:
        return GridCell(None, "not scored", 0)
    share = total / n
    return GridCell(share, f"{total:g} of {n}", round(4 * share))


def _gap(arm: tuple[float, int], base: tuple[float, int]) -> GridCell:
    if not arm[1] or not base[1]:
        return GridCell(None, "not scored", 0)
    gap = arm[0] / arm[1] - base[0] / base[1]
    # Any loss at all gets a colour: rounding 0.1 down to white would hide it.
    level = 0 if gap == 0 else max(1, round(4 * abs(gap))) * (1 if gap > 0 else -1)
    return GridCell(gap, f"{arm[0]:g} of {arm[1]} against {base[0]:g} of {base[1]}", level)


def _depth(depth: object, depths: list[object]) -> str:
    fractions = all(isinstance(d, int | float) and 0 <= d <= 1 for d in depths)
    return f"{100 * float(depth):g} %" if fractions and isinstance(depth, int | float) else str(depth)
