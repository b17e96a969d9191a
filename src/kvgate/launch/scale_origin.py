"""Where the scales of a recipe come from, held against what the checkpoint brings: engines read no others."""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.core.recipe import Side
from kvgate.launch.checkpoint_kv import CheckpointKv
from kvgate.launch.commands import Ask

#: Types without scales, and types that make theirs for each token (with no word from outside).
UNSCALED = ("bf16", "f16", "f32")
_OWN = ("_per_token_head", "turboquant_", "ultraquant_", "mxfp8", "fp4_mx_block16", "_ds_mla")


def makes_its_own(codec: str) -> bool:
    """Whether the type computes its scales at run time, so that no checkpoint brings any."""
    return any(word in codec for word in _OWN)


def origin_notes(ask: Ask, side: Side, codec: str, checkpoint: CheckpointKv, engine: str) -> tuple[str, ...]:
    """Notes on the scales that will be in force.

    Args:
        codec: canonical id, or a preset's word, behind the side. engine: for the message.

    Raises:
        UserError: an origin that would not be honoured.
    """
    given = str(side)
    if codec in UNSCALED or makes_its_own(codec):
        what = "has no scales" if codec in UNSCALED else "makes its scales at run time"
        if side.origin not in (None, "dynamic") or (codec in UNSCALED and side.origin):
            raise UserError(f"{given}: {codec} {what}", fix=f"write {side.codec}")
        return ()
    if side.origin == "dynamic":
        raise UserError(f"{given}: {engine} computes no scales while it serves", fix="write @unit, or calibrate")
    calibrated = bool(ask.calibrated_as)
    _check_grain(side, checkpoint, engine, calibrated)
    if side.origin == "checkpoint" and not (checkpoint.asks or calibrated):
        raise UserError(
            "the checkpoint has no KV scheme, so @checkpoint has no scales",
            fix="add --calibrate llm-compressor, or write @unit",
        )
    if side.origin == "unit" and (checkpoint.asks or calibrated):
        raise UserError(
            f"the checkpoint carries KV scales, and {engine} has no option to leave them out", fix="leave @unit out"
        )
    if calibrated:
        return (f"{engine} takes the scales from {ask.calibrated_as}, and from nowhere else",)
    if checkpoint.asks:
        return ("the scales are those of the checkpoint: kvgate lint looks at their names, shapes and values",)
    return ("the checkpoint names no KV scheme: scales are 1.0",)


def _check_grain(side: Side, checkpoint: CheckpointKv, engine: str, calibrated: bool) -> None:
    for param in side.params:
        if param == "head" and not (checkpoint.per_head or calibrated):
            raise UserError(
                f"{side}: scales for each head come from a checkpoint of strategy attn_head, never from an option",
                fix="add --calibrate llm-compressor, or leave :head out",
            )
        if param == "tensor" and checkpoint.per_head and not calibrated:
            raise UserError(f"{side}: the checkpoint has one scale for each head", fix="write :head")
        if param not in ("head", "tensor"):
            raise UserError(f"{side}: {engine} takes no {param!r} with {side.codec}", fix=f"write {side.codec}")


def refuse_affine(checkpoint: CheckpointKv, codec: str, engine: str) -> None:
    """ModelOpt's affine and rotated caches carry biases or a rotation that no FP8 path of an engine reads.

    Raises:
        UserError: the checkpoint is one, and the cache is to be quantized.
    """
    if codec not in UNSCALED and checkpoint.algorithm.endswith(("_AFFINE", "_ROTATE")):
        raise UserError(
            f"{engine} does not read ModelOpt's {checkpoint.algorithm} cache: its biases would be dropped",
            fix="calibrate anew with --kv_cache_qformat fp8, or write native",
        )
