"""q5_0: 32 signed codes of 5 bits and one float16 scale per block.

Layout (22 bytes): scale f16 | fifth bits u32, bit j of element j | 16 bytes of low nibbles, j low and j+16 high.
Source: ggml-quants.c quantize_row_q5_0_ref, llama.cpp b11434.
"""

from kvgate.core.source import Source
from kvgate.formats.blocks._ggml import Symmetric
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="q5_0",
        block=32,
        block_bytes=22,
        description="32 codes of 5 bits, float16 scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_q5_0", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q5_0",)},
        numerics=Symmetric(bits=5),
    ),
)
