"""Tables and charts of every suite's metrics: one table per lane, one per label (category, position, bucket).

Works from the metric ids alone, so a new suite shows up here without an edit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvgate.core.estimate import Estimate, Measure
from kvgate.core.metric import ParsedMetric, parse_metric
from kvgate.core.units import number_text
from kvgate.report.charts import Chart, Series, strip_chart
from kvgate.report.measure import Cell, cell, level_text
from kvgate.report.model import RunView
from kvgate.report.sections.floors import estimate_of
from kvgate.report.visible import one_line
from kvgate.report.words import metric_meaning, metric_words

_FIRST = ("kl_mean", "kl_median", "kl_p50", "kl_p90", "kl_p95", "kl_p99", "kl_p999", "kl_p99_9", "kl_max")
_LANES = {
    "prefill": "Prefill: the text is read in batches",
    "decode": "Decode: token by token, as when the model answers",
    "golden": "Golden prompts",
    "needle": "Needles",
}
_TITLES = {
    "fidelity": "Fidelity: how far the next-token distributions are apart",
    "golden": "Golden prompts: what changes in the answers",
    "needle": "Needle: what is found in a long context",
}
_SUITES = tuple(_TITLES)


@dataclass(frozen=True, slots=True)
class Column:
    """An arm of a table: "floor" or "candidate"."""

    arm: str
    role: str


@dataclass(frozen=True, slots=True)
class TableCell:
    """The statistic of an arm against the base, and its excess over the floor (candidates only)."""

    value: Cell
    excess: Cell | None


@dataclass(frozen=True, slots=True)
class TableRow:
    """One metric. `meaning`: what it is, in one line; "" in tables by label, which repeat the metrics above them."""

    label: str
    metric: str
    cells: tuple[TableCell, ...]
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Metrics by arm. `notes` are the distinct reasons for unknown numbers in it; cells refer to them by number."""

    title: str
    head: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]
    level: str

    def note(self, c: Cell) -> int | None:
        """1-based number of a cell's reason."""
        return self.notes.index(c.why) + 1 if c.why else None


@dataclass(frozen=True, slots=True)
class LaneView:
    """All of one lane: the overall table and one (chart, table) per label."""

    lane: str
    title: str
    charts: tuple[Chart, ...]
    table: Table | None
    labelled: tuple[tuple[str, Chart | None, Table], ...]


@dataclass(frozen=True, slots=True)
class SuiteView:
    """One suite's lanes, and in words what it could not see."""

    name: str
    title: str
    lanes: tuple[LaneView, ...]
    remarks: tuple[str, ...]


def suite_views(view: RunView) -> list[SuiteView]:
    """Every suite that left a summary, the known ones first."""
    names = dict.fromkeys(n for e in view.evidence.values() for n in e.summaries)
    ordered = sorted(names, key=lambda n: (_SUITES.index(n) if n in _SUITES else len(_SUITES), n))
    return [_suite(view, name) for name in ordered]


def series_of(view: RunView) -> dict[str, Series]:
    """Colour and marker of every arm, the same on the whole page. Floors are grey."""
    styles = {}
    for i, arm in enumerate(view.role("floor")):
        styles[arm.name] = Series(arm.name, f"floor: {one_line(arm.name, 80)}", f"f{i % 4}")
    for i, name in enumerate(view.candidates):
        styles[name] = Series(name, one_line(name, 80), f"s{i % 6}")
    return styles


def _suite(view: RunView, name: str) -> SuiteView:
    by_arm = _measures(view, name)
    ids = dict.fromkeys(m for measures, _ in by_arm.values() for m in measures)
    lanes = dict.fromkeys(m.split(".", 1)[0] for m in ids)
    order = sorted(lanes, key=lambda lane: (list(_LANES).index(lane) if lane in _LANES else 99, lane))
    title = _TITLES.get(name, name.capitalize())
    return SuiteView(name, title, tuple(_lane(view, lane, list(ids), by_arm) for lane in order), _remarks(view, name))


def _remarks(view: RunView, suite: str) -> tuple[str, ...]:
    """What a suite could not see; a remark that several candidates share is said once."""
    said: dict[str, list[str]] = {}
    for e in view.evidence.values():
        if suite in e.summaries:
            s = e.summaries[suite]
            for text in dict.fromkeys((*s.untested, *s.blind_spots, *e.errors.get(suite, ()))):
                said.setdefault(text, []).append(e.candidate)
    return tuple(text if len(who) == len(view.evidence) else f"{', '.join(who)}: {text}" for text, who in said.items())


Arms = dict[str, tuple[Mapping[str, Measure], Mapping[str, Estimate]]]


def _measures(view: RunView, suite: str) -> Arms:
    """Per arm, floors first: its statistics against the base, and its excesses."""
    floors: Arms = {}
    candidates: Arms = {}
    for name in view.candidates:
        evidence = view.evidence.get(name)
        if evidence is None or suite not in evidence.summaries:
            continue
        summary = evidence.summaries[suite]
        for arm, measures in summary.floor.items():
            floors.setdefault(arm, (measures, {}))
        candidates[name] = (summary.metrics, summary.excess)
    return {**floors, **candidates}


def _lane(view: RunView, lane: str, ids: Sequence[str], by_arm: Arms) -> LaneView:
    mine = [m for m in ids if m.split(".", 1)[0] == lane]
    parsed = {m: _parsed(m) for m in mine}
    overall = sorted((m for m in mine if not parsed[m].labels), key=_metric_order)
    labels = dict.fromkeys(k for m in mine for k in parsed[m].labels if len(parsed[m].labels) == 1)
    columns = _columns(view, by_arm)
    title = _LANES.get(lane, lane.capitalize())
    table = _table(
        f"{title}: all positions" if "kl" in " ".join(overall) else title, "Statistic", columns, overall, by_arm
    )
    labelled = []
    for label in labels:
        some = [m for m in mine if list(parsed[m].labels) == [label]]
        some.sort(key=lambda m: (natural(parsed[m].labels[label]), _metric_order(m)))
        names = {m: f"{parsed[m].labels[label]} · {metric_words(m)}" for m in some}
        labelled.append(
            (
                label,
                _label_chart(view, lane, label, some, by_arm),
                _table(f"{title} by {label}", label.capitalize(), columns, some, by_arm, names),
            )
        )
    charts = tuple(c for c in (_against_base(view, lane, by_arm), _excess(view, lane, by_arm)) if c)
    return LaneView(lane, title, charts, table if overall else None, tuple(labelled))


def _parsed(metric: str) -> ParsedMetric:
    """A metric id taken apart; one that is none still gets a row, under its own spelling."""
    try:
        return parse_metric(metric)
    except ValueError:
        return ParsedMetric(metric, {})


def _columns(view: RunView, by_arm: Arms) -> tuple[Column, ...]:
    """Candidates first: on a narrow screen the rest is scrolled to."""
    mine = [a for a in view.candidates if a in by_arm]
    floors = [a for a in by_arm if a not in mine]
    return (*(Column(a, "candidate") for a in mine), *(Column(a, "floor") for a in floors))


def _metric_order(metric: str) -> tuple[int, str]:
    short = metric.split("{", 1)[0].split(".", 1)[-1]
    return (_FIRST.index(short) if short in _FIRST else len(_FIRST), short)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which 64-127 comes before 128-255."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(p), "") if p.isdecimal() and len(p) < 19 else (1, 0, p) for p in parts)


def _table(
    title: str,
    head: str,
    columns: tuple[Column, ...],
    metrics: Sequence[str],
    by_arm: Arms,
    names: Mapping[str, str] | None = None,
) -> Table:
    rows = tuple(
        TableRow(
            (names or {}).get(m) or metric_words(m),
            m,
            tuple(_table_cell(m, c, by_arm) for c in columns),
            "" if names else metric_meaning(m),
        )
        for m in metrics
    )
    cells = [x for r in rows for t in r.cells for x in (t.value, t.excess) if x is not None]
    levels = {
        level_text(e.level)
        for measures, excess in by_arm.values()
        for e in (*measures.values(), *excess.values())
        if isinstance(e, Estimate)
    }
    return Table(
        title, head, columns, rows, tuple(dict.fromkeys(c.why for c in cells if c.why)), " or ".join(sorted(levels))
    )


def _table_cell(metric: str, column: Column, by_arm: Arms) -> TableCell:
    measures, excess = by_arm[column.arm]
    over = excess.get(metric)
    return TableCell(cell(measures.get(metric), metric), None if over is None else cell(over, metric))


def _label_chart(view: RunView, lane: str, label: str, metrics: Iterable[str], by_arm: Arms) -> Chart | None:
    """The lane's main statistic by label value: mean KL if there is one, else the first metric."""
    some = list(metrics)
    name = next((n for n in (f"{lane}.kl_mean", f"{lane}.accuracy") if any(m.startswith(n + "{") for m in some)), None)
    if name is None:
        return None
    series = series_of(view)
    rows = [
        (
            _parsed(m).labels[label],
            [(series[a], estimate_of(by_arm[a][0].get(m))) for a in by_arm if a in series],
        )
        for m in some
        if m.startswith(name + "{")
    ]
    log = name.endswith("kl_mean")
    axis = "mean KL against the base, nat, logarithmic" if log else metric_words(name)
    return strip_chart(f"{metric_words(name)} by {label}, {lane}", axis, rows, metric=name, log=log)


def _against_base(view: RunView, lane: str, by_arm: Arms) -> Chart | None:
    metric, series = f"{lane}.kl_mean", series_of(view)
    rows = [
        (series[a].label, [(series[a], estimate_of(measures[metric]))])
        for a, (measures, _) in by_arm.items()
        if metric in measures and a in series
    ]
    return strip_chart(
        f"Mean KL against the base, {lane}: noise floor and candidates",
        "nat, logarithmic",
        rows,
        metric=metric,
        log=True,
    )


def _excess(view: RunView, lane: str, by_arm: Arms) -> Chart | None:
    metric, series = f"{lane}.kl_mean", series_of(view)
    rows = [
        (series[a].label, [(series[a], excess[metric])])
        for a, (_, excess) in by_arm.items()
        if metric in excess and a in series
    ]
    limits = [(0.0, "0", "zero")]
    ceilings = [f for v in view.verdicts for f in v.findings if f.use == "ceiling" and f.metric == metric]
    seen = {f.threshold for f in ceilings if f.threshold is not None}
    limits += [(t, f"limit {number_text(t)}", "limit") for t in sorted(seen)]
    return strip_chart(
        f"What is judged: excess of the mean KL over the largest floor, {lane}",
        "nat; to pass, a whole interval lies left of the limit" if seen else "nat",
        rows,
        metric=metric,
        log=False,
        limits=limits,
    )
