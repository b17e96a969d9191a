"""`--arm NAME:python=PATH,env.K=V,batch=64`: one arm with settings of its own.

NAME is an arm that is there anyway (base, a candidate by its recipe, a floor of the policy), or a new word: then it is
one more floor, the base's recipe under these settings. A floor declares what it changes; on any other arm a change of
identity is a comparison of two deployments, which is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvgate.campaign.spec import usable_threads
from kvgate.core import registry
from kvgate.core.engine import Settings
from kvgate.core.errors import UserError

#: Word on the command line -> field of Settings.
_NUMBERS = {
    "batch": "batch_tokens",
    "ubatch": "ubatch_tokens",
    "slots": "slots",
    "threads": "threads",
    "checkpoints": "checkpoints",
}
_KEY = r"(?:python|env\.[A-Za-z_][A-Za-z0-9_]*|" + "|".join(_NUMBERS) + ")="
# A recipe may hold ":" and "=" itself, so the settings begin at the last place that looks like one of our keys.
_WHOLE = re.compile(rf"(?P<name>.+):(?P<settings>{_KEY}.*)", re.DOTALL)
_NEW_NAME = re.compile(r"[a-z0-9_]{1,32}")
#: Identity fields that follow from another interpreter: another package may be another build.
OF_PYTHON = ("version", "build", "epoch")
_HOW = "write NAME:python=PATH,env.KEY=VALUE,batch=64 (also ubatch, slots, threads, checkpoints)"


@dataclass(frozen=True, slots=True)
class Override:
    """What one arm has for itself."""

    name: str
    python: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    def settings(self, common: Settings) -> Settings:
        """The arm's settings."""
        changed: dict[str, Any] = {**self.numbers}
        return replace(common, env=dict(common.env) | dict(self.env), **changed)

    @property
    def alone(self) -> bool:
        """Needs a process of its own: all contexts of a panel share one interpreter and one environment.

        A panel has no context checkpoints either: they are the server's, and an arm with some would be its twin there.
        """
        return self.python is not None or bool(self.env) or bool(self.numbers.get("checkpoints"))

    @property
    def perturb(self) -> tuple[str, ...]:
        """Identity fields that it changes."""
        changed = [*self.numbers, *(["env"] if self.env else []), *(OF_PYTHON if self.python is not None else ())]
        return tuple(sorted(changed))


def read_overrides(texts: Sequence[str]) -> dict[str, Override]:
    """Overrides by arm name.

    Raises:
        UserError: not of the form, a key or an arm twice, a value that is no number, no such interpreter.
    """
    found: dict[str, Override] = {}
    for text in texts:
        override = _read(text)
        if override.name in found:
            raise UserError(f"--arm {override.name!r} is given twice", fix="give all its settings at once")
        found[override.name] = override
    return found


def _read(text: str) -> Override:
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        raise UserError(f"--arm {text[:200]!r} is not NAME:key=value,...", fix=_HOW)
    python: Path | None = None
    env: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for part in whole["settings"].split(","):
        key, eq, value = part.partition("=")
        if not eq or not re.fullmatch(_KEY, key + "="):
            raise UserError(f"--arm {whole['name']!r}: {part[:80]!r} is not a setting", fix=_HOW)
        name = key.removeprefix("env.")
        if name in env or (key == "python" and python is not None) or _NUMBERS.get(key) in numbers:
            raise UserError(f"--arm {whole['name']!r}: {key} is given twice", fix="give it once")
        if key == "python":
            python = _interpreter(whole["name"], value)
        elif key.startswith("env."):
            env[name] = value
        else:
            numbers[_NUMBERS[key]] = _number(whole["name"], key, value)
    return Override(whole["name"], python, env, numbers)


def _number(name: str, key: str, value: str) -> int:
    """A count; only checkpoints may be none, and more threads than CPUs would stand still by turns."""
    least, most = int(key != "checkpoints"), usable_threads() if key == "threads" else 9_999_999
    if not re.fullmatch(r"[0-9]{1,7}", value) or not least <= int(value) <= most:
        raise UserError(f"--arm {name!r}: {key} is {value[:20]!r}", fix=f"give a number from {least} to {most}")
    return int(value)


def _interpreter(name: str, value: str) -> Path:
    path = Path(value).expanduser()
    try:
        usable = path.is_file() and os.access(path, os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise UserError(f"--arm {name!r}: there is no interpreter {value[:200]!r}", fix="give the path of a python")
    return path.absolute()


def check_new_name(name: str, *, reserved: Collection[str] = ()) -> None:
    """A word for a new floor arm.

    Args:
        reserved: floors of other policies, whose settings a reader of the report would think of.

    Raises:
        UserError: it could be mistaken for a recipe or another floor, or does not print.
    """
    if not _NEW_NAME.fullmatch(name):
        raise UserError(
            f"--arm {name!r} is no arm of this check, and no name for a new floor",
            fix="use lower-case letters, digits and _, e.g. --arm old_build:python=PATH",
        )
    if name in reserved:
        raise UserError(f"--arm {name!r} is a floor that the policy does not have", fix="choose another name")
    if name == "native" or any(name in registry.discover(kind) for kind in ("codec", "method")):
        raise UserError(
            f"--arm {name!r} is no candidate of this check", fix=f"add --kv {name}, or choose another name for a floor"
        )
