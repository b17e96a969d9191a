"""q5_1: 32 codes of 5 bits between a minimum and a maximum.

Layout (24 bytes): scale f16 | minimum f16 | fifth bits u32 | 16 bytes of low nibbles, j low and j+16 high.
Source: ggml-quants.c quantize_row_q5_1_ref, llama.cpp b11434.
"""

from kvgate.core.source import Source
from kvgate.formats.blocks._ggml import Affine
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="q5_1",
        block=32,
        block_bytes=24,
        description="32 codes of 5 bits, float16 scale and minimum",
        source=Source("spec", "ggml/src/ggml-common.h, block_q5_1", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q5_1",)},
        numerics=Affine(bits=5),
    ),
)
