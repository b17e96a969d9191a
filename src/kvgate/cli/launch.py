"""`kvgate launch`: commands to serve a recipe, its baseline, and the way back. Starts nothing."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(launch)


def launch(
    model: Annotated[str, typer.Option(help="Model folder, config.json, GGUF file or hub id.")],
    kv: Annotated[str, typer.Option("--kv", help="Recipe, e.g. fp8_e4m3/keep=sliding_window.")],
    engine: Annotated[str, typer.Option(help="vllm or llama_cpp.")],
    engine_version: Annotated[str, typer.Option(help="e.g. 0.32.0 or b11549.")] = "",
    device: Annotated[str, typer.Option(help="GPU, e.g. h100; pins the attention backend.")] = "",
    context: Annotated[int, typer.Option(help="Tokens of one sequence.")] = 0,
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel GPUs.")] = 0,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Write the command to serve, the baseline that differs in nothing else, and the one that rolls back."""
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.text import one_line
    from kvgate.launch.ask import launch as run

    found = run(engine, model, kv, version=engine_version, device=device, context_tokens=context, tp=tp)
    if json_out:
        print_json(found.document())
        return 0
    arms = (
        ("serve", found.candidate, ""),
        ("baseline", found.baseline, found.why_no_baseline),
        ("rollback", found.rollback, found.why_no_rollback),
    )
    console = out_console()
    for name, serve, why in arms:
        console.print(f"# {name}", soft_wrap=True)
        console.print(one_line(serve.text if serve is not None else f"# none: {why}"), soft_wrap=True)
    for text in found.loud:
        console.print(one_line(f"# ! {text}"), soft_wrap=True)
    for text in found.notes:
        console.print(one_line(f"# {text}"), soft_wrap=True)
    return 0
