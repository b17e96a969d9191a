"""q8_0: 32 int8 codes and one float16 scale per block.

Layout (34 bytes): scale f16 | 32 x int8. The scale d is the largest magnitude over 127; codes are x times the unrounded
1/d, rounded half away from zero; values come back as code times the float16 scale.
Source: ggml-quants.c quantize_row_q8_0_ref, llama.cpp b11434. The engine's AVX2 path (quantize_row_q8_0) multiplies by
127/max instead and rounds half to even: a code may differ by one from these. Where 127/max overflows (the scale is 0
then) it writes -128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.blocks._ggml import SLACK, decoded, settled
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


class Signed8(BlockNumerics):
    columns = True
    nonfinite = "the whole block decodes to NaN or infinity"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        d, codes = codes_of(x, xp)
        return xp.concat([xp.bytes_f16(d), xp.view(codes, "u8")])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        return decoded(self, packed, xp)

    def decode_into(self, out: Array, packed: Array, xp: Namespace) -> None:
        out[...] = xp.view(packed[:, -32:], "i8")
        out *= xp.f16_bytes(packed[:, :2])

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        d = xp.divide(xp.absmax(x), 127.0)
        # Half a step, and the rounding of the float16 scale times the code.
        code = xp.divide(xp.abs(x), xp.where(d == 0, 1.0, d)) + 0.5
        return d * (0.5 + 127 * SLACK) + xp.minimum(code, 127.0) * xp.half_ulp_f16(d)


def codes_of(x: Array, xp: Namespace) -> tuple[Array, Array]:
    """Unrounded scale [n, 1] and int8 codes [n, 32]."""
    d = xp.divide(xp.absmax(x), 127.0)
    reciprocal = xp.reciprocal_or_zero(d)
    return d, xp.round_half_away_to(settled(x * reciprocal, d, reciprocal, xp), "i8")


CODECS = (
    CodecSpec(
        name="q8_0",
        block=32,
        block_bytes=34,
        description="32 int8 codes and one float16 scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_q8_0", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q8_0",)},
        numerics=Signed8(),
    ),
)
