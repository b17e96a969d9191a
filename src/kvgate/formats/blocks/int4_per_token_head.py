"""int4_per_token_head: rotated rows in 4 bits with one float32 scale, a zero point in its low bits, as vLLM stores it.

1. rotate by the randomised Hadamard matrix of `formats/random_signs.py` and round to bfloat16, the type of vLLM's K
   and V (a float16 model rounds to float16 there; this codec does not know of it);
2. scale = max((max - min) / 15, 1e-6); zero point z = clamp(round(-min / scale), 0, 15); code = clamp(round(x / scale
   + z), 0, 15); rounding is a half away from zero, by adding a half and cutting off;
3. z replaces the scale's four low mantissa bits, and the scale so changed is the one that decodes: value = (code - z)
   * scale.

Layout: D/2 bytes of nibbles, neighbours share a byte, the first one low | scale f32. vLLM rotates q instead of
rotating K back, which is the same sum; here values come back rotated back. z is clamped, so that a row whose rotated
values all have one sign decodes far away (all 10 gives one large coefficient, and that sets the scale; a row of two
equal values shows it bare). The bound says so. Encoding again moves values: the rotation back and forth rounds.
Source: vllm/v1/attention/ops/int4_per_token_head.py, vLLM 0.32.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.packing import pack_pairs, unpack_pairs
from kvgate.formats.random_signs import block_of, rotate, rotate_back
from kvgate.formats.spec import CodecSpec
from kvgate.formats.token_head import SCALE_BYTES, join, scale_of, split

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

_STEPS = 15.0


class Int4PerTokenHead(BlockNumerics):
    """Rows: x [n, D] float32, bytes [n, D/2 + 4]."""

    unit = "row"
    idempotent = False
    nonfinite = "the whole row decodes to NaN"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        y = xp.from_bf16(xp.to_bf16(rotate(x, xp)))
        scale, zero = _grid(y, xp)
        codes = xp.cast(xp.clip(_rounded(_on_grid(y, scale, zero, xp), xp), 0.0, _STEPS), "u8")
        return join(pack_pairs(codes), _hide(scale, zero, xp), xp)

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        codes, scale = split(packed, xp)
        zero = xp.cast(xp.bits(scale) & 15, "f32")
        return rotate_back((xp.cast(unpack_pairs(codes, xp), "f32") - zero) * scale, xp)

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        """The mean, over the elements that are rotated together, of what each loses.

        A rotated element loses its rounding to bfloat16 and half a step, or what the clamped zero point cuts off. The
        zero point in the scale changes it by at most 15 * 2**-23, times at most 15 steps: 2**-15 of a step. The last
        term is float32's rounding in two butterflies.
        """
        y = rotate(x, xp)
        rounded = xp.from_bf16(xp.to_bf16(y))
        scale, zero = _grid(rounded, xp)
        at = _on_grid(rounded, scale, zero, xp)
        steps = xp.maximum(xp.maximum(at - _STEPS, -at), 0.5) + 2.0**-15
        lost = steps * scale + xp.abs(y - rounded) + xp.abs(rounded) * 2.0**-21
        block = block_of(x.shape[1])
        rounding = _mean(xp.abs(x), block, xp) * (block * 2.0**-19)
        bound = (_mean(lost, block, xp) + rounding).reshape(x.shape[0], -1, 1)
        # Sums of a block of such values may overflow, here or on the way back.
        bound = xp.where((scale < 2.0**122 / block).reshape(-1, 1, 1), bound, float("inf"))
        return xp.broadcast(bound, (*bound.shape[:2], block)).reshape(x.shape)


def _grid(y: Array, xp: Namespace) -> tuple[Array, Array]:
    """Scale and zero point of each row, float32 [n, 1]."""
    low = xp.min(y)
    scale = scale_of(xp.max(y) - low, _STEPS, xp)
    return scale, xp.clip(_rounded(xp.divide(-low, scale), xp), 0.0, _STEPS)


def _on_grid(y: Array, scale: Array, zero: Array, xp: Namespace) -> Array:
    """Where y lies among the codes, not yet rounded."""
    return y * xp.divide(xp.full((1, 1), 1.0, "f32"), scale) + zero


def _rounded(a: Array, xp: Namespace) -> Array:
    """A half away from zero as vLLM does it; NaN becomes 0."""
    whole = xp.trunc(a + xp.where(a >= 0, 0.5, xp.full((1, 1), -0.5, "f32")))
    nan = xp.isnan(whole)
    return xp.where(nan, 0.0, whole) if xp.any(nan) else whole


def _hide(scale: Array, zero: Array, xp: Namespace) -> Array:
    return xp.from_bits((xp.bits(scale) & -16) | xp.cast(zero, "i32"))


def _mean(a: Array, block: int, xp: Namespace) -> Array:
    """Mean over each `block` elements: [n, D] -> [n D/b, 1]."""
    ones = xp.full((block, 1), 1.0 / block, "f32")
    return xp.matmul(a.reshape(-1, block), ones)


CODECS = (
    CodecSpec(
        name="int4_per_token_head",
        block=2,
        block_bytes=1,
        row_extra_bytes=SCALE_BYTES,
        description="rotated 4-bit codes, one float32 scale for each head of each token, its low bits the zero point",
        source=Source("spec", "vllm/v1/attention/ops/int4_per_token_head.py", "vLLM 0.32.0"),
        spellings={"vllm": ("int4_per_token_head",)},
        numerics=Int4PerTokenHead(),
    ),
)
