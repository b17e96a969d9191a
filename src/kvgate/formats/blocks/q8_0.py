"""q8_0: 32 int8 codes and one float16 scale per block.

Layout (34 bytes): scale f16 | 32 x int8.
"""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="q8_0",
        block=32,
        block_bytes=34,
        description="32 int8 codes and one float16 scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_q8_0", "llama.cpp b11434"),
        spellings={"llama_cpp": ("q8_0",)},
    ),
)
