"""A finished check as a person reads it in a terminal: verdict last, where the eye is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from kvgate.report.model import PublishedView, RunView

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
        print_verdict(console, verdict, view.published.get(verdict.candidate))
    for caveat in view.caveats:
        say(console, f"note: {caveat}", style="dim")
    say(console, f"run {view.run_id}, {duration_text(view.duration_s)}")
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
    rows = []
    for row in view.capacity:
        predicted = sum(k + v for _, _, k, v in row.predicted)
        total = logged_mib(view, row.recipe)
        said = "not seen" if row.agrees is None else f"{number(total)} {'equal' if row.agrees else 'DIFFERENT'}"
        rows.append(
            (row.recipe, row.effective, f"{row.bytes_per_token:,}", f"{row.ratio:.2f} x", f"{predicted:.2f}", said)
        )
    names = ("recipe", "as run", "B/token", "ratio", "predicted MiB", "engine's log")
    print_table(console, "KV cache per recipe", names, rows, right=(2, 3, 4, 5))
    say(console, "ratio is storage (tokens that fit), not speed.", style="dim")
    console.print()


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
    while left:
        here = len(left)
        while here > 1 and not fits(console, ("metric", "floor", *left[:here]), _results(view, left[:here])):
            here -= 1
        rows = _results(view, left[:here])
        names = ("metric", "floor", *left[:here])
        left = left[here:]
        if rows:
            print_table(console, "Results (90 % intervals)", names, rows, right=range(1, len(names)))
            printed = True
    if printed:
        note = "floor: the base against itself, its largest arm. A candidate is judged on what it adds to that."
        say(console, note, style="dim")
        console.print()


def _results(view: RunView, candidates: Sequence[str]) -> list[tuple[str, ...]]:
    rows = []
    for metric in SHOWN:
        cells = []
        for candidate in candidates:
            summaries = view.evidence[candidate].summaries.values()
            found = [s.metrics[metric] for s in summaries if metric in s.metrics]
            cells.append(measure_text(found[0]) if found else "")
        if any(cells):
            floor = largest_floor(view, metric)
            said = "" if floor is None else number_text(float(f"{getattr(floor[1], 'value', 0.0):.3g}"))
            rows.append((metric, said, *cells))
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
            rows.append((one_line(entry.model), v.candidate, headline, view.run_id))
    print_table(console, "All models", ("model", "candidate", "verdict", "run"), rows, headings=2)


MARKS = {
    Status.PASS: "ok",
    Status.FAIL: "FAIL",
    Status.INCONCLUSIVE: "?",
    Status.INVALID: "INVALID",
    Status.UNTESTED: "untested",
    Status.WARN: "warn",
}


def print_verdict(console: Console, verdict: Verdict, published: Sequence[PublishedView] | None = None) -> None:
    """Headline, findings, untested, what others have published, next step."""
    say(console, verdict.headline(), first=f"{verdict.candidate}: ", style=COLOUR[verdict.decision])
    lines: list[tuple[str, str, str]] = []  # kind, text, style
    for f in verdict.findings:
        # The engine's own line behind " | " is in the report.
        text = f"{f.rule}{' (guard)' if f.role == 'guard' else ''}: {one_line(f.message).split(' | ')[0]}"
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
