"""`kvgate show`: the verdicts of a stored run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from kvgate.cli import _complete


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(show)


def show(
    run: Annotated[
        str, typer.Argument(help="Run id, its unique beginning, or last.", autocompletion=_complete.runs)
    ] = "last",
    store: Annotated[str | None, typer.Option(help="Where runs are kept.", envvar="KVGATE_STORE")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Show a run's verdicts, and what other policies made of it; exits with its own worst, or 3 if there is none."""
    return show_run(run, store, json_out=json_out)


def show_run(run: str, store: str | None, *, json_out: bool, policy_digest: str = "") -> int:
    """The same from code; `policy_digest` narrows to the verdicts of one policy."""
    from kvgate.campaign.own import verdicts_of
    from kvgate.cli._layout import say
    from kvgate.cli._show import print_ending
    from kvgate.cli._stored import stored_ending
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.verdict import Decision, worst
    from kvgate.report.sections.setup import when
    from kvgate.store.open import open_store

    with open_store(store, create=False) as opened:
        row = opened.find_run(run)
        own, others = verdicts_of(opened, row.run_id)
        found = [{**v, "own": v in own} for v in (*own, *others)]
        verdicts = [v for v in found if v["policy_digest"] == policy_digest or not policy_digest]
        ending = stored_ending(opened, row.run_id, [(v, _whose(v)) for v in verdicts])
    decided = [Decision(v["decision"]) for v in verdicts if v["own"] or policy_digest]
    code = worst(decided).exit_code if decided else Decision.INCONCLUSIVE.exit_code
    document = {
        "schema": "kvgate.show/1",
        "run": row.run_id,
        "state": row.state,
        "created": row.created,
        "exit_code": code,
        "report": ending.report or None,
        "verdicts": verdicts,
        "manifest": dict(row.manifest),
    }
    if json_out:
        print_json(document)
        return code
    console = out_console()
    say(console, f"run {row.run_id}: {row.state}, begun {when(row.created)}")
    if not verdicts:
        say(console, "no verdict yet: run the same kvgate check again to resume it")
    else:
        print_ending(console, ending)
    return code


def _whose(verdict: Mapping[str, Any]) -> str:
    return "" if verdict["own"] else f" (what if: by policy {verdict['policy']}, not the run's own)"
