"""ggml_mxfp4: llama.cpp's MXFP4: 32 E2M1 codes and one power-of-two scale per block.

Layout (17 bytes): shared exponent E8M0 | 16 bytes of nibbles, element j low and j+16 high (OCP packs neighbours).
The exponent is floor(log2 amax) - 2, from a float32 logarithm: just below a power of two it rounds up. Elements up to
8 scales are cut to 6. Below 2**-125 the exponent's byte wraps around and every code is 0.
Source: ggml-quants.c quantize_row_mxfp4_ref, llama.cpp b11434.
"""

from __future__ import annotations

from functools import cache
from math import log2
from struct import pack, unpack
from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats import packing
from kvgate.formats.blocks import _ggml_e2m1 as e2m1
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


class Shared(BlockNumerics):
    columns = True
    nonfinite = "NaN becomes 0; a block with an infinity decodes to 0"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        x, _, byte = self._scale_byte(x, xp)
        codes = e2m1.codes_of(x, self._scale(byte, xp), xp)
        return xp.concat([xp.cast(byte, "u8"), packing.pack_halves(codes)])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        codes = packing.unpack_halves(packed[:, 1:], xp)
        half = xp.power_of_two(xp.cast(packed[:, :1], "i32") - 128)
        return xp.take(xp.constant(DOUBLED, "f32"), codes) * half

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        x, amax, byte = self._scale_byte(x, xp)
        scale = self._scale(byte, xp)
        bound = e2m1.bound(x, scale, xp)
        # 4 scales overflow where the logarithm of the largest float32 rounds up to 128.
        bound = xp.where((scale >= 2.0**126) & (xp.abs(x) > 3.5 * scale), float("inf"), bound)
        # A wrapped exponent is huge: nothing of the block is kept.
        return xp.where(amax < 2.0**-125, xp.abs(x), bound)

    def _scale(self, byte: Array, xp: Namespace) -> Array:
        return xp.power_of_two(xp.minimum(byte - 127, 127))

    def _scale_byte(self, x: Array, xp: Namespace) -> tuple[Array, Array, Array]:
        """x without NaN; its largest magnitude and the scale's byte as i32, [n, 1]."""
        x, amax = e2m1.without_nan(x, xp.absmax(x), xp)
        tiny = amax < 2.0**-126
        normal = xp.contiguous(xp.where(tiny, amax * 2.0**24, amax))
        power = xp.exponent(normal) - 24 * xp.cast(tiny, "i32")
        # Zero, and infinity, whose cast C leaves undefined: byte 0.
        none = (amax == 0) | ~xp.isfinite(amax)
        index = xp.where(none, 0, power - LOWEST)
        up = (xp.bits(normal) & 0x7FFFFF) >= xp.take(xp.constant(rounds_up_from(), "i32"), index)
        return x, amax, xp.where(none, 0, (power + xp.cast(up, "i32") - 2 + 127) & 0xFF)


#: Adding 0 takes the sign from -0, which the reference's table of integers does not have.
DOUBLED = tuple(2 * v + 0.0 for v in e2m1.VALUES)
#: The exponent of the smallest subnormal of float32.
LOWEST = -149


@cache
def rounds_up_from() -> tuple[int, ...]:
    """For exponents -149 to 127, the fraction bits from which log2, rounded to float32, is the next integer."""
    found = []
    for exponent in range(LOWEST, 128):
        fraction = 1 << 23
        while _as_float32(log2(1 + (fraction - 1) / 2**23) + exponent) >= exponent + 1:
            fraction -= 1
        found.append(fraction)
    return tuple(found)


def _as_float32(value: float) -> float:
    return float(unpack("<f", pack("<f", value))[0])


CODECS = (
    CodecSpec(
        name="ggml_mxfp4",
        block=32,
        block_bytes=17,
        description="llama.cpp's MXFP4: 32 E2M1 elements and one E8M0 scale, halves interleaved",
        source=Source("spec", "ggml/src/ggml-common.h, block_mxfp4", "llama.cpp b11434"),
        spellings={"llama_cpp": ("mxfp4", "ggml_mxfp4")},
        numerics=Shared(),
    ),
)
