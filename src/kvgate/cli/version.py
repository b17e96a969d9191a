"""`kvgate version`, also `kvgate --version`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(version)


def version(json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False) -> int:
    """Print kvgate's version and that of the engine package that this interpreter has."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    from kvgate import __version__
    from kvgate.cli._terminal import out_console, print_json

    try:
        engine = version_of("xllamacpp")
    except PackageNotFoundError:
        engine = None
    if json_out:
        print_json({"schema": "kvgate.version/1", "kvgate": __version__, "xllamacpp": engine})
    else:
        out_console().print(
            f"kvgate {__version__}, xllamacpp {engine or 'not installed: pip install kvgate[llamacpp]'}"
        )
    return 0
