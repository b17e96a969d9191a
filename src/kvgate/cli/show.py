"""`kvgate show`: the verdicts of a stored run."""

from __future__ import annotations

from typing import Annotated

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
    """Show all verdicts of a run again, of every policy; exits with the worst of them, or 3 if there is none yet."""
    return show_run(run, store, json_out=json_out)


def show_run(run: str, store: str | None, *, json_out: bool, policy_digest: str = "") -> int:
    """The same from code; `policy_digest` narrows to the verdicts of one policy."""
    from kvgate.cli._layout import indent, lead, say
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.verdict import Decision, worst
    from kvgate.store.open import open_store

    with open_store(store, create=False) as opened:
        row = opened.find_run(run)
        found = [dict(v) for v in opened.verdicts(row.run_id)]
        verdicts = [v for v in found if v["policy_digest"] == policy_digest or not policy_digest]
        reports = [e.body.get("report.html") for e in opened.evidence(row.run_id, "report")]
    report = reports[-1] if reports else None
    code = worst([Decision(v["decision"]) for v in verdicts]).exit_code if verdicts else Decision.INCONCLUSIVE.exit_code
    document = {
        "schema": "kvgate.show/1",
        "run": row.run_id,
        "state": row.state,
        "created": row.created,
        "exit_code": code,
        "report": report,
        "verdicts": verdicts,
        "manifest": dict(row.manifest),
    }
    if json_out:
        print_json(document)
        return code
    console = out_console()
    say(console, f"run {row.run_id}: {row.state}, {row.created}")
    if not verdicts:
        say(console, "no verdict yet: run the same kvgate check again to resume it")
    for v in verdicts:
        say(console, f"{v['candidate']}: {v['headline']}")
        for f in v["findings"]:
            say(console, f"{f['rule']}: {f['message']}", first=lead(console, f["status"]), indent=indent(console))
        for what in v.get("untested", ()):
            say(console, what, first=lead(console, "not tested"), indent=indent(console))
        say(console, f"{v['next']['action']}. {v['next']['why']}", first=lead(console, "next"), indent=indent(console))
    if report:
        say(console, f"report: {report}")
    return code
