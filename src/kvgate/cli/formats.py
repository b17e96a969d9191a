"""`kvgate formats`: every number format and method, one of them in full, or several compared on a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_JSON = typer.Option("--json", help="One JSON document on stdout.")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    group = typer.Typer(help="Number formats and methods of a KV cache.", invoke_without_command=True)
    group.callback()(table)
    group.command("show")(show)
    group.command("compare")(compare)
    app.add_typer(group, name="formats")


def table(ctx: typer.Context, json_out: Annotated[bool, _JSON] = False) -> int:
    """Number formats and methods: bits, range, block, scales, and what each engine calls them."""
    if ctx.invoked_subcommand is not None:
        if json_out:
            from kvgate.core.errors import UserError

            raise UserError(
                "--json stands behind the verb", fix=f"write kvgate formats {ctx.invoked_subcommand} --json"
            )
        return 0
    from kvgate.cli import _formats_table as view
    from kvgate.cli._terminal import print_json

    if json_out:
        print_json(view.document())
    else:
        view.print_table()
    return 0


def show(
    name: Annotated[str, typer.Argument(help="A codec or a method, e.g. nvfp4, q8_0, kivi.")],
    json_out: Annotated[bool, _JSON] = False,
) -> int:
    """One format or method in full: layout, codes, rules, sizes, source."""
    from kvgate.cli import _formats_show as view
    from kvgate.cli._terminal import print_json

    found = view.find(name)
    if json_out:
        print_json(view.document(found))
    else:
        view.print_page(found)
    return 0


def compare(
    tensor: Annotated[Path, typer.Argument(help="A .safetensors or .npy file with K or V, [..., head_dim].")],
    codec: Annotated[
        list[str] | None,
        typer.Option(help="Codec, method or recipe, e.g. q8_0, q4_0+hadamard, kivi:bits=2:group=32 (repeatable)."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Name of the tensor in a safetensors file.")] = None,
    side: Annotated[str, typer.Option(help="k or v: what the tensor holds; methods treat them differently.")] = "k",
    scale: Annotated[
        str, typer.Option(help="Of codecs whose scale lies outside: unit, amax (of the tensor), or a number.")
    ] = "unit",
    channels: Annotated[int, typer.Option(help="How many of the worst channels to show.")] = 0,
    json_out: Annotated[bool, _JSON] = False,
) -> int:
    """How far a tensor comes back from where it was: SQNR, largest error, clipping, channels."""
    from kvgate.cli import _formats_compare as view
    from kvgate.cli._terminal import print_json

    found = view.run(tensor, key, tuple(codec or ()), side, scale, channels)
    if json_out:
        print_json(view.document(found))
    else:
        view.print_page(found)
    return 0
