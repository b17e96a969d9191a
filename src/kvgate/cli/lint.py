"""`kvgate lint`: what a command, a manifest or a checkpoint will not do, before it is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from kvgate.lint.judged import Judged

_FORMATS = ("text", "json", "sarif", "github")


class _OneText(TyperCommand):
    """A serving command without quotes has options that are not lint's: what is wrong is then the quotes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)  # the parser takes words away
        try:
            return super().parse_args(ctx, args)
        except Exception as e:
            # typer carries its own copy of click's exceptions from 0.29 on; both have format_message.
            if not hasattr(e, "format_message") or not (start := _unquoted(given)):
                raise
        from kvgate.core.errors import UserError

        raise UserError(
            "the serving command comes as several words",
            fix=f'put the serving command in quotes: kvgate lint "{start} ..."',
        )


def _unquoted(words: list[str]) -> str:
    """The beginning of a serving command that is given word by word; empty for anything else."""
    from kvgate.lint.command import Word
    from kvgate.lint.read.programs import find_engine

    leading = next((i for i, w in enumerate(words) if w.startswith("-")), len(words))
    alone = [Word("" if any(c.isspace() for c in w) else w) for w in words]
    if leading > 1 and words[0] != alone[0].text:
        return ""
    if leading > 1:
        return " ".join(words[: min(leading, 2)])
    found = find_engine(alone)
    if found is None:
        return ""
    name, behind = found[1], found[2]
    at = next(i for i, w in enumerate(words) if w.replace("\\", "/").rsplit("/", 1)[-1] == name)
    first = at - 2 if at > 1 and words[at - 1] == "-m" else at
    return " ".join(words[first:behind])


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(cls=_OneText)(lint)


def lint(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="COMMAND|FILE", help="A command in quotes, a script, manifest, config, model folder, or -."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm, llama_cpp, where the text does not say.")] = "",
    engine_version: Annotated[str, typer.Option(help="e.g. 0.32.0 or b11549.")] = "",
    device: Annotated[str, typer.Option(help="GPU, e.g. h200, rtx4090, mi300x.")] = "",
    model: Annotated[str, typer.Option(help="Model folder, config.json, GGUF file or hub id.")] = "",
    log: Annotated[Path | None, typer.Option(help="Start log of the same server: asked against done.")] = None,
    store: Annotated[str | None, typer.Option(help="Also look for verdicts on the model in this store.")] = None,
    format_: Annotated[str, typer.Option("--format", help="text, json, sarif or github.")] = "text",
    list_rules: Annotated[bool, typer.Option("--list-rules", help="Every rule with its source.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Find what a serving command will not do as it looks. Runs nothing; exit 1 on an error finding."""
    from kvgate.cli._terminal import out_console, print_json
    from kvgate.core.errors import UserError
    from kvgate.lint.run import Options, rules
    from kvgate.lint.run import lint as run
    from kvgate.lint.show.document import document, rules_document, sarif
    from kvgate.lint.show.lines import github_lines, rule_lines, text_lines

    form = "json" if json_out else format_
    if form not in _FORMATS:
        raise UserError(f"unknown format {form[:40]!r}", allowed=_FORMATS)
    console = out_console()
    if list_rules:
        if form == "json":
            print_json(rules_document(rules()))
        else:
            for line in rule_lines(rules()):
                console.print(line, soft_wrap=True)
        return 0
    if text is None:
        raise UserError("nothing to lint", fix='give a command in quotes, e.g. kvgate lint "vllm serve MODEL"')
    report = run(text, Options(engine, engine_version, device, model, log, _judged(store)))
    if form == "json":
        print_json(document(report))
    elif form == "sarif":
        from kvgate import __version__

        print_json(sarif(report, __version__))
    else:
        for line in github_lines(report) if form == "github" else text_lines(report):
            console.print(line, soft_wrap=True)
    return report.exit_code


def _judged(store: str | None) -> tuple[Judged, ...] | None:
    """The runs' own verdicts in a store, oldest first; None where none was named."""
    if store is None:
        return None
    from kvgate.campaign.own import verdicts_of
    from kvgate.lint.judged import Judged
    from kvgate.store.open import open_store

    with open_store(store, create=False) as opened:
        found = []
        for row in reversed(opened.runs()):
            model, spec = row.manifest.get("model", {}), row.manifest.get("spec", {})
            asked = str(spec.get("model") or "")
            # A server's digest is of what it tells about itself, not of a file.
            digest = "" if "://" in asked else str(model.get("digest") or "")
            name, engine = str(model.get("name", "")), str(spec.get("engine") or "")
            found += [
                Judged(name, engine, str(v["candidate"]), str(v["decision"]), row.run_id, asked, digest, store)
                for v in verdicts_of(opened, row.run_id).own
            ]
        return tuple(found)
