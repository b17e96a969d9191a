"""What `kvgate plan` loads before it answers: time to start is mostly modules."""

from __future__ import annotations

import json
import subprocess
import sys

#: Loaded only where a recipe names a method, a codec computes, or another verb is asked for.
NOT_NEEDED = (
    "kvgate.formats.xp",
    "kvgate.formats.codec",
    "kvgate.methods.kivi",
    "kvgate.methods.turboquant_vllm",
    "kvgate.cli.check",
    "rich.progress",
    "numpy",
)
_SCRIPT = """
import contextlib, io, json, sys
from kvgate.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""


def _loaded(*argv: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *argv], capture_output=True, text=True, check=True, timeout=120
    )
    code, names = json.loads(done.stdout)
    return code, set(names)


def test_a_plan_of_plain_codecs_loads_no_arithmetic_no_methods_and_no_other_verb() -> None:
    """Sizes come from the tables alone."""
    code, names = _loaded("plan", "Qwen/Qwen3-32B", "--device", "h200", "--kv", "bf16", "--kv", "fp8_e4m3")
    assert code == 0
    assert not [name for name in NOT_NEEDED if name in names]


def test_a_recipe_of_a_method_loads_the_methods() -> None:
    """The look-up that the plain recipe is spared is still there."""
    code, names = _loaded("plan", "Qwen/Qwen3-32B", "--kv", "kivi:bits=2", "--json")
    assert code == 0
    assert "kvgate.methods.kivi" in names


def test_an_unknown_verb_is_still_held_against_all_of_them() -> None:
    """Only a first word that is a verb keeps the others from being built."""
    code, names = _loaded("plann", "Qwen/Qwen3-32B")
    assert code == 2
    assert {"kvgate.cli.plan", "kvgate.cli.check", "kvgate.cli.report"} <= names
