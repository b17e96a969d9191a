"""`kvgate check`: start a baseline and each candidate, measure, judge, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli import _complete

if TYPE_CHECKING:
    from kvgate.campaign.spec import CheckSpec


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(check)


def check(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="GGUF file, catalogue name, server's URL, or (vllm) Hugging Face folder.",
            autocompletion=_complete.models,
        ),
    ],
    kv: Annotated[list[str] | None, typer.Option("--kv", help="Candidate recipe, e.g. q8_0 or k=q8_0,v=q4_0.")] = None,
    policy: Annotated[
        str, typer.Option(help="smoke, default, strict, or a policy file (TOML).", autocompletion=_complete.policies)
    ] = "default",
    preset: Annotated[
        str | None,
        typer.Option(help="Sizes of the suites; follows the policy's name.", autocompletion=_complete.presets),
    ] = None,
    base: Annotated[str, typer.Option(help="Recipe of the baseline.")] = "native",
    engine: Annotated[
        str, typer.Option(help="Engine that runs all arms.", autocompletion=_complete.engines)
    ] = "llama_cpp",
    suite: Annotated[
        list[str] | None,
        typer.Option("--suite", help="Run only this suite (repeatable).", autocompletion=_complete.suites),
    ] = None,
    context: Annotated[int | None, typer.Option(min=256, help="Context of one sequence, in tokens.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of the engine.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, metavar="<int>", help="Seed of cases and sampling.")] = 0,
    corpus: Annotated[Path | None, typer.Option(help="Folder of texts; each sub-folder is a category.")] = None,
    golden: Annotated[Path | None, typer.Option(help="JSONL of OpenAI-format chats, one a line.")] = None,
    engine_python: Annotated[Path | None, typer.Option(help="Interpreter that owns the engine's package.")] = None,
    engine_env: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for every engine child (repeatable); recorded.")
    ] = None,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-arg", help="Word for the engine's command line, --name=value (repeatable); vllm, sglang, trtllm."
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm", help="Settings of one arm, NAME:batch=64,env.K=V or NAME:python=PATH; a new NAME is a floor."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Baseline that already runs; MODEL is then the candidate's address.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Load log of the candidate's running server.")] = None,
    base_log: Annotated[Path | None, typer.Option(help="Load log of the baseline's running server.")] = None,
    assume_engaged: Annotated[
        bool, typer.Option("--assume-engaged", help="Take --kv as what a running server stores; recorded.")
    ] = False,
    same_model: Annotated[
        bool, typer.Option("--same-model", help="The two names that running servers give are one model.")
    ] = False,
    store: Annotated[
        str | None, typer.Option(help="Where runs are kept: a file, or postgresql://...", envvar="KVGATE_STORE")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for reports; default: beside the store.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew instead of resuming an unfinished run.")] = False,
    reuse: Annotated[bool, typer.Option("--reuse", help="Show the finished run of the same key, if any.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """May this model's KV cache be stored so? Runs the suites on a baseline and each candidate and gives a verdict."""
    from kvgate.campaign.spec import CheckSpec
    from kvgate.core.errors import UserError

    if len(models) > 1 and (reuse or len(set(models)) < len(models)):
        what = "--reuse takes one model" if reuse else "a model is given twice"
        raise UserError(what, fix="name each model once, without --reuse")
    first = CheckSpec(
        model=models[0],
        kv=tuple(kv or ()),
        base=base,
        engine=engine,
        policy=policy,
        preset=preset,
        suites=tuple(suite or ()),
        context_tokens=context,
        threads=threads,
        seed=seed,
        corpus=corpus,
        golden=golden,
        engine_python=engine_python,
        env=_variables(engine_env or []),
        store=store,
        out=out,
        fresh=fresh,
        engine_arguments=tuple(engine_arg or ()),
        arms=tuple(arm or ()),
        against=against,
        log=log,
        base_log=base_log,
        assume_engaged=assume_engaged,
        same_model=same_model,
    )
    if len(models) > 1:
        return _check_all([first.model_copy(update={"model": m}) for m in models], json_out=json_out)
    return _check_one(first, reuse=reuse, json_out=json_out)


def _check_one(spec: CheckSpec, *, reuse: bool, json_out: bool) -> int:
    from kvgate.campaign.check import check as run_check
    from kvgate.campaign.check import reusable
    from kvgate.cli._show import print_outcome
    from kvgate.cli._terminal import TerminalProgress, print_json
    from kvgate.report.json import check_json

    if reuse and (old := reusable(spec)) is not None:
        from kvgate.cli.show import show_run

        return show_run(old[0], spec.store, json_out=json_out, policy_digest=old[1])
    with TerminalProgress() as progress:
        outcome = run_check(spec, progress)
    if json_out:
        print_json(check_json(outcome.view, str(outcome.files["report.html"])))
    else:
        print_outcome(outcome.view, outcome.files)
    return outcome.exit_code


def _check_all(specs: Sequence[CheckSpec], *, json_out: bool) -> int:
    """Several models in turn. What can be refused is refused before the first starts; the summary comes last."""
    from kvgate.campaign.series import check_series
    from kvgate.cli._show import print_outcome, print_series
    from kvgate.cli._terminal import TerminalProgress, print_json
    from kvgate.report.json import check_json

    with TerminalProgress() as progress:
        series = check_series(specs, progress)
    if json_out:
        checks = [
            check_json(e.outcome.view, str(e.outcome.files["report.html"]))
            if e.outcome is not None
            else {"schema": "kvgate.check/1", "model": {"name": e.model}, "exit_code": e.exit_code, "why": e.error}
            for e in series.entries
        ]
        print_json({"schema": "kvgate.checks/1", "exit_code": series.exit_code, "checks": checks})
        return series.exit_code
    for entry in series.entries:
        if entry.outcome is not None:
            print_outcome(entry.outcome.view, entry.outcome.files)
    print_series(series)
    return series.exit_code


def _variables(pairs: list[str]) -> dict[str, str]:
    """KEY=VALUE pairs as a mapping."""
    from kvgate.core.errors import UserError

    found = {}
    for pair in pairs:
        key, eq, value = pair.partition("=")
        if not eq or not key.isidentifier():
            raise UserError(f"--engine-env {pair!r} is not KEY=VALUE", fix="write e.g. --engine-env OMP_NUM_THREADS=1")
        found[key] = value
    return found
