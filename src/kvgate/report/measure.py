"""Numbers in words: value with unit, interval, and why something is unknown. Every renderer uses these."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.estimate import Estimate, Measure, Test
from kvgate.core.metric import parse_metric
from kvgate.core.units import bytes_text, number_text

_PERCENT = ("rate", "accuracy", "share", "changed_texts", "drift", "similarity")


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
    """A value with its unit: '0.0042 nat', '4.7 %', '1.003 \u00d7', '?'."""
    if x is None:
        return "?"
    if is_percent(metric, unit):
        return f"{number_text(100 * x)} %"
    if unit == "bytes":
        return bytes_text(x)
    if unit in ("1", ""):
        return number_text(x) + (" \u00d7" if metric.split("{", 1)[0].endswith("ratio") else "")
    return f"{number_text(x)} {unit}"


def _bare(x: float | None, estimate: Estimate, metric: str) -> str:
    if x is None:
        return "?"
    return number_text(100 * x if is_percent(metric, estimate.unit) else x)


def interval_text(e: Estimate, metric: str = "") -> str:
    """'0.0035 to 0.0051' in the unit of the value; '?' for an end that is unbounded."""
    if e.lo is None and e.hi is None:
        return "?"
    return f"{_bare(e.lo, e, metric)} to {_bare(e.hi, e, metric)}"


def level_text(level: float) -> str:
    """0.9 -> '90 %'."""
    return f"{100 * level:g} %"


def cell(measure: Measure | None, metric: str = "") -> Cell:
    """The cell of a measure; None is a number that was not made."""
    if measure is None:
        return Cell("\u2013", "", "not measured for this arm")
    if isinstance(measure, Test):
        found = f"statistic {number_text(measure.statistic)}, n = {measure.n}"
        title = f"{measure.method}; alternative: {measure.alternative}; {found}"
        return Cell(f"p = {number_text(measure.p)}", found, title)
    if measure.method == "count" and measure.value is not None:
        # A count describes what was seen and claims nothing beyond, so its ends would only repeat it.
        text = f"{number_text(measure.value)} of {measure.n:,}"
        return Cell(text, "", f"{text} {measure.unit}, as seen")
    unbounded = measure.lo is None or measure.hi is None
    title = (
        f"{value_text(measure.value, measure.unit, metric)}; {level_text(measure.level)} interval "
        f"{interval_text(measure, metric)}; n = {measure.n:,}, "
        f"independent units: {measure.clusters:,}; {measure.method}"
    )
    why = (measure.why or "the interval has no bound here") if measure.value is None or unbounded else ""
    interval = interval_text(measure, metric) if measure.value is not None else ""
    return Cell(value_text(measure.value, measure.unit, metric), interval, title + (f"; {why}" if why else ""), why)


def sentence(measure: Measure | None, metric: str = "") -> str:
    """The measure in one phrase: '0.0042 nat (90 % interval 0.0035 to 0.0051)'."""
    c = cell(measure, metric)
    if measure is None or isinstance(measure, Test):
        return f"{c.text} ({c.interval})" if c.interval else c.text
    if measure.value is None:
        return f"? ({c.why})"
    return f"{c.text} ({level_text(measure.level)} interval {c.interval}{': ' + c.why if c.why else ''})"


_NAMES = {
    "kl_mean": "Mean KL",
    "kl_median": "Median KL",
    "kl_p50": "Median KL",
    "kl_p90": "KL, 90th percentile",
    "kl_p95": "KL, 95th percentile",
    "kl_p99": "KL, 99th percentile",
    "kl_p999": "KL, 99.9th percentile",
    "kl_p99_9": "KL, 99.9th percentile",
    "kl_max": "Largest KL",
    "top1_flip_rate": "Top token flips",
    "top1_flip_rate_confident": "Confident flips (base margin over 0.1)",
    "confident_flip_rate": "Confident flips (base margin over 0.1)",
    "top1_flip_rate_margin": "Confident flips (base margin over 0.1)",
    "ppl_base": "Perplexity of the base",
    "ppl": "Perplexity",
    "ppl_arm": "Perplexity of the arm",
    "ppl_ratio": "Perplexity ratio",
    "net_breaks": "Breaks against repairs (McNemar)",
    "break_rate": "Break rate",
    "confirmed_breaks": "Confirmed breaks",
    "critical_breaks": "Confirmed breaks of critical prompts",
    "unconfirmed_breaks": "Breaks that did not hold, or that a floor shows too",
    "repairs": "Repairs",
    "changed_texts": "Changed texts",
    "text_similarity": "Word similarity of the texts",
    "drift": "Drift of numbers, values or length",
    "accuracy": "Needles found",
    "base_accuracy": "Needles that the base found",
    "accuracy_ratio": "Needles found, ratio to the base",
    "net_losses": "Losses against gains (McNemar)",
    "lost": "Needles lost",
    "gained": "Needles gained",
}


def metric_words(metric: str) -> str:
    """A metric's name for people; unknown names are spelled out from the id."""
    try:
        short = parse_metric(metric).name.split(".", 1)[1]
    except ValueError:
        return metric
    return _NAMES.get(short) or short.replace("_", " ").replace(".", " ").capitalize()
