"""Scales that are not there yet: which calibrator writes them, where to, and what is served then."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.recipe import Side
from kvgate.core.text import one_line
from kvgate.launch.checkpoint_kv import CheckpointKv, checkpoint_kv
from kvgate.launch.commands import Ask, Serve, Writer
from kvgate.launch.scale_origin import UNSCALED, makes_its_own

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_CHARS = 80


@dataclass(frozen=True, slots=True)
class CalibrateAsk:
    """What is to be calibrated.

    Attributes:
        model: as it was typed. codec: "fp8_e4m3", "nvfp4". per_head: one scale for each head. into: the new folder.
        checkpoint: what the model's own quantization says. latent: MLA.
    """

    model: str
    codec: str
    per_head: bool
    into: str
    checkpoint: CheckpointKv
    latent: bool = False


@dataclass(frozen=True, slots=True)
class Steps:
    """Commands to run once, and the files that they read. loud and notes: as in `Commands`."""

    commands: tuple[Serve, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    loud: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibrator:
    """One calibrator.

    Attributes:
        name: what --calibrate takes. title: as it calls itself. aliases: other words, lower case.
        codecs: types that it writes scales for. engines: that read its checkpoints' KV scales.
        steps: raises UserError where it cannot.
    """

    name: str
    title: str
    codecs: tuple[str, ...]
    engines: tuple[str, ...]
    steps: Callable[[CalibrateAsk], Steps]
    aliases: tuple[str, ...] = ()


class Calibrated(NamedTuple):
    """The question with the model that will be served; steps is None where nothing is to be calibrated."""

    ask: Ask
    steps: Steps | None


def with_calibration(ask: Ask, writer: Writer, named: str) -> Calibrated:
    """Add a calibration where one is named, or where the recipe has calibrated scales that the checkpoint lacks.

    Raises:
        UserError: an unknown calibrator, or one that does not fit the recipe or the engine.
    """
    side = next((s for _, s in ask.recipe.sides()), None)
    checkpoint = checkpoint_kv(ask)
    if named == "none":
        named = ""
    elif not named and side is not None and (side.origin or "").startswith("calibrated") and not checkpoint.asks:
        named = writer.calibrator
        if not named:
            raise UserError(f"{side}: {writer.title} takes no scales from a checkpoint", fix=f"write {side.codec}")
    if not named:
        return Calibrated(ask, None)
    chosen = _calibrator(named)
    if writer.name not in chosen.engines:
        raise UserError(
            f"{chosen.title} writes no KV scales that {writer.title} reads",
            allowed=[c.name for c in calibrators().values() if writer.name in c.engines],
            fix="leave --calibrate out",
        )
    codec = _codec(side, ask, chosen)
    into = _folder(ask.model, codec)
    latent = any(y.is_latent for y in ask.geometry.layers)
    per_head = side is not None and "head" in side.params
    steps = chosen.steps(CalibrateAsk(ask.model, codec, per_head, into, checkpoint, latent))
    return Calibrated(replace(ask, calibrated_as=into), steps)


def calibrators() -> Mapping[str, Calibrator]:
    """Every calibrator, by name."""
    return registry.discover("calibrator")


def _calibrator(named: str) -> Calibrator:
    for found in calibrators().values():
        if named == found.name or named in found.aliases:
            return found
    raise UserError(f"unknown calibrator {one_line(named, 40)!r}", allowed=(*calibrators(), "none"))


def _codec(side: Side | None, ask: Ask, chosen: Calibrator) -> str:
    """The type whose scales are wanted; the engine's words for FP8 are one."""
    if side is None:
        raise UserError("a native cache needs no calibration", fix="leave --calibrate out, or write fp8_e4m3")
    codec = {"fp8": "fp8_e4m3"}.get(side.codec, side.codec)
    if codec in UNSCALED or makes_its_own(codec):
        raise UserError(f"{side.codec} takes no scales from a checkpoint", fix="leave --calibrate out")
    if codec not in chosen.codecs:
        raise UserError(f"{chosen.title} calibrates no {side.codec} cache", allowed=chosen.codecs)
    if side.origin == "unit":
        raise UserError(f"{side}: scales of 1.0 need no calibration", fix="leave @unit or --calibrate out")
    return codec


def _folder(model: str, codec: str) -> str:
    """A new folder beside nothing of the user's: the model's last name and the type."""
    last = _UNFIT.sub("-", model.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]).strip("-.")[:_MAX_NAME_CHARS]
    return f"./{last or 'model'}-kv-{codec.replace('_', '-')}"
