"""iq4_nl: 32 indices into 16 uneven levels and one float16 scale per block.

Layout (18 bytes): scale f16 | 16 bytes of nibbles, element j low and j+16 high. Indices are the nearest levels to x/d0
with d0 = (element of largest magnitude) / -127, a tie going up; the stored scale is then fitted to them, weighted by
x**2 (sums in float32, in element order), and the indices stay. A block below 1e-15 stores scale 0.
Source: ggml-quants.c quantize_row_iq4_nl_ref (no search: that is for model files), llama.cpp b11434. Differs: a block
below 1e-15 gets indices 0, where the reference keeps those of the block before; both decode to 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats import packing
from kvgate.formats.blocks._ggml import settled
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MIDPOINTS = tuple((a + b) / 2 for a, b in pairwise(LEVELS))
#: The index of the level nearest to half an integer, for -254 / 2 to 254 / 2; the upper one on a tie.
NEAREST = tuple(sum(twice / 2 >= m for m in MIDPOINTS) for twice in range(-254, 255))
#: GROUP_MAX_EPS
SMALLEST = 1e-15


class Levels(BlockNumerics):
    columns = True
    nonfinite = "the whole block decodes to NaN"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        codes, _, d = self._fit(x, xp)
        return xp.concat([xp.bytes_f16(d), packing.pack_halves(codes)])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        codes = packing.unpack_halves(packed[:, 2:], xp)
        return xp.take(xp.constant(LEVELS, "f32"), codes) * xp.f16_bytes(packed[:, :2])

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        # The fitted scale moves every level, so the distance is computed, not bounded; only float16's rounding is.
        _, level, d = self._fit(x, xp)
        product = level * d
        bound = (xp.abs(x - product) + xp.abs(level) * xp.half_ulp_f16(d)) + (xp.abs(x) + xp.abs(product)) * 2.0**-22
        return xp.where(xp.isfinite(bound), bound, float("inf"))

    def _fit(self, x: Array, xp: Namespace) -> tuple[Array, Array, Array]:
        """u8 indices and float32 levels [n, 32], unrounded scale [n, 1]."""
        extreme = xp.first_extreme(x)
        small = xp.abs(extreme) < SMALLEST
        first = xp.divide(xp.where(small, 1.0, extreme), float(LEVELS[0]))
        reciprocal = xp.divide(xp.full((1, 1), 1.0, "f32"), first)
        scaled = settled(x * reciprocal, first, reciprocal, xp)
        # Midpoints are multiples of a half: twice the value, rounded down, decides.
        place = xp.cast(xp.clip(xp.floor(scaled * 2), -254, 254), "i32") + 254
        codes = xp.take(xp.constant(NEAREST, "u8"), place)
        if xp.any(small):
            codes = xp.where(small, 0, codes)
        level = xp.take(xp.constant(LEVELS, "f32"), codes)
        weighted = x * x * level
        d = xp.sum_in_order(weighted * x) / xp.sum_in_order(weighted * level)
        return codes, level, xp.where(small, 0.0, d)


CODECS = (
    CodecSpec(
        name="iq4_nl",
        block=32,
        block_bytes=18,
        description="32 indices into 16 uneven levels, float16 scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_iq4_nl", "llama.cpp b11434"),
        spellings={"llama_cpp": ("iq4_nl",)},
        numerics=Levels(),
    ),
)
