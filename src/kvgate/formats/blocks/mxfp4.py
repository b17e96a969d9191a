"""mxfp4: E2M1 elements with a power-of-two scale per 32. Two layouts of the same size that pack and round differently.

Layout (17 bytes): shared exponent E8M0 | 16 bytes of nibbles; OCP packs neighbours, ggml packs j with j+16.
"""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="mxfp4",
        block=32,
        block_bytes=17,
        description="OCP microscaling FP4: 32 E2M1 elements and one E8M0 scale",
        source=Source("spec", "OCP Microscaling Formats (MX) Specification", "1.0"),
    ),
    CodecSpec(
        name="ggml_mxfp4",
        block=32,
        block_bytes=17,
        description="llama.cpp's MXFP4: 32 E2M1 elements and one E8M0 scale, halves interleaved",
        source=Source("spec", "ggml/src/ggml-common.h, block_mxfp4", "llama.cpp b11434"),
        spellings={"llama_cpp": ("mxfp4", "ggml_mxfp4")},
    ),
)
