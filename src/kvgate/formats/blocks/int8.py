"""int8: one signed byte an element with one scale for the tensor, as TensorRT-LLM stores it.

code = int8(x * (1/scale)), half to even, saturating at -128 and 127; value = code * scale, with scale TensorRT-LLM's
`kv_quant_orig` and 1/scale its `kv_orig_quant`. The scale lies outside the cache. Not verified on an engine: whether
the product is taken in float32, as here, or in the model's type.
Source: TensorRT-LLM, docs/source/reference/precision.md (INT8 KV cache) and the kernels' cvt.rni.sat.s8.f32.
vLLM has no such type; its int8_per_token_head finds scales by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.numerics import Overflow, ScaledNumerics
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


class Int8(ScaledNumerics):
    """Elements that do not know of each other: [n, k] float32 and [n, k] bytes."""

    unit = "element"
    nonfinite = "NaN becomes 0; an infinity saturates"

    def encode_blocks(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        q = xp.clip(xp.round_half_even(_scaled(x, scale, xp)), -128.0, 127.0)
        nan = xp.isnan(q)
        if xp.any(nan):
            q = xp.where(nan, 0.0, q)
        return xp.view(xp.cast(q, "i8"), "u8")

    def decode_blocks(self, packed: Array, xp: Namespace, scale: Array) -> Array:
        return xp.cast(xp.view(packed, "i8"), "f32") * scale

    def error_bound(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        """Half a step, or what is clipped; reciprocal and both products round once more."""
        size, q = xp.abs(x), _scaled(x, scale, xp)
        largest = xp.where(q < 0, 128.0, xp.full((1, 1), 127.0, "f32"))
        lost = xp.where(xp.abs(q) > largest, size - scale * largest, 0.5 * scale)
        bound = lost + size * 2.0**-20 + 2.0**-147
        return xp.where(xp.isfinite(scale * 128.0), bound, float("inf"))


def _scaled(x: Array, scale: Array, xp: Namespace) -> Array:
    return x * xp.divide(xp.full((1, 1), 1.0, "f32"), scale)


CODECS = (
    CodecSpec(
        name="int8",
        block=1,
        block_bytes=1,
        description="int8 codes, one scale for the tensor outside the cache",
        source=Source("spec", "TensorRT-LLM, docs/source/reference/precision.md"),
        spellings={"trtllm": ("int8",)},
        numerics=Int8(),
    ),
)
