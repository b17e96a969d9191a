"""`kvgate score`: score stored answers again, with this kvgate's scorers."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgate.cli import _complete


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(score)


def score(
    run: Annotated[
        str, typer.Argument(help="Run id, its unique beginning, or last.", autocompletion=_complete.runs)
    ] = "last",
    store: Annotated[str | None, typer.Option(help="Where runs are kept.", envvar="KVGATE_STORE")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Score the stored raw answers again. Scores are added under the scorer's version and never overwritten.

    A version that is there already is verified instead: every score must come out equal.
    """
    from dataclasses import asdict

    from kvgate.campaign.rejudge import rescore
    from kvgate.cli._layout import say
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.store.open import open_store

    with open_store(store, create=False) as opened:
        run_id, found = rescore(opened, run)
    if json_out:
        print_json({"schema": "kvgate.score/1", "run": run_id, "suites": [asdict(f) for f in found]})
        return 0
    console = out_console()
    for f in found:
        if f.why_not:
            said = f"not scored again: {f.why_not}"
        elif f.version in f.before:
            said = f"{f.answers} stored answers scored again by scorer version {f.version}: every score is as it was"
        else:
            earlier = f"those of version {', '.join(map(str, f.before))}, which stay" if f.before else "no earlier ones"
            said = f"{f.answers} stored answers scored by scorer version {f.version}, beside {earlier}"
        say(console, f"{f.suite}: {said}")
    say(console, f"scores alone change no verdict; to judge by them: kvgate gate {run_id} --policy default")
    return 0
