"""`kvgate evidence`: what has been published on a model and a recipe, and how far it carries."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(evidence)


def evidence(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Hub id, name, folder, GGUF file or catalogue name.")
    ] = None,
    kv: Annotated[str | None, typer.Option("--kv", help="Recipe, e.g. fp8_e4m3 or k=q8_0,v=q4_0.")] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm or llama_cpp.")] = "",
    engine_version: Annotated[str, typer.Option(help="e.g. 0.32.0 or b11549.")] = "",
    context: Annotated[int | None, typer.Option(min=1, help="Longest sequence to serve, in tokens.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Every claim, without a question.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Also the claims that carry least.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """What others have published on this model and recipe, with caveats. Quoted, never averaged; no network."""
    from kvgate.cli import _evidence_show as view
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.errors import UserError
    from kvgate.evidence.document import document, list_document
    from kvgate.evidence.load import claims
    from kvgate.evidence.match import matches

    if list_all:
        if model is not None or kv is not None:
            raise UserError("--list takes no MODEL and no --kv", fix="leave them out, or leave out --list")
        if json_out:
            print_json(list_document(claims().values()))
        else:
            view.print_list(out_console(), claims().values())
        return 0
    if model is None:
        raise UserError("no MODEL", fix="give a model, e.g. kvgate evidence Qwen/Qwen3-32B --kv fp8_e4m3, or --list")
    asked = view.asked(model, kv, engine, engine_version, context)
    found = matches(asked, claims().values())
    if json_out:
        print_json(document(asked, found))
    else:
        view.print_matches(out_console(), asked, found, everything=all_)
    return 0
