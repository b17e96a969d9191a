"""What the plan's page shows: plain values, already in words where a person reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of recipes: a cell a recipe, and where the numbers are from."""

    label: str
    cells: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Point:
    """Whole sequences of one recipe at one context; None is unknown."""

    context_tokens: int
    ideal: int | None
    reserved: int | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Concurrency against context of one recipe."""

    recipe: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a GPU's memory. kind: "weights", "overhead", "unused", "used" (whole sequences), "free"."""

    label: str
    kind: str
    bytes: int
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One GPU's memory under one recipe; parts add up to `bytes`."""

    rank: str
    recipe: str
    bytes: int
    parts: tuple[Part, ...]
    caption: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a heading; every row has as many cells as there are columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition for staying on 16 bits. holds: "yes", "no", "it depends", "unknown"."""

    title: str
    holds: str
    text: str


@dataclass(frozen=True, slots=True)
class PlanPage:
    """The whole page.

    Attributes:
        facts: (name, value, source). context_tokens: marked in the chart.
        curves: empty where there is no budget, with `why` saying so. engine: what the hollow markers are.
        first: (recipe, why) to try first. next_command: what to type next; "" for none.
    """

    model: str
    subtitle: str
    facts: tuple[tuple[str, str, str], ...]
    recipes: tuple[str, ...]
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    bars: tuple[Bar, ...]
    why: str
    engine: str
    context_tokens: int
    budgets: tuple[Table, ...]
    layers: tuple[Table, ...]
    steps: tuple[Table, ...]
    conditions: tuple[Condition, ...]
    first: tuple[str, str]
    notes: tuple[str, ...]
    logs: tuple[tuple[str, str], ...] = ()
    next_command: str = ""
