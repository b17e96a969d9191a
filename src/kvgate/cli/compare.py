"""`kvgate compare`: two stored runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvgate.campaign.rejudge import RunDelta


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(compare)


def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Run id, its unique beginning, or last.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The run to hold against it.")],
    policy: Annotated[str | None, typer.Option(help="Judge both by this one; default: the second run's own.")] = None,
    store: Annotated[str | None, typer.Option(help="Where runs are kept.", envvar="KVGATE_STORE")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also the metrics whose intervals touch.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Show what differs between two runs of one model: deployment first, then decisions and metrics.

    Exits 0 if no decision is worse in the second, 1 if one is, 3 if the deployments or the questions differ, so that a
    difference in results is not the KV cache's alone.
    """
    from kvgate.campaign.rejudge import compare_runs
    from kvgate.cli._terminal import print_json
    from kvgate.store.open import open_store

    with open_store(store, create=False) as opened:
        delta = compare_runs(opened, first, second, policy)
    code = _exit_code(delta)
    if json_out:
        print_json(_document(delta, code))
    else:
        _print(delta, every=every)
    return code


def _exit_code(delta: RunDelta) -> int:
    from kvgate.core.verdict import SEVERITY

    if not delta.like_for_like:
        return 3
    return int(any(SEVERITY.index(b) > SEVERITY.index(a) for a, b in delta.decisions.values()))


def _document(delta: RunDelta, code: int) -> dict[str, Any]:
    return {
        "schema": "kvgate.compare/1",
        "runs": [delta.a.run_id, delta.b.run_id],
        "exit_code": code,
        "same_deployment": delta.same_deployment,
        "changed": [dict(zip(("place", "field", "a", "b"), c, strict=True)) for c in delta.changed],
        "unknown": [{"place": p, "field": f} for p, f in delta.unknown],
        "questions": [dict(zip(("suite", "a", "b", "both"), q, strict=True)) for q in delta.questions],
        "only": [list(delta.only_a), list(delta.only_b)],
        "decisions": {c: [a.value, b.value] for c, (a, b) in delta.decisions.items()},
        "metrics": [
            {
                "candidate": m.candidate,
                "suite": m.suite,
                "metric": m.metric,
                "a": m.a.to_json() if m.a is not None else None,
                "b": m.b.to_json() if m.b is not None else None,
                "apart": m.apart,
            }
            for m in delta.metrics
        ],
    }


def _print(delta: RunDelta, *, every: bool) -> None:
    from rich.table import Table

    from kvgate.cli._show import measure_text
    from kvgate.cli._terminal import out_console
    from kvgate.core.text import one_line

    console = out_console()
    console.print(f"{delta.a.run_id} against {delta.b.run_id}: {delta.b.model.name}, policy {delta.b.policy}")
    for place, field, a, b in delta.changed:
        console.print(one_line(f"{place}: {field} differs: {a} -> {b}"), soft_wrap=True)
    if not delta.same_deployment:
        console.print("the deployments differ: what changed below is not the KV cache's alone", soft_wrap=True)
    for suite, n_a, n_b, both in delta.questions:
        said = f"{suite}: {n_a} and {n_b} cases, {both} of them the same: not the same was asked"
        console.print(one_line(said), soft_wrap=True)
    for candidate, (a, b) in delta.decisions.items():
        console.print(one_line(f"{candidate}: {a.value}" + ("" if a is b else f" -> {b.value}")), soft_wrap=True)
    for name, only in ((delta.a.run_id, delta.only_a), (delta.b.run_id, delta.only_b)):
        if only:
            console.print(one_line(f"only in {name}: {', '.join(only)}"), soft_wrap=True)
    shown = [m for m in delta.metrics if every or m.apart]
    if not shown:
        console.print("no metric's 90 % interval lies apart from the other run's")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("candidate", "metric", "first", "second", ""):
        table.add_column(column, overflow="fold")
    for m in shown:
        mark = "apart" if m.apart else ""
        table.add_row(m.candidate, m.metric, measure_text(m.a), measure_text(m.b), mark)
    console.print(table)
