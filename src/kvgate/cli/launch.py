"""`kvgate launch`: commands to serve a recipe, its baseline, and the way back. Starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from kvgate.launch.commands import Commands


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(launch)


def launch(
    model: Annotated[str, typer.Option(help="Model folder, config.json, GGUF file or hub id.")],
    kv: Annotated[str, typer.Option("--kv", help="Recipe, e.g. fp8_e4m3/keep=sliding_window.")],
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm or llama_cpp.")],
    engine_version: Annotated[str, typer.Option(help="e.g. 0.32.0 or b11549.")] = "",
    device: Annotated[str, typer.Option(help="GPU, e.g. h100; pins the attention backend.")] = "",
    context: Annotated[int, typer.Option(help="Tokens of one sequence.")] = 0,
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel GPUs.")] = 0,
    calibrate: Annotated[
        str, typer.Option(help="llm-compressor or modelopt: how to get scales first; none for not at all.")
    ] = "",
    cold_pages: Annotated[str, typer.Option(help="nvfp4: TensorRT-LLM's format of pages off the GPU.")] = "",
    host_cache: Annotated[str, typer.Option(help="Room for cold pages, e.g. 64GiB for each rank.")] = "",
    helix: Annotated[bool, typer.Option("--helix", help="TensorRT-LLM with HELIX context parallelism.")] = False,
    write: Annotated[str, typer.Option(help="Folder to write the engine's files into.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that --write finds there.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Write the command to serve, the baseline that differs in nothing else, and the one that rolls back."""
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.errors import UserError
    from kvgate.core.units import parse_bytes
    from kvgate.launch.ask import launch as run
    from kvgate.launch.write_files import write_files

    if force and not write:
        raise UserError("--force is for files that --write finds", fix="add --write FOLDER, or leave --force out")
    found = run(
        engine,
        model,
        kv,
        version=engine_version,
        device=device,
        context_tokens=context,
        tp=tp,
        calibrate=calibrate,
        cold_pages=cold_pages,
        host_cache_bytes=parse_bytes(host_cache, "--host-cache") if host_cache else 0,
        helix=helix,
    )
    written = write_files(found.files, write, force=force) if write else ()
    if json_out:
        print_json({**found.document(), "written": [str(p) for p in written]} if write else found.document())
        return 0
    _show(out_console(), found, shown_files=not write)
    for path in written:
        out_console().print(f"# written: {path}", soft_wrap=True)
    return 0


def _show(console: Console, found: Commands, *, shown_files: bool) -> None:
    """As a shell script that can be read: what is no command is a comment, and files are here documents."""
    from kvgate.core.text import one_line

    arms = (
        ("serve", found.candidate, ""),
        ("baseline", found.baseline, found.why_no_baseline),
        ("rollback", found.rollback, found.why_no_rollback),
    )
    if shown_files:
        for name, text in found.files.items():
            console.print(f"# file {name}\ncat > {name} <<'KVGATE'\n{text.rstrip()}\nKVGATE", soft_wrap=True)
    for step in found.calibrate:
        console.print("# calibrate, once", soft_wrap=True)
        console.print(step.text, soft_wrap=True)
    for name, serve, why in arms:
        console.print(f"# {name}", soft_wrap=True)
        # A command is shown as it is: one with control characters is never written (launch/ask.py).
        console.print(serve.text if serve is not None else one_line(f"# none: {why}"), soft_wrap=True)
    for text in found.loud:
        console.print(one_line(f"# ! {text}"), soft_wrap=True)
    for text in found.notes:
        console.print(one_line(f"# {text}"), soft_wrap=True)
