"""ggml_mxfp4: llama.cpp's MXFP4: 32 E2M1 codes and one power-of-two scale per block.

Layout (17 bytes): shared exponent E8M0 | 16 bytes of nibbles, element j low and j+16 high (OCP packs neighbours).
"""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="ggml_mxfp4",
        block=32,
        block_bytes=17,
        description="llama.cpp's MXFP4: 32 E2M1 elements and one E8M0 scale, halves interleaved",
        source=Source("spec", "ggml/src/ggml-common.h, block_mxfp4", "llama.cpp b11434"),
        spellings={"llama_cpp": ("mxfp4", "ggml_mxfp4")},
    ),
)
