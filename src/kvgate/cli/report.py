"""`kvgate report`: write the report of a stored run again, with or without what was asked and answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli import _complete


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(report)


def report(
    run: Annotated[
        str, typer.Argument(help="Run id, its unique beginning, or last.", autocompletion=_complete.runs)
    ] = "last",
    no_outputs: Annotated[
        bool, typer.Option("--no-outputs", help="Leave out every prompt and all model text, to hand the report on.")
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Judge by this one; default: the one the check was given.", autocompletion=_complete.policies
        ),
    ] = None,
    store: Annotated[str | None, typer.Option(help="Where runs are kept.", envvar="KVGATE_STORE")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the documents; default: beside the run's own.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Write HTML, Markdown, JUnit and JSON of a stored run again; exits with its worst verdict."""
    from rich.text import Text

    from kvgate.campaign.rejudge import report_run
    from kvgate.cli._show import path_text
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.store.open import open_store

    with open_store(store, create=False) as opened:
        outcome = report_run(opened, run, outputs=not no_outputs, policy=policy, out=out)
    files = {name: str(path) for name, path in outcome.files.items()}
    if json_out:
        document = {"schema": "kvgate.report/1", "run": outcome.view.run_id, "outputs": not no_outputs, "files": files}
        print_json(document)
    else:
        for path in files.values():
            out_console().print(Text(path_text(path)), soft_wrap=True)
    return outcome.exit_code
