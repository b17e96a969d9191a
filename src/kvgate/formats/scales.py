"""KV scales from a checkpoint or a calibration: what they mean, and which are refused. No arrays: a model has few.

A scale is the dequantization scale, as vLLM and compressed-tensors write it: stored = fp8(x / scale), value = stored
* scale, so scale = amax / 448 for E4M3. TensorRT-LLM's `kv_quant_orig_scale` is the same number and
`kv_orig_quant_scale` its reciprocal. One number serves a layer's tensor; `strategy: attn_head` gives one for each KV
head, in any shape with that many elements ([kv_heads, 1, 1] in compressed-tensors' files).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from struct import pack, unpack

from kvgate.core.errors import UserError
from kvgate.formats.numbers import FloatSpec
from kvgate.formats.spec import KVSide

#: The largest float32.
LARGEST = (2.0 - 2.0**-23) * 2.0**127
#: Bad scales that a message names one by one.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class LayerScale:
    """The scale of one side of one layer.

    Attributes:
        layer: layer number. side: "k" or "v".
        values: one number for the tensor, or one a KV head, flat.
    """

    layer: int
    side: KVSide
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"layer {self.layer} {self.side}"


def scale_for(amax: float, spec: FloatSpec) -> float:
    """The scale that maps `amax` to the largest code.

    Raises:
        UserError: `amax` is zero, negative, infinite or NaN, or so small that the scale is 0 in float32: nothing was
            observed, or it overflowed.
    """
    if not (isfinite(amax) and amax > 0 and _float32(amax / spec.max) > 0):
        raise UserError(f"an amax of {amax:g} gives no scale", fix="calibrate with text that reaches every layer")
    return amax / spec.max


def for_fnuz(scale: float) -> float:
    """The checkpoint's E4M3FN scale on a platform that stores E4M3FNUZ: twice it.

    The codes of fnuz mean half, and vLLM uses up to 224 of its 240 (model_executor/layers/quantization/kv_cache.py,
    0.32.0).
    """
    return 2.0 * scale


def check_scales(scales: Iterable[LayerScale], kv_heads: Mapping[int, int]) -> Mapping[tuple[int, KVSide], LayerScale]:
    """Scales by layer and side, each fit to be used.

    Args:
        scales: what a file holds, in any order.
        kv_heads: KV heads of every layer that needs a K and a V scale.

    Raises:
        UserError: a scale is zero, negative, NaN or infinite in float32; or absent, given twice, for a layer that is
            not there, or of a shape that is neither one number nor one a head. The message counts the bad ones and
            names the first.
    """
    found: dict[tuple[int, KVSide], LayerScale] = {}
    bad: list[str] = []
    total = 0
    for one in scales:
        total += 1
        key = (one.layer, one.side)
        if key in found:
            raise UserError(f"the scale of {one} is given twice", fix="give it once")
        found[key] = one
        if one.layer not in kv_heads:
            raise UserError(f"there is a scale of {one}, but no such layer with a KV cache")
        wrong = _wrong(one, kv_heads[one.layer])
        if wrong:
            bad.append(f"{one} {wrong}")
    if bad:
        raise UserError(
            f"{len(bad)} of {total} KV scales cannot be used: {_list(bad)}",
            fix="scales are positive and finite: calibrate these layers again, or keep them native",
        )
    absent = [f"layer {n} {side}" for n in kv_heads for side in _SIDES if (n, side) not in found]
    if absent:
        raise UserError(
            f"{len(absent)} of {2 * len(kv_heads)} KV scales are absent: {_list(absent)}",
            fix="engines take 1.0 for an absent scale: calibrate these layers, or state @unit",
        )
    return found


_SIDES: tuple[KVSide, ...] = ("k", "v")


def _wrong(one: LayerScale, heads: int) -> str:
    if len(one.values) not in (1, heads):
        return f"has {len(one.values)} values for {heads} KV heads"
    for head, value in enumerate(one.values):
        # Engines keep scales in float32: what underflows or overflows there is as bad as 0 or infinity.
        if isnan(value) or not 0 < _float32(value) <= LARGEST:
            return f"is {value:g}" if len(one.values) == 1 else f"is {value:g} at head {head}"
    return ""


def _float32(value: float) -> float:
    """The nearest float32; infinity beyond the largest."""
    return inf if abs(value) > LARGEST else float(unpack("<f", pack("<f", value))[0])


def _list(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
