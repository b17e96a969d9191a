"""ggml_nvfp4: llama.cpp's NVFP4: 64 E2M1 codes, four unsigned E4M3 scales, no global scale.

Layout (36 bytes): 4 scales UE4M3 | 4 x 8 bytes of nibbles, one group of 16 after another.
"""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="ggml_nvfp4",
        block=64,
        block_bytes=36,
        description="llama.cpp's NVFP4: 64 E2M1 elements with four UE4M3 scales, no global scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_nvfp4", "llama.cpp b11434"),
        spellings={"llama_cpp": ("nvfp4", "ggml_nvfp4")},
    ),
)
