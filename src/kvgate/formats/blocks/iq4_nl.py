"""iq4_nl: 32 indices into 16 uneven levels and one float16 scale per block.

Layout (18 bytes): scale f16 | 16 bytes of nibbles.
"""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="iq4_nl",
        block=32,
        block_bytes=18,
        description="32 indices into 16 uneven levels, float16 scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_iq4_nl", "llama.cpp b11434"),
        spellings={"llama_cpp": ("iq4_nl",)},
    ),
)
