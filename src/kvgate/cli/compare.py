"""`kvgate compare`: two stored runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli import _complete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.campaign.rejudge import MetricDelta, RunDelta
    from kvgate.core.verdict import Decision


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
    from kvgate.core.text import one_line

    console = out_console()
    runs = f"first {delta.a.run_id}, second {delta.b.run_id}"
    say(console, f"{runs}: {delta.b.model.name}, both judged by policy {delta.b.policy}")
    for place, field, a, b in delta.changed:
        say(console, f"{place}: {field} differs: {a} -> {b}")
    if not delta.same_deployment:
        say(console, "the deployments differ: what changed below is not the KV cache's alone")
    for suite, n_a, n_b, both in delta.questions:
        say(console, f"{suite}: {n_a} and {n_b} cases, {both} of them the same: not the same was asked")
    for candidate, (a, b) in delta.decisions.items():
        say(console, _decided(a, b), first=f"{one_line(candidate)}: ")
    for name, only in ((delta.a.run_id, delta.only_a), (delta.b.run_id, delta.only_b)):
        if only:
            say(console, f"only in {name}: {', '.join(only)}")
    if delta.metrics:
        say(console, f"numbers: {_noise(delta.metrics)}")
    rows = [
        (one_line(m.candidate), one_line(m.metric), measure_text(m.a), measure_text(m.b), _moved(m))
        for m in delta.metrics
        if every or m.apart
    ]
    if rows:
        print_table(console, "", ("candidate", "metric", "first", "second", ""), rows, headings=2)


def _decided(first: Decision, second: Decision) -> str:
    from kvgate.core.verdict import SEVERITY

    if first is second:
        return f"{first.value} in both"
    worse = SEVERITY.index(second) > SEVERITY.index(first)
    return f"{first.value} -> {second.value}, {'worse' if worse else 'better'}"


def _noise(metrics: Sequence[MetricDelta]) -> str:
    """Whether the two runs differ by more than noise, in a sentence."""
    if all(m.a == m.b for m in metrics):
        return f"all {len(metrics)} are exactly equal"
    told = [m for m in metrics if m.apart is not None]
    apart = sum(bool(m.apart) for m in told)
    if not told:
        return f"none of {len(metrics)} has an interval in both runs, so nothing tells a change from noise"
    if not apart:
        return (
            f"the 90 % intervals of all {len(told)} that have them touch: noise can explain every change, "
            "which does not prove that nothing changed; --all lists them"
        )
    # Two independent 90 % intervals of one width part at |z| > 2 * 1.645 / sqrt(2): 2 % of all.
    return (
        f"{apart} of {len(told)} lie{'s' if apart == 1 else ''} apart, the 90 % intervals do not touch: more than "
        "chance over documents and prompts explains; where other things were asked, about 1 in 50 would by luck"
    )


def _moved(m: MetricDelta) -> str:
    """Which way a number went, and whether noise can explain it; "" where nothing went."""
    from kvgate.core.estimate import Estimate

    if not isinstance(m.a, Estimate) or not isinstance(m.b, Estimate) or m.a.value is None or m.b.value is None:
        return ""
    if m.a.value == m.b.value:
        return "equal"
    way = "higher" if m.b.value > m.a.value else "lower"
    return way if m.apart is None else f"{way}, {'apart' if m.apart else 'may be noise'}"
