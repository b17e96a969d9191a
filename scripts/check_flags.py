"""Holds every option that `kvgate launch` can write against the engine's own argument parser; writes a golden file.

    python scripts/check_flags.py vllm --python .vllm/bin/python      # the installed package's parser, imported
    python scripts/check_flags.py sglang --wheel sglang-0.5.23.whl    # its declared fields, read as syntax; no import
    ... --check                                                       # compare with the golden file, write nothing

The golden files are tests/launch/data/flags_{vllm,sglang}.json. Options that the parser does not have end the run with
status 1: either launch invents one, or the release has renamed it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parent.parent / "tests" / "launch" / "data"
#: The dtype and backend options, whose values are held against what the parser takes.
VALUED: Final = {
    "vllm": ("--kv-cache-dtype", "--attention-backend"),
    "sglang": (
        "--kv-cache-dtype",
        "--attention-backend",
        "--prefill-attention-backend",
        "--decode-attention-backend",
        "--dsa-prefill-backend",
        "--dsa-decode-backend",
        "--dtype",
    ),
}
#: Options that older pages name and that must not be there: a reader of the parser that accepts all would pass them.
GONE: Final = {
    "vllm": ("--calculate-kv-scales", "--kv-dtype"),
    "sglang": ("--int8-kv-cache", "--kv-cache-dtype-skip-layers"),
}
_VLLM: Final = """
import json, vllm
from vllm.entrypoints.cli.serve import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.backends.registry import AttentionBackendEnum
parser = make_arg_parser(FlexibleArgumentParser())
options = {o: [str(c) for c in (a.choices or ())] for a in parser._actions for o in a.option_strings}
options["--attention-backend"] = options["--attention-backend"] or [b.name for b in AttentionBackendEnum]
print("KVGATE " + json.dumps({"version": vllm.__version__, "options": options}))
"""


@cache
def emitted(engine: str) -> dict[str, list[str]]:
    """Every option of every command in the matrix, with all values that are given to it, in name order."""
    os.environ.setdefault("KVGATE_OFFLINE", "1")
    from kvgate.launch.matrix import cases

    found: dict[str, set[str]] = {}
    for case in cases((engine,)):
        if case.answer is None:
            continue
        for serve in (case.answer.candidate, case.answer.baseline, case.answer.rollback):
            for option, values in options_of(serve.argv if serve is not None else ()):
                found.setdefault(option, set()).update(values if option in VALUED[engine] else ())
    return {option: sorted(values) for option, values in sorted(found.items())}


def options_of(argv: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Options of a command with the words behind each."""
    at = [i for i, word in enumerate(argv) if word.startswith("--")]
    for i, end in zip(at, (*at[1:], len(argv)), strict=False):
        yield argv[i], argv[i + 1 : end]


def of_vllm(python: str) -> dict[str, Any]:
    """The parser of an installed vLLM: every option string with its choices."""
    out = subprocess.run([python, "-c", _VLLM], capture_output=True, text=True, check=False, env={**os.environ})
    line = next((x for x in out.stdout.splitlines() if x.startswith("KVGATE ")), "")
    if not line:
        raise SystemExit(f"{python} cannot show vLLM's parser:\n{out.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(line.removeprefix("KVGATE "))
    return {
        **found,
        "how_made": "vllm.entrypoints.cli.serve.make_arg_parser, imported in the package's own Python",
    }


def of_sglang(wheel: Path) -> dict[str, Any]:
    """The options that a wheel of SGLang declares: `A[type, Arg(...)]` fields, and add_argument calls."""
    options: dict[str, list[str]] = {}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        version = next(n.split("-")[1].removesuffix(".dist") for n in names if n.endswith(".dist-info/METADATA"))
        constants = _constants(ast.parse(archive.read("sglang/srt/arg_groups/choices.py")))
        for name in names:
            if name.startswith("sglang/srt/arg_groups/fields/") and name.endswith(".py"):
                options.update(_fields(ast.parse(archive.read(name)), constants))
        options.update(_added(ast.parse(archive.read("sglang/srt/server_args.py"))))
    how = "arg_groups/fields/*.py and server_args.py of the wheel, read as syntax trees: nothing was imported"
    return {"version": version, "options": options, "how_made": how}


def _constants(tree: ast.Module) -> dict[str, list[str]]:
    """Lists of words that the module names."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List):
            found[node.targets[0].id] = [str(e.value) for e in node.value.elts if isinstance(e, ast.Constant)]
    return found


def _fields(tree: ast.Module, constants: dict[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """Options of the annotated fields; the rules are those of arg_utils.add_cli_args_from_dataclass."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        note = node.annotation
        if not (isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name) and note.value.id == "A"):
            continue
        parts = note.slice.elts[1:] if isinstance(note.slice, ast.Tuple) else []
        arg = next((p for p in parts if isinstance(p, ast.Call)), None)
        keywords = {k.arg: k.value for k in arg.keywords} if arg is not None else {}
        if arg is None and not any(isinstance(p, (ast.Constant, ast.JoinedStr)) for p in parts):
            continue
        hidden, own = keywords.get("no_cli"), keywords.get("cli_name")
        if isinstance(hidden, ast.Constant) and hidden.value:
            continue
        name = own.value if isinstance(own, ast.Constant) else "--" + node.target.id.replace("_", "-")
        choices = _words(keywords.get("choices"), constants)
        for option in (name, *_words(keywords.get("aliases"), constants)):
            yield str(option), choices


def _added(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for word in node.args:
                if isinstance(word, ast.Constant) and str(word.value).startswith("--"):
                    yield str(word.value), []


def _words(node: ast.expr | None, constants: dict[str, list[str]]) -> list[str]:
    if isinstance(node, ast.Name):
        return constants.get(node.id, [])
    return [str(e.value) for e in node.elts if isinstance(e, ast.Constant)] if isinstance(node, ast.List) else []


def golden(engine: str, parser: dict[str, Any]) -> dict[str, Any]:
    """What is stored: each option with whether the parser takes it, and the values that it takes where they matter."""
    written = emitted(engine)
    known: dict[str, list[str]] = parser["options"]
    asked = sorted({*written, *GONE[engine]})
    return {
        "engine": engine,
        "package_version": parser["version"],
        "how_made": parser["how_made"] + "; scripts/check_flags.py",
        "flags": {option: {"accepted": option in known} for option in asked},
        "choices": {option: sorted(known.get(option, [])) for option in VALUED[engine] if option in known},
    }


def faults(engine: str, body: dict[str, Any]) -> list[str]:
    """What launch writes and the parser does not take."""
    found = []
    for option, values in emitted(engine).items():
        if not body["flags"].get(option, {}).get("accepted"):
            found.append(f"{engine} has no option {option}")
        elif body["choices"].get(option):
            found += [f"{option} takes no {v!r}" for v in values if v not in body["choices"][option]]
    return found + [f"{o} is there, and launch takes it for gone" for o in GONE[engine] if body["flags"][o]["accepted"]]


def main(argv: list[str] | None = None) -> int:
    """Run the check; returns the exit status."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("engine", choices=sorted(VALUED))
    parse.add_argument("--python", default=sys.executable, help="interpreter that has vllm")
    parse.add_argument("--wheel", type=Path, help="wheel of sglang")
    parse.add_argument("--check", action="store_true", help="compare with the golden file, and write nothing")
    said = parse.parse_args(argv)
    if said.engine == "sglang" and said.wheel is None:
        parse.error("sglang needs --wheel: pip download sglang --no-deps")
    body = golden(said.engine, of_vllm(said.python) if said.engine == "vllm" else of_sglang(said.wheel))
    wrong = faults(said.engine, body)
    for text in wrong:
        print(text, file=sys.stderr)
    target = DATA / f"flags_{said.engine}.json"
    if said.check:
        if json.loads(target.read_text()) != body:
            print(f"{target.name} is not what this package would give: run without --check", file=sys.stderr)
            return 1
    elif not wrong:
        DATA.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(body, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
