"""`kvgate gate`: judge a stored run by another policy, with nothing run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli import _complete


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(gate)


def gate(
    run: Annotated[
        str, typer.Argument(help="Run id, its unique beginning, or last.", autocompletion=_complete.runs)
    ] = "last",
    policy: Annotated[
        str, typer.Option(help="smoke, default, strict, or a policy file (TOML).", autocompletion=_complete.policies)
    ] = "default",
    store: Annotated[str | None, typer.Option(help="Where runs are kept.", envvar="KVGATE_STORE")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for reports; default: beside the run's own.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Judge a stored run again, by another policy. The verdict is added; the old one stays."""
    from kvgate.campaign.rejudge import gate_run
    from kvgate.cli._show import print_outcome
    from kvgate.cli._terminal import print_json
    from kvgate.gate.policy import load_policy
    from kvgate.report.json import check_json
    from kvgate.store.open import open_store

    rules = load_policy(policy)
    with open_store(store, create=False) as opened:
        outcome = gate_run(opened, run, rules, out)
    if json_out:
        print_json(check_json(outcome.view, str(outcome.files["report.html"])))
    else:
        print_outcome(outcome.view, outcome.files)
    return outcome.exit_code
