"""A finished check as a person reads it in a terminal: verdict last, where the eye is.

`kvgate check` and `gate` print it from what they have just judged, `kvgate show` from the store (`_stored`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from kvgate.cli._layout import fits, indent, lead, print_table, say
from kvgate.cli._terminal import out_console
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.source import NOT_TESTED
from kvgate.core.text import one_line
from kvgate.core.units import duration_text, number_text
from kvgate.core.verdict import Decision, Status, Verdict
from kvgate.report.model import CapacityRow, PublishedView, RunView
from kvgate.report.visible import visible

if TYPE_CHECKING:
    from kvgate.campaign.series import Series

COLOUR = {
    Decision.PASS: "bold green",
    Decision.FAIL: "bold red",
    Decision.INCONCLUSIVE: "bold yellow",
    Decision.INVALID: "bold magenta",
}
#: What the terminal shows of the metrics; the report has them all.
SHOWN = (
    "prefill.kl_mean",
    "prefill.kl_p99",
    "prefill.top1_flip_rate",
    "decode.kl_mean",
    "topk_prefill.kl_mean",
    "topk_prefill.kl_p99",
    "topk_decode.kl_mean",
    "golden.confirmed_breaks",
    "golden.changed_texts",
    "needle.accuracy",
)
Metrics = Mapping[str, Measure]


@dataclass(frozen=True)
class Ending:
    """What the end of a check says, of a run that was just judged or of a stored one.

    Attributes:
        logged_mib: by recipe, the cache as the engine itself printed it; no key where it said nothing.
        results: by candidate. floor: by floor arm. missing: why there are no results; "" if there are.
        verdicts: with what is said behind the headline ("" for the run's own).
        report: path of the HTML report; "" if none was written.
    """

    run_id: str
    duration_s: float | None
    capacity: Sequence[CapacityRow]
    logged_mib: Mapping[str, float]
    results: Mapping[str, Metrics]
    floor: Mapping[str, Metrics]
    verdicts: Sequence[tuple[Verdict, str]]
    published: Mapping[str, Sequence[PublishedView]]
    caveats: Sequence[str]
    report: str
    missing: str = ""


def print_outcome(view: RunView, files: Mapping[str, Path]) -> None:
    """What was just judged: storage, results with the floor beside them, verdicts, report path."""
    print_ending(out_console(), ending(view, str(files["report.html"])))


def ending(view: RunView, report: str) -> Ending:
    """The same as a value."""
    floor: dict[str, dict[str, Measure]] = {}
    results: dict[str, dict[str, Measure]] = {}
    for candidate, evidence in view.evidence.items():
        for summary in evidence.summaries.values():
            for metric, measure in summary.metrics.items():
                results.setdefault(candidate, {}).setdefault(metric, measure)
            for arm, metrics in summary.floor.items():
                floor.setdefault(arm, {}).update(metrics)
    return Ending(
        view.run_id,
        view.duration_s,
        view.capacity,
        logged_mib(view),
        results,
        floor,
        [(v, "") for v in view.verdicts],
        view.published,
        view.caveats,
        report,
    )


def print_ending(console: Console, end: Ending) -> None:
    """Storage, results, verdicts, notes, and where the report lies."""
    _print_capacity(console, end)
    _print_results(console, end)
    for verdict, whose in end.verdicts:
        print_verdict(console, verdict, end.published.get(verdict.candidate), whose)
    for caveat in end.caveats:
        say(console, f"note: {caveat}", style="dim")
    took = "" if end.duration_s is None else f", {duration_text(end.duration_s)}"
    say(console, f"run {end.run_id}{took}")
    if end.report:
        console.print(Text(f"report: {path_text(end.report)}"), soft_wrap=True)


def path_text(path: str) -> str:
    """A path to copy: every blank stays, and a character that a terminal would act on is named."""
    return visible(path).replace("\n", "‹LF›").replace("\t", "‹TAB›")


def measure_text(measure: Measure | None) -> str:
    """'0.00423 [0.0038, 0.0047]': three digits, two for the ends; unknown ends are '?'. A count is '0 of 9'."""
    if measure is None:
        return ""
    if not isinstance(measure, Estimate):
        return f"{measure.statistic:g} (p {measure.p:.3g})"
    if measure.method == "count" and measure.value is not None:
        return f"{number_text(measure.value)} of {measure.n:,}"
    if measure.value is None or (measure.lo is None and measure.hi is None):
        return number_text(measure.value)
    lo, hi = (x if x is None else float(f"{x:.2g}") for x in (measure.lo, measure.hi))
    return f"{number_text(float(f'{measure.value:.3g}'))} [{number_text(lo)}, {number_text(hi)}]"


def logged_mib(view: RunView) -> dict[str, float]:
    """The total that the engine itself printed; summing its rounded parts may be off by a hundredth."""
    found: dict[str, float] = {}
    for arm in view.arms:
        for deployment in arm.deployments.values() if arm.role != "floor" else ():
            if deployment.consequence.kv_mib is not None:
                found.setdefault(arm.recipe, deployment.consequence.kv_mib)
    return found


def number(mib: float | None) -> str:
    """MiB with the two decimals of a log."""
    return "?" if mib is None else f"{mib:.2f}"


def _print_capacity(console: Console, end: Ending) -> None:
    if not end.capacity:
        return
    rows = []
    for row in end.capacity:
        predicted = sum(k + v for _, _, k, v in row.predicted)
        total = end.logged_mib.get(row.recipe)
        said = "not seen" if row.agrees is None else f"{number(total)} {'equal' if row.agrees else 'DIFFERENT'}"
        names = one_line(row.recipe), one_line(row.effective)
        rows.append((*names, f"{row.bytes_per_token:,}", f"{row.ratio:.2f} x", f"{predicted:.2f}", said))
    columns = ("recipe", "as run", "B/token", "ratio", "predicted MiB", "engine's log")
    print_table(console, "KV cache per recipe", columns, rows, right=(2, 3, 4, 5))
    say(console, "ratio is storage (tokens that fit), not speed.", style="dim")
    console.print()


def largest_floor(floor: Mapping[str, Metrics], metric: str) -> float | None:
    """The largest value of a metric over the floor arms: what a candidate's excess is taken over."""
    found = [m.value for metrics in floor.values() if isinstance(m := metrics.get(metric), Estimate)]
    return max((x for x in found if x is not None), default=None)


def _print_results(console: Console, end: Ending) -> None:
    """As many candidates side by side as there is room for, the others in tables below."""
    left, printed = list(end.results), False
    while left:
        here = len(left)
        while here > 1 and not fits(console, _columns(left[:here]), _results(end, left[:here])):
            here -= 1
        rows = _results(end, left[:here])
        columns = _columns(left[:here])
        left = left[here:]
        if rows:
            print_table(console, "Results (90 % intervals)", columns, rows, right=range(1, len(columns)))
            printed = True
    if printed:
        note = "floor: the base against itself, its largest arm. A candidate is judged on what it adds to that."
        say(console, note, style="dim")
    if end.missing:
        say(console, f"results: {end.missing}", style="dim")
    if printed or end.missing:
        console.print()


def _columns(candidates: Sequence[str]) -> tuple[str, ...]:
    return ("metric", "floor", *map(one_line, candidates))


def _results(end: Ending, candidates: Sequence[str]) -> list[tuple[str, ...]]:
    rows = []
    for metric in SHOWN:
        cells = [measure_text(end.results[c].get(metric)) for c in candidates]
        if any(cells):
            floor = largest_floor(end.floor, metric)
            rows.append((metric, "" if floor is None else number_text(float(f"{floor:.3g}")), *cells))
    return rows


def print_series(series: Series) -> None:
    """One line a model and candidate, the worst decision of all last."""
    console = out_console()
    rows: list[tuple[str | Text, ...]] = []
    for entry in series.entries:
        if entry.outcome is None:
            rows.append((one_line(entry.model), "", Text(f"INVALID: {one_line(entry.error)}"), ""))
            continue
        view = entry.outcome.view
        for v in view.verdicts:
            headline = Text(v.headline(), style=COLOUR[v.decision])
            rows.append((one_line(entry.model), one_line(v.candidate), headline, view.run_id))
    print_table(console, "All models", ("model", "candidate", "verdict", "run"), rows, headings=2)


MARKS = {
    Status.PASS: "ok",
    Status.FAIL: "FAIL",
    Status.INCONCLUSIVE: "?",
    Status.INVALID: "INVALID",
    Status.UNTESTED: "untested",
    Status.WARN: "warn",
}


def print_verdict(
    console: Console, verdict: Verdict, published: Sequence[PublishedView] | None = None, whose: str = ""
) -> None:
    """Headline, findings, untested, what others have published, next step."""
    first = f"{one_line(verdict.candidate)}: "
    say(console, verdict.headline() + whose, first=first, style=COLOUR[verdict.decision])
    lines: list[tuple[str, str, str]] = []  # kind, text, style
    for f in verdict.findings:
        # The engine's own line behind " | " is in the report.
        text = f"{one_line(f.rule, 80)}{' (guard)' if f.role == 'guard' else ''}: {one_line(f.message).split(' | ')[0]}"
        if f.status is Status.INCONCLUSIVE:
            text += f"; {f.decide_n} documents or prompts would decide" if f.decide_n else f"; {f.decide_why}"
        lines.append((MARKS[f.status], text, ""))
    for i, what in enumerate(verdict.untested):
        lines.append(("not tested" if i == 0 else "", what, ""))
    for i, quote in enumerate(published or ()):
        text = f"not measured here: {quote.statement} ({quote.distance})"
        lines.append(("published" if i == 0 else "", text, "dim"))
    if published is not None and not published:
        lines.append(("published", NOT_TESTED, "dim"))
    lines.append(("next", f"{verdict.next.action}. {verdict.next.why}", ""))
    for kind, text, style in lines:
        say(console, text, first=lead(console, kind), indent=indent(console), style=style)
    step = verdict.next
    if step.command:
        console.print(Text(f"{' ' * indent(console)}$ {one_line(step.command)}"), soft_wrap=True)
    console.print()
