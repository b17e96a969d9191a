"""q4_0: 32 signed codes of 4 bits and one float16 scale per block.

Layout (18 bytes): scale f16 | 16 bytes of nibbles, element j low and j+16 high.
Source: ggml-quants.c quantize_row_q4_0_ref, llama.cpp b11434.
"""

from kvgate.core.source import Source
from kvgate.formats.blocks._ggml import Symmetric
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="q4_0",
        block=32,
        block_bytes=18,
        description="32 codes of 4 bits, float16 scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_q4_0", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q4_0",)},
        numerics=Symmetric(bits=4),
    ),
)
