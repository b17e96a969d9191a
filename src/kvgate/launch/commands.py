"""What launch answers: three commands that differ in nothing but the recipe, or the reason why one cannot be had."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.text import one_line
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
        model: as the engine is to be given it. config: its `config.json`; empty where it is not known.
        sinks: its attention has sinks. context_tokens, tp, host_cache_bytes: 0 is not said.
        calibrated_as: folder that a calibrator will have written; "" where the model is served as it is.
        cold_pages: format of pages that leave the GPU ("nvfp4"). helix: the deployment uses HELIX context parallelism.
    """

    model: str
    geometry: ModelGeometry
    recipe: Recipe
    version: str = ""
    device: Device | None = None
    sinks: bool = False
    context_tokens: int = 0
    tp: int = 0
    config: Mapping[str, object] = field(default_factory=dict)
    calibrated_as: str = ""
    cold_pages: str = ""
    host_cache_bytes: int = 0
    helix: bool = False

    @property
    def served(self) -> str:
        """The model that the candidate is given: the calibrated one, where there is to be one."""
        return self.calibrated_as or self.model

    @property
    def text_config(self) -> Mapping[str, object]:
        inner = self.config.get("text_config")
        return inner if isinstance(inner, Mapping) else self.config

    @property
    def model_type(self) -> str:
        """The family's word, lower case."""
        for place in (self.text_config, self.config):
            given = place.get("model_type")
            if isinstance(given, str) and given:
                return given.lower()
        return self.geometry.architecture.lower()

    @property
    def capability(self) -> str:
        """ "9.0", "gfx942"; "" where the device is not named."""
        return self.device.compute_capability if self.device is not None else ""

    @property
    def vendor(self) -> str:
        return self.device.vendor if self.device is not None else ""

    @property
    def where(self) -> str:
        """The device for a person."""
        return self.device.id if self.device is not None else "a device that is not named"


@dataclass(frozen=True, slots=True)
class Commands:
    """The answer.

    Attributes:
        baseline, rollback: None where there is none, and then `why_no_baseline`, `why_no_rollback` say why.
        backends: what was pinned, by arm ("candidate", "baseline"); empty where nothing was.
        loud: differences between the arms beside the recipe, which a person must see. notes: anything else.
        files: text of each file that a command names. calibrate: what to run before, once.
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
    files: Mapping[str, str] = field(default_factory=dict)
    calibrate: tuple[Serve, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "calibrate": [_document(step) for step in self.calibrate],
            "candidate": _document(self.candidate),
            "baseline": _document(self.baseline),
            "why_no_baseline": self.why_no_baseline or None,
            "rollback": _document(self.rollback),
            "why_no_rollback": self.why_no_rollback or None,
            "backends": dict(self.backends),
            "loud": list(self.loud),
            "notes": list(self.notes),
            "files": dict(self.files),
        }


def _document(serve: Serve | None) -> dict[str, Any] | None:
    return None if serve is None else {"argv": list(serve.argv), "env": dict(serve.env), "text": serve.text}


@dataclass(frozen=True, slots=True)
class Writer:
    """One engine's commands.

    Attributes:
        name: the engine's id. title: as it calls itself. aliases: other words for it, lower case.
        write: raises UserError with one line where the engine cannot serve what is asked.
        model: what it is given.
        calibrator: the one whose checkpoints it reads best; "" where it reads none.
    """

    name: str
    title: str
    write: Callable[[Ask], Commands]
    aliases: tuple[str, ...] = ()
    model: Literal["folder", "gguf"] = "folder"
    calibrator: str = ""


def refuse_research_options(recipe: Recipe, engine: str) -> None:
    """Options that no serving engine has.

    Raises:
        UserError: residual or sink tokens.
    """
    if recipe.residual_tokens is not None or recipe.sink_tokens is not None:
        raise UserError(f"{engine} keeps no residual or sink tokens apart", fix="leave residual= and sink= out")


def refuse_auto(recipe: Recipe) -> None:
    """`auto` is no recipe: it follows the checkpoint and the model.

    Raises:
        UserError: a side says auto.
    """
    if any(side.codec == "auto" for _, side in recipe.sides()):
        raise UserError(
            f"KV recipe {one_line(str(recipe), 60)!r}: auto follows the checkpoint, so it names no type",
            fix="write native for the model's 16 bits, or a codec such as fp8_e4m3",
        )


def refuse_cold_pages(ask: Ask) -> None:
    """Options of TensorRT-LLM alone.

    Raises:
        UserError: one of them is given.
    """
    if ask.cold_pages or ask.host_cache_bytes or ask.helix:
        raise UserError(
            "cold pages are a feature of TensorRT-LLM", fix="leave --cold-pages, --host-cache and --helix out"
        )
