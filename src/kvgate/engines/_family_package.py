"""Which version of an engine an interpreter has: asked of the interpreter itself, without loading the engine.

For engines that are a Python package with a server in it (vLLM, SGLang, TensorRT-LLM).
"""

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

_TIMEOUT_S = 60
_ASK = (
    "import importlib.metadata as m, json, sys\n"
    "found = []\n"
    "for name in sys.argv[1:]:\n"
    "    try: found = [name, m.version(name)]; break\n"
    "    except m.PackageNotFoundError: pass\n"
    "print(json.dumps(found))"
)


@dataclass(frozen=True, slots=True)
class Family:
    """An engine's package.

    Attributes:
        engine: canonical id. title: for messages. packages: names it is published under.
        variable: environment variable that names the interpreter.
        steering: beginnings of variables that would change what the engine does without anybody having asked for it.
        harmless: names that begin so and have no part in numbers.
    """

    engine: str
    title: str
    packages: tuple[str, ...]
    variable: str
    steering: tuple[str, ...]
    harmless: tuple[str, ...] = ()

    @property
    def fix(self) -> str:
        """What a person does where it is not found."""
        return (
            f"give the Python that has {self.title} by --engine-python PATH, set {self.variable}, or start the server "
            "yourself and give its URL"
        )


@dataclass(frozen=True, slots=True)
class Installed:
    """The package as installed in one interpreter."""

    python: Path
    name: str
    version: str

    @property
    def release(self) -> str:
        """The version without its local part: "0.32.0+cpu" is 0.32.0."""
        return self.version.partition("+")[0]

    @property
    def is_cpu(self) -> bool:
        """A build that runs on CPUs only."""
        return self.name.endswith("-cpu") or "+cpu" in self.version


def find_installed(family: Family, python: Path | None) -> Installed:
    """The package in the given interpreter, else in that of the engine's variable, else in ours.

    Raises:
        UserError: no interpreter named and none in ours, or the one named cannot be run or does not have it.
    """
    if python is None:
        named = os.environ.get(family.variable)
        if named:
            python = Path(named)
        elif any(next(iter(metadata.distributions(name=name)), None) is not None for name in family.packages):
            python = Path(sys.executable)
        else:
            raise UserError(f"{family.engine} is not installed beside kvgate", fix=family.fix)
    # Not resolved: the link inside an environment is what makes it that environment.
    path = python.expanduser().absolute()
    try:
        changed = path.stat().st_mtime_ns
    except OSError as e:
        raise UserError(f"there is no engine interpreter {str(python)[:200]!r}: {e.strerror}", fix=family.fix) from None
    return _ask(family, path, changed)


@cache
def _ask(family: Family, python: Path, changed_ns: int) -> Installed:
    who = f"engine interpreter {str(python)!r}"
    try:
        argv = [str(python), "-I", "-c", _ASK, *family.packages]
        said = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, check=False)
        found = json.loads(said.stdout or b"null")
    except OSError as e:
        raise UserError(f"{who} cannot be started: {e.strerror}", fix=family.fix) from None
    except (subprocess.TimeoutExpired, ValueError):
        raise UserError(f"{who} gives no answer: is it a Python?", fix=family.fix) from None
    if found is None:
        why = one_line(said.stderr.decode("utf-8", "replace"), 120)
        raise UserError(f"{who} gives no answer: {why or 'is it a Python?'}", fix=family.fix)
    if not found:
        names = [f"package {n}" for n in family.packages]
        raise UserError(f"{str(python)!r} has no {family.title}", allowed=names, fix=family.fix)
    return Installed(python, str(found[0]), str(found[1]))
