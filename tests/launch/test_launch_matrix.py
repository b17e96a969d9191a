"""Every answer of the matrix at once: no invented option, no finding of lint, arms that differ in the recipe alone.

The devices here are one of each NVIDIA generation and one of AMD; `scripts/check_flags.py` walks all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvgate.enginefacts.facts import load
from kvgate.launch.commands import Commands, Serve
from kvgate.launch.matrix import MODELS, Case, cases
from kvgate.lint.run import Options, lint

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[2]
DEVICES = ("a100-80gb", "h100", "b200", "rtx5090", "mi300x")
#: Options that hold the KV type or a kernel: the arms may differ in these and in nothing else.
RECIPE = {
    "vllm": ("--kv-cache-dtype", "--kv-cache-dtype-skip-layers", "--attention-backend"),
    "sglang": ("--kv-cache-dtype", "--attention-backend", "--dsa-prefill-backend", "--dsa-decode-backend"),
    "trtllm": ("--config",),
}
BACKENDS = ("--attention-backend", "--dsa-prefill-backend", "--dsa-decode-backend")


def options(serve: Serve) -> dict[str, tuple[str, ...]]:
    """Options of a command, each with the words behind it; the words in front under ""."""
    found: dict[str, tuple[str, ...]] = {"": ()}
    at = ""
    for word in serve.argv:
        if word.startswith("--"):
            at = word
            found[at] = ()
        else:
            found[at] += (word,)
    return found


def arms(answer: Commands) -> list[Serve]:
    """The commands that there are, each once."""
    return list({s.text: s for s in (answer.candidate, answer.baseline, answer.rollback) if s is not None}.values())


@pytest.fixture(scope="module")
def walked() -> dict[str, list[Case]]:
    """Answers and refusals by engine."""
    return {engine: list(cases((engine,), MODELS, DEVICES)) for engine in RECIPE}


def golden(engine: str) -> dict[str, Any]:
    return dict(json.loads((DATA / f"flags_{engine}.json").read_text()))


def unknown(serve: Serve, body: dict[str, Any]) -> list[str]:
    """Options that the parser does not have, and values that it does not take."""
    found = []
    for option, values in options(serve).items():
        if option and not body["flags"].get(option, {}).get("accepted"):
            found.append(option)
        allowed = body["choices"].get(option)
        found += [v for v in values if allowed and v not in allowed]
    return found


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_option_is_invented(engine: str, walked: dict[str, list[Case]]) -> None:
    """Each option and each value of the dtype and backend options is one that the engine's own parser takes."""
    body = golden(engine)
    written = [s for c in walked[engine] if c.answer is not None for s in arms(c.answer)]

    assert {w for s in written for w in unknown(s, body)} == set()
    assert body["package_version"].split("+")[0] == load(engine).newest
    # The comparison sees an option of before, and a value of another engine.
    gone = next(o for o, row in body["flags"].items() if not row["accepted"])
    assert unknown(Serve((engine, gone, "x", "--kv-cache-dtype", "q8_0")), body) == [gone, "q8_0"]


@pytest.mark.parametrize("engine", list(RECIPE))
def test_options_are_in_the_facts(engine: str, walked: dict[str, list[Case]]) -> None:
    """lint knows each option that launch writes, under its own name."""
    known = {n for f in load(engine).flag for n in (f.name, *f.aliases)}
    written = {o for c in walked[engine] if c.answer is not None for s in arms(c.answer) for o in options(s) if o}

    assert written <= known


@pytest.mark.parametrize("engine", list(RECIPE))
def test_the_arms_differ_in_nothing_but_the_recipe(engine: str, walked: dict[str, list[Case]]) -> None:
    """The type, kept layers, and the kernel where that is shouted; a kernel that differs in silence fails."""
    compared = 0
    for case in walked[engine]:
        if case.answer is None or case.answer.baseline is None:
            continue
        new, old = options(case.answer.candidate), options(case.answer.baseline)
        differ = {o for o in {*new, *old} if new.get(o) != old.get(o)}
        assert differ <= set(RECIPE[engine]), case
        if differ & set(BACKENDS):
            assert any("THE KERNEL CHANGES" in t for t in case.answer.loud), case
        compared += 1
    assert compared > 200


@pytest.mark.parametrize("engine", list(RECIPE))
def test_a_way_back_is_sixteen_bits_or_there_is_none(engine: str, walked: dict[str, list[Case]]) -> None:
    """No rollback says auto for a checkpoint or a model that auto turns to FP8; a missing one has its reason."""
    for case in walked[engine]:
        if case.answer is None:
            continue
        back = case.answer.rollback
        if back is None:
            assert case.answer.why_no_rollback.startswith("no known rollback: "), case
            continue
        word = options(back).get("--kv-cache-dtype", ("file",))[0]
        if word == "auto":
            assert options(back)["--dtype"] == ("float16",), case
        elif word == "file":
            assert "FP8" not in case.model and "NVFP4" not in case.model, case
        else:
            assert word in ("bfloat16", "float16", "bf16"), case


@pytest.mark.parametrize("engine", list(RECIPE))
def test_lint_finds_no_error(
    engine: str, walked: dict[str, list[Case]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that is written is one that lint lets pass, with its files beside it."""
    monkeypatch.chdir(tmp_path)
    seen: set[tuple[object, ...]] = set()
    bad = []
    for case in walked[engine]:
        for serve in arms(case.answer) if case.answer is not None else ():
            assert case.answer is not None
            key = (serve.text, case.device, tuple(case.answer.files.items()))
            if key in seen or case.device == "mi300x":
                continue
            seen.add(key)
            for name, text in case.answer.files.items():
                Path(name).write_text(text)
            report = lint(serve.text, Options(device=case.device, engine_version=load(engine).newest))
            assert report.engines == (engine,)
            bad += [(case.model, case.recipe, case.device, f.id) for f in report.findings if f.severity == "error"]

    assert bad == [] and len(seen) > 50


@pytest.mark.parametrize("engine", list(RECIPE))
def test_each_refusal_is_one_line_that_helps(engine: str, walked: dict[str, list[Case]]) -> None:
    """What is refused names what to write instead, or what is allowed."""
    refused = {c.refusal for c in walked[engine] if c.answer is None}

    assert refused and all("\n" not in r and len(r) < 400 for r in refused)
    helpless = {r for r in refused if ";" not in r and "is known to read" not in r}
    assert helpless == set()


def test_the_script_refuses_what_the_parser_lacks(tmp_path: Path) -> None:
    """check_flags fails for a wheel without one of launch's options: a parser that knows nothing is no approval."""
    import zipfile

    wheel = tmp_path / "sglang-0.5.99-py3-none-any.whl"
    field = 'class Model:\n    kv_cache_dtype: A[str, Arg(help="x", choices=["auto", "bf16"])] = "auto"\n'
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang-0.5.99.dist-info/METADATA", "Version: 0.5.99\n")
        archive.writestr("sglang/srt/arg_groups/choices.py", "")
        archive.writestr("sglang/srt/arg_groups/fields/model.py", field)
        archive.writestr("sglang/srt/server_args.py", "")
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import check_flags, kvgate.launch.matrix as m; "
        "m.cases.__defaults__ = (m.ENGINES, ('Qwen/Qwen3-32B',), ('h100',)); "
        f"sys.exit(check_flags.main(['sglang', '--wheel', {str(wheel)!r}, '--check']))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)

    assert done.returncode == 1
    assert "sglang has no option --attention-backend" in done.stderr
    assert "--kv-cache-dtype takes no 'fp8_e4m3'" in done.stderr
