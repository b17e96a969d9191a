"""`kvgate plan`: bytes, budgets and concurrency of KV recipes, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(plan)


def plan(
    model: Annotated[
        str | None, typer.Argument(help="Model folder, config.json, GGUF file, hub id, or a catalogue name.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="GPU, e.g. h200, rtx4090, mi300x.")] = None,
    kv: Annotated[list[str] | None, typer.Option("--kv", help="Recipe, e.g. fp8_e4m3 or k=q8_0,v=q4_0.")] = None,
    context: Annotated[
        str | None, typer.Option(help="Tokens of one sequence, e.g. 32768 or 32K; default: the model's own.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="vllm, sglang, trtllm, llama_cpp.")] = None,
    engine_version: Annotated[str, typer.Option(help="Version whose rules hold, e.g. 0.32.0.")] = "",
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel GPUs.")] = 1,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option("--dp", help="Data-parallel replicas of the cache.")] = 1,
    dcp: Annotated[int, typer.Option("--dcp", help="Decode-context-parallel ranks, inside --tp.")] = 1,
    weights: Annotated[
        str | None, typer.Option(help="Bytes of the weights (65.52GB), a folder or a GGUF file.")
    ] = None,
    overhead: Annotated[str | None, typer.Option(help="Neither weights nor cache, e.g. 6GB.")] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Memory of one device instead of its own, e.g. 141GB.")
    ] = None,
    utilization: Annotated[float | None, typer.Option(help="Share of memory that the engine may use.")] = None,
    slots: Annotated[int | None, typer.Option(help="Sequences at once, where the engine fixes it.")] = None,
    batched_tokens: Annotated[int | None, typer.Option(help="Tokens of one forward pass.")] = None,
    block_tokens: Annotated[int | None, typer.Option(help="Tokens of a page.")] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="Real lengths: tokens,count a line, or one length a line.")
    ] = None,
    shared_prefix: Annotated[int, typer.Option(help="Tokens that all sequences begin with, stored once.")] = 0,
    draft: Annotated[str | None, typer.Option(help="Draft model, or the bytes that it takes.")] = None,
    mtp: Annotated[bool, typer.Option("--mtp", help="Multi-token prediction is on.")] = False,
    replicas: Annotated[int, typer.Option(help="Replicas that run now.")] = 1,
    option: Annotated[list[str] | None, typer.Option(help="The engine's own NAME=VALUE (repeatable).")] = None,
    from_log: Annotated[Path | None, typer.Option(help="Engine start log: predicted against reported.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Every step with its source.")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="Table of layers.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with charts to this file.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """How many tokens and sequences fit, in which recipe: as arithmetic says, and as the engine will report."""
    from kvgate.core.errors import UserError

    if from_log is not None and model is None:
        from kvgate.cli._plan_log import show_log

        return show_log(from_log, json_out=json_out)
    if model is None:
        raise UserError("no MODEL", fix="give a folder, config.json, GGUF file or hub id, or --from-log FILE")
    from kvgate.plan.answer import answer
    from kvgate.plan.ask import Typed, question

    typed = Typed(
        model=model,
        kv=tuple(kv or ()),
        device=device,
        device_memory=device_memory,
        context_tokens=context,
        engine=engine,
        engine_version=engine_version,
        tp=tp,
        pp=pp,
        dp=dp,
        dcp=dcp,
        weights=weights,
        overhead=overhead,
        fraction=utilization,
        slots=slots,
        batched_tokens=batched_tokens,
        block_tokens=block_tokens,
        lengths=lengths,
        prefix_tokens=shared_prefix,
        draft=draft,
        mtp=mtp,
        replicas=replicas,
        options=tuple(option or ()),
    )
    if from_log is not None:
        from kvgate.cli._plan_log import show_from_log
        from kvgate.plan.from_log import plan_from_log
        from kvgate.plan.logs import read_log

        return show_from_log(plan_from_log(typed, read_log(from_log)), json_out=json_out)
    found = answer(question(typed))
    if html is not None:
        from kvgate.cli._plan_page import write_page

        write_page(found, html)
    if json_out:
        from kvgate.cli._terminal import print_json
        from kvgate.plan.document import document

        print_json(document(found))
        return 0
    from kvgate.cli._plan_show import show_answer

    show_answer(found, explain=explain, layers=layers)
    if html is not None:
        from kvgate.cli._terminal import out_console

        out_console().print(f"page: {html}", soft_wrap=True)
    return 0
