"""A finished check as a person reads it in a terminal: verdict last, where the eye is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvgate.cli._terminal import out_console
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.text import one_line
from kvgate.core.units import duration_text, number_text
from kvgate.core.verdict import Decision, Status, Verdict
from kvgate.report.model import RunView

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
    "golden.confirmed_breaks",
    "golden.changed_texts",
    "needle.accuracy",
)


def measure_text(measure: Measure | None) -> str:
    """'0.00423 [0.0038, 0.0047]': three digits, two for the ends; unknown ends are '?'."""
    if measure is None:
        return ""
    if not isinstance(measure, Estimate):
        return f"{measure.statistic:g} (p {measure.p:.3g})"
    if measure.value is None or (measure.lo is None and measure.hi is None):
        return number_text(measure.value)
    lo, hi = (x if x is None else float(f"{x:.2g}") for x in (measure.lo, measure.hi))
    return f"{number_text(float(f'{measure.value:.3g}'))} [{number_text(lo)}, {number_text(hi)}]"


def print_outcome(view: RunView, files: Mapping[str, Path]) -> None:
    """Plan, results with the floor beside them, verdicts, report path."""
    console = out_console()
    _print_capacity(console, view)
    _print_results(console, view)
    for verdict in view.verdicts:
        print_verdict(console, verdict)
    for caveat in view.caveats:
        console.print(Text(f"note: {one_line(caveat)}", style="dim"))
    console.print(Text(f"run {view.run_id}, {duration_text(view.duration_s)}"))
    console.print(Text(f"report: {files['report.html']}"), soft_wrap=True)


def logged_mib(view: RunView, recipe: str) -> float | None:
    """The total that the engine itself printed; summing its rounded parts may be off by a hundredth."""
    for arm in view.arms:
        if arm.recipe == recipe and arm.role != "floor":
            for deployment in arm.deployments.values():
                if deployment.consequence.kv_mib is not None:
                    return deployment.consequence.kv_mib
    return None


def number(mib: float | None) -> str:
    """MiB with the two decimals of a log."""
    return "?" if mib is None else f"{mib:.2f}"


def _print_capacity(console: Console, view: RunView) -> None:
    if not view.capacity:
        return
    table = Table(title="KV cache per recipe", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("recipe", "as run", "B/token", "ratio", "predicted MiB", "engine's log"):
        # Narrow terminals break a number over two lines; a number that is cut off would be another number.
        table.add_column(name, justify="left" if name in ("recipe", "as run") else "right", overflow="fold")
    for row in view.capacity:
        predicted = sum(k + v for _, _, k, v in row.predicted)
        total = logged_mib(view, row.recipe)
        said = "not seen" if row.agrees is None else f"{number(total)} {'equal' if row.agrees else 'DIFFERENT'}"
        table.add_row(
            row.recipe, row.effective, f"{row.bytes_per_token:,}", f"{row.ratio:.2f} x", f"{predicted:.2f}", said
        )
    console.print(table)
    console.print(Text("ratio is storage (tokens that fit), not speed.\n", style="dim"))


def largest_floor(view: RunView, metric: str) -> tuple[str, Measure] | None:
    """The floor arm with the largest value of a metric: what a candidate's excess is taken over."""
    found: dict[str, Estimate] = {}
    for evidence in view.evidence.values():
        for summary in evidence.summaries.values():
            for arm, metrics in summary.floor.items():
                measure = metrics.get(metric)
                if isinstance(measure, Estimate) and measure.value is not None:
                    found[arm] = measure
    return max(found.items(), key=lambda kv: kv[1].value or 0.0, default=None)


def _print_results(console: Console, view: RunView) -> None:
    """As many candidates side by side as there is room for, the others in tables below."""
    left, printed = list(view.evidence), False
    boundless = console.options.update(max_width=100_000)
    while left:
        here = len(left)
        while here > 1 and console.measure(_results(view, left[:here]), options=boundless).maximum > console.width:
            here -= 1
        table = _results(view, left[:here])
        left = left[here:]
        if table.row_count:
            console.print(table)
            printed = True
    if printed:
        note = "floor: the base against itself, its largest arm. A candidate is judged on what it adds to that."
        console.print(Text(note + "\n", style="dim"))


def _results(view: RunView, candidates: Sequence[str]) -> Table:
    table = Table(
        title="Results (90 % intervals)", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("metric", overflow="fold")
    table.add_column("floor", justify="right", overflow="fold")
    for candidate in candidates:
        table.add_column(candidate, justify="right", overflow="fold")
    for metric in SHOWN:
        cells = []
        for candidate in candidates:
            summaries = view.evidence[candidate].summaries.values()
            found = [s.metrics[metric] for s in summaries if metric in s.metrics]
            cells.append(measure_text(found[0]) if found else "")
        if any(cells):
            floor = largest_floor(view, metric)
            said = "" if floor is None else number_text(float(f"{getattr(floor[1], 'value', 0.0):.3g}"))
            table.add_row(metric, said, *cells)
    return table


def print_series(series: Series) -> None:
    """One line a model and candidate, the worst decision of all last."""
    console = out_console()
    table = Table(title="All models", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("model", "candidate", "verdict", "run"):
        table.add_column(column, overflow="fold")
    for entry in series.entries:
        if entry.outcome is None:
            table.add_row(one_line(entry.model), "", Text(f"INVALID: {one_line(entry.error)}"), "")
            continue
        view = entry.outcome.view
        for v in view.verdicts:
            table.add_row(one_line(entry.model), v.candidate, Text(v.headline(), style=COLOUR[v.decision]), view.run_id)
    console.print(table)


MARKS = {
    Status.PASS: "ok",
    Status.FAIL: "FAIL",
    Status.INCONCLUSIVE: "?",
    Status.INVALID: "INVALID",
    Status.UNTESTED: "untested",
    Status.WARN: "warn",
}


def print_verdict(console: Console, verdict: Verdict) -> None:
    """Headline, findings, untested, next step."""
    console.print(Text.assemble((f"{verdict.candidate}: ", "bold"), (verdict.headline(), COLOUR[verdict.decision])))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right", width=12)
    table.add_column()
    for f in verdict.findings:
        # The engine's own line behind " | " is in the report.
        text = f"{f.rule}{' (guard)' if f.role == 'guard' else ''}: {one_line(f.message).split(' | ')[0]}"
        if f.status is Status.INCONCLUSIVE:
            text += f"; {f.decide_n} documents or prompts would decide" if f.decide_n else f"; {f.decide_why}"
        table.add_row(MARKS[f.status], Text(text))
    for i, what in enumerate(verdict.untested):
        table.add_row("not tested" if i == 0 else "", Text(one_line(what)))
    table.add_row("next", Text(f"{one_line(verdict.next.action)}. {one_line(verdict.next.why)}"))
    console.print(table)
    step = verdict.next
    if step.command:
        console.print(Text(f"             $ {one_line(step.command)}"), soft_wrap=True)
    console.print()
