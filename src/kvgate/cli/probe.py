"""`kvgate probe`: what a server that already runs really is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(probe)


def probe(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server, e.g. http://127.0.0.1:8000.")],
    log: Annotated[Path | None, typer.Option(help="Its start log.")] = None,
    base_log: Annotated[
        Path | None, typer.Option(help="Start log of its baseline: its room is held against this one's.")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with its key; default KVGATE_API_KEY.")
    ] = "",
    lanes: Annotated[
        bool, typer.Option("--lanes/--no-lanes", help="Try each lane with a request of a few tokens, or send none.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each page.")] = 15.0,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Say what a running server is: engine, version, KV type asked and stored, scales, backend, room.

    Exit 4 where its pages and its log contradict each other.
    """
    from kvgate.campaign.probing import document
    from kvgate.campaign.probing import probe as ask
    from kvgate.cli._terminal import print_json

    found = ask(url, log=log, base_log=base_log, key_variable=api_key_env.strip(), lanes=lanes, timeout_s=timeout)
    if json_out:
        print_json(document(found))
    else:
        from kvgate.cli._probe_show import show_probe

        show_probe(found)
    return found.exit_code
