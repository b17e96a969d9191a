"""q4_1: 32 codes of 4 bits between a minimum and a maximum.

Layout (20 bytes): scale f16 | minimum f16 | 16 bytes of nibbles, element j low and j+16 high.
Source: ggml-quants.c quantize_row_q4_1_ref, llama.cpp b11434.
"""

from kvgate.core.source import Source
from kvgate.formats.blocks._ggml import Affine
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="q4_1",
        block=32,
        block_bytes=20,
        description="32 codes of 4 bits, float16 scale and minimum",
        source=Source("spec", "ggml/src/ggml-common.h, block_q4_1", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q4_1",)},
        numerics=Affine(bits=4),
    ),
)
