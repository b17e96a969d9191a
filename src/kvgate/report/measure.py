"""Numbers in words: value with unit, interval, and why something is unknown. Every renderer uses these."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from kvgate.core.estimate import Estimate, Measure, Test
from kvgate.core.units import bytes_text, number_text

_PERCENT = ("rate", "accuracy", "share", "changed_texts", "drift", "similarity", "covered")
#: Digits of the uncertainty that are printed: the value ends where its interval's half width has its second digit.
_UNSURE_DIGITS = 2
#: Beyond so many decimals, and from so large on, a number is written with a power of ten.
_MOST_DECIMALS, _LARGE = 7, 1e9


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table.

    Attributes:
        text: value with unit, "?" if unknown. interval: "0.0035 to 0.0051", "?" where unbounded, "" for a test's p.
        title: level, counts and method, for hovering and for screen readers.
        why: why the value or an end of its interval is unknown; "" if both are known.
    """

    text: str
    interval: str
    title: str
    why: str = ""


def is_percent(metric: str, unit: str) -> bool:
    """Rates between 0 and 1 are shown in per cent."""
    name = metric.split("{", 1)[0]
    return unit in ("1", "") and not name.endswith("ratio") and any(word in name for word in _PERCENT)


def value_text(x: float | None, unit: str, metric: str = "") -> str:
    """An exact value with its unit, such as a limit: '0.0042 nat', '4.7 %', '1.003 ×', '?'."""
    if x is None:
        return "?"
    if unit == "bytes":
        return bytes_text(x)
    scaled = 100 * x if is_percent(metric, unit) else x
    return number_text(scaled) + _unit_text(unit, metric)


def _unit_text(unit: str, metric: str) -> str:
    if is_percent(metric, unit):
        return " %"
    if unit == "ratio" or (unit in ("1", "") and metric.split("{", 1)[0].endswith("ratio")):
        return " ×"
    return "" if unit in ("1", "") else f" {unit}"


class Rounded(NamedTuple):
    """Value and ends of an estimate with the digits that its interval supports, without a unit; "?" is unknown."""

    value: str
    lo: str
    hi: str


def rounded(e: Estimate, metric: str = "", against: float | None = None) -> Rounded:
    """An estimate's three numbers, rounded at the second digit of the interval's half width.

    Without an interval, and with one of no width, there is nothing to round by: four significant digits.

    Args:
        against: a limit that they are held to. Digits are added until each lies on the printed side of it on which it
            is, so that no number that is printed contradicts what was decided by it.
    """
    factor = 100 if is_percent(metric, e.unit) else 1
    numbers = [None if x is None else factor * x for x in (e.value, e.lo, e.hi)]
    known = [x for x in numbers if x is not None]
    ends = [x for x in numbers[1:] if x is not None]
    half = (ends[1] - ends[0]) / 2 if len(ends) == 2 else abs(known[0] - ends[0]) if ends and e.value is not None else 0
    if half <= 0 or not math.isfinite(half):
        return Rounded(*(number_text(x) for x in numbers))
    place = math.floor(math.log10(half)) - (_UNSURE_DIGITS - 1)
    # No more than six digits in all: a narrow interval around a large number says so in its ends.
    place = max(place, math.floor(math.log10(max(map(abs, known)) or 1)) - 5)
    limit = None if against is None else factor * against
    while limit is not None and place > -12 and any(_crosses(x, place, limit) for x in known):
        place -= 1
    return Rounded(*("?" if x is None else _at_place(x, place) for x in numbers))


def _crosses(x: float, place: int, limit: float) -> bool:
    """Whether `x`, rounded at a power of ten, lies on another side of `limit` than it does."""
    shown = round(x, -place)
    return (shown > limit) != (x > limit) or (shown < limit) != (x < limit)


def _at_place(x: float, place: int) -> str:
    """`x` rounded at 10**place: '0.0048', '12.1', '12,300', '4.7e-09'."""
    shown = round(x, -place) + 0.0  # not "-0"
    if -place <= _MOST_DECIMALS and abs(shown) < _LARGE:
        return f"{shown:,.{max(0, -place)}f}"
    return f"{shown:.{max(0, math.floor(math.log10(abs(shown))) - place)}e}" if shown else "0"


def interval_text(e: Estimate, metric: str = "", against: float | None = None) -> str:
    """'0.0035 to 0.0051' in the unit of the value; '?' for an end that is unbounded."""
    if e.lo is None and e.hi is None:
        return "?"
    if e.unit == "bytes":
        return f"{value_text(e.lo, e.unit)} to {value_text(e.hi, e.unit)}"
    _, lo, hi = rounded(e, metric, against)
    return f"{lo} to {hi}"


def estimate_text(e: Estimate, metric: str = "", against: float | None = None) -> str:
    """The value with its unit: '0.0042 nat', '4.7 %', '1.003 ×', '?'."""
    if e.value is None or e.unit == "bytes":
        return value_text(e.value, e.unit, metric)
    return rounded(e, metric, against).value + _unit_text(e.unit, metric)


def level_text(level: float) -> str:
    """0.9 -> '90 %'."""
    return f"{100 * level:g} %"


def p_text(p: float) -> str:
    """A p value with two digits: 'p = 0.13', 'p under 0.001', 'p = 1'."""
    if not math.isfinite(p):
        return "p = ?"
    return "p under 0.001" if p < 0.001 else f"p = {p:.2g}"


def cell(measure: Measure | None, metric: str = "", against: float | None = None) -> Cell:
    """The cell of a measure; None is a number that was not made.

    Args:
        against: a limit that the estimate is held to, see `rounded`.
    """
    if measure is None:
        return Cell("–", "", "not measured for this arm")
    if isinstance(measure, Test):
        found = f"statistic {number_text(measure.statistic)}, n = {measure.n}"
        title = f"{measure.method}; alternative: {measure.alternative}; {found}"
        if measure.method.startswith("McNemar") and math.isfinite(measure.statistic):
            found = f"net {measure.statistic:+g} of {measure.n:,} that changed" if measure.n else "none changed"
        return Cell(p_text(measure.p), found, title)
    if measure.method == "count" and measure.value is not None:
        # A count describes what was seen and claims nothing beyond, so its ends would only repeat it.
        text = f"{number_text(measure.value)} of {measure.n:,}"
        return Cell(text, "", f"{text} {measure.unit}, as seen")
    unbounded = measure.lo is None or measure.hi is None
    shown, interval = estimate_text(measure, metric, against), interval_text(measure, metric, against)
    title = (
        f"{shown}; {level_text(measure.level)} interval {interval}; n = {measure.n:,}, "
        f"independent units: {measure.clusters:,}; {measure.method}"
    )
    why = (measure.why or "the interval has no bound here") if measure.value is None or unbounded else ""
    return Cell(shown, interval if measure.value is not None else "", title + (f"; {why}" if why else ""), why)


def sentence(measure: Measure | None, metric: str = "", against: float | None = None) -> str:
    """The measure in one phrase: '0.0042 nat (90 % interval 0.0035 to 0.0051)'."""
    c = cell(measure, metric, against)
    if measure is None or isinstance(measure, Test) or not c.interval:
        return f"{c.text} ({c.interval})" if c.interval else f"? ({c.why})" if c.text == "?" else c.text
    return f"{c.text} ({level_text(measure.level)} interval {c.interval}{': ' + c.why if c.why else ''})"
