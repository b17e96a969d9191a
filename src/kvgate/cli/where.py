"""`kvgate where`: the paths kvgate uses."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(where)


def where(json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False) -> int:
    """Print where runs, reports and models are kept."""
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.models.file_digest import cache_root
    from kvgate.store.location import ServerUrl, data_folder, default_location

    place = default_location()
    if isinstance(place, ServerUrl):
        shown, folder = place.shown, data_folder()
    else:
        shown, folder = str(place), place.parent
    paths = {"store": shown, "reports": str(folder / "reports"), "models": str(cache_root() / "models")}
    if json_out:
        print_json({"schema": "kvgate.where/1", **paths})
    else:
        for name, path in paths.items():
            out_console().print(f"{name}: {path}", soft_wrap=True)
    return 0
