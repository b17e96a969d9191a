"""`kvgate compare`: two stored runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli import _complete

if TYPE_CHECKING:
    from kvgate.campaign.rejudge import RunDelta


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(compare)


def compare(
    first: Annotated[
        str, typer.Argument(metavar="RUN", help="Run id, its unique beginning, or last.", autocompletion=_complete.runs)
    ],
    second: Annotated[
        str, typer.Argument(metavar="RUN", help="The run to hold against it.", autocompletion=_complete.runs)
    ],
    policy: Annotated[
        str | None,
        typer.Option(help="Judge both by this one; default: the second run's own.", autocompletion=_complete.policies),
    ] = None,
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
    from kvgate.cli._layout import print_table, say
    from kvgate.cli._show import measure_text
    from kvgate.cli._terminal import out_console

    console = out_console()
    say(console, f"{delta.a.run_id} against {delta.b.run_id}: {delta.b.model.name}, policy {delta.b.policy}")
    for place, field, a, b in delta.changed:
        say(console, f"{place}: {field} differs: {a} -> {b}")
    if not delta.same_deployment:
        say(console, "the deployments differ: what changed below is not the KV cache's alone")
    for suite, n_a, n_b, both in delta.questions:
        say(console, f"{suite}: {n_a} and {n_b} cases, {both} of them the same: not the same was asked")
    for candidate, (a, b) in delta.decisions.items():
        say(console, f"{candidate}: {a.value}" + ("" if a is b else f" -> {b.value}"))
    for name, only in ((delta.a.run_id, delta.only_a), (delta.b.run_id, delta.only_b)):
        if only:
            say(console, f"only in {name}: {', '.join(only)}")
    shown = [m for m in delta.metrics if every or m.apart]
    if not shown:
        say(console, "no metric's 90 % interval lies apart from the other run's")
        return
    rows = [(m.candidate, m.metric, measure_text(m.a), measure_text(m.b), "apart" if m.apart else "") for m in shown]
    print_table(console, "", ("candidate", "metric", "first", "second", ""), rows, headings=2)
