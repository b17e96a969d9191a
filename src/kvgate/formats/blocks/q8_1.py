"""q8_1: what llama.cpp turns queries into. Listed so that it can be refused: as a cache type it aborts the engine.

Layout (36 bytes): scale f16 | scale times sum of codes f16 | 32 x int8. Codes and scale are those of q8_0; the sum uses
the unrounded scale. The arithmetic is here because dot products with q4_1 and q5_1 keys see queries in it.
Source: ggml-quants.c quantize_row_q8_1_ref, llama.cpp b11434.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.blocks.q8_0 import Signed8, codes_of
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


class WithSum(Signed8):
    idempotent = False  # the sum was made with the scale before its rounding

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        d, codes = codes_of(x, xp)
        # At most 32 * 127: exact in float32 in any order.
        total = xp.sum_in_order(xp.cast(codes, "f32"))
        return xp.concat([xp.bytes_f16(d), xp.bytes_f16(total * d), xp.view(codes, "u8")])


CODECS = (
    CodecSpec(
        name="q8_1",
        block=32,
        block_bytes=36,
        description="32 int8 codes, float16 scale and sum; an operand of dot products, not a storage format",
        source=Source("spec", "ggml/src/ggml-common.h, block_q8_1", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q8_1",)},
        refused="it is an operand of dot products, and llama.cpp aborts on it; q8_0 is the 8-bit format",
        numerics=WithSum(),
    ),
)
