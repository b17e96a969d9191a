"""q8_1: what llama.cpp turns queries into. Listed so that it can be refused: as a cache type it aborts the engine.

Layout (36 bytes): scale f16 | scale times sum of codes f16 | 32 x int8.
"""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="q8_1",
        block=32,
        block_bytes=36,
        description="32 int8 codes, float16 scale and sum; an operand of dot products, not a storage format",
        source=Source("spec", "ggml/src/ggml-common.h, block_q8_1", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q8_1",)},
        refused="it is an operand of dot products, and llama.cpp aborts on it; q8_0 is the 8-bit format",
    ),
)
