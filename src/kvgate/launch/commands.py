"""What launch answers: three commands that differ in nothing but the recipe, or the reason why one cannot be had."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.hardware.device import Device

SCHEMA = "kvgate.launch/1"


@dataclass(frozen=True, slots=True)
class Serve:
    """One command: a list of words and the variables in front of it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """As typed into a POSIX shell."""
        return " ".join((*(f"{k}={shlex.quote(v)}" for k, v in self.env.items()), shlex.join(self.argv)))


@dataclass(frozen=True, slots=True)
class Ask:
    """What a person wants to serve.

    Attributes:
        model: as the engine is to be given it. sinks: its attention has sinks. context_tokens, tp: 0 is not said.
    """

    model: str
    geometry: ModelGeometry
    recipe: Recipe
    version: str = ""
    device: Device | None = None
    sinks: bool = False
    context_tokens: int = 0
    tp: int = 0


@dataclass(frozen=True, slots=True)
class Commands:
    """The answer.

    Attributes:
        baseline, rollback: None where there is none, and then `why_no_baseline`, `why_no_rollback` say why.
        backends: what was pinned, by arm ("candidate", "baseline"); empty where nothing was.
        loud: differences between the arms beside the recipe, which a person must see. notes: anything else.
    """

    engine: str
    candidate: Serve
    baseline: Serve | None
    rollback: Serve | None
    why_no_baseline: str = ""
    why_no_rollback: str = ""
    backends: Mapping[str, str] = field(default_factory=dict)
    loud: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "candidate": _document(self.candidate),
            "baseline": _document(self.baseline),
            "why_no_baseline": self.why_no_baseline or None,
            "rollback": _document(self.rollback),
            "why_no_rollback": self.why_no_rollback or None,
            "backends": dict(self.backends),
            "loud": list(self.loud),
            "notes": list(self.notes),
        }


def _document(serve: Serve | None) -> dict[str, Any] | None:
    return None if serve is None else {"argv": list(serve.argv), "env": dict(serve.env), "text": serve.text}


def refuse_research_options(recipe: Recipe, engine: str) -> None:
    """Options that no serving engine has.

    Raises:
        UserError: residual or sink tokens.
    """
    if recipe.residual_tokens is not None or recipe.sink_tokens is not None:
        raise UserError(f"{engine} keeps no residual or sink tokens apart", fix="leave residual= and sink= out")
