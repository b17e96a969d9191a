"""nvfp4: E2M1 elements with an E4M3 scale per 16. vLLM's cache and llama.cpp's block are different layouts.

vLLM keeps per page all data (8 bytes per 16 elements), then all scales (1 byte per 16); the tensor's global scale lies
outside the cache. llama.cpp joins four groups of 16 into 36 bytes and has no global scale.
"""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

CODECS = (
    CodecSpec(
        name="nvfp4",
        block=16,
        block_bytes=9,
        description="16 E2M1 elements and one E4M3 scale, data and scales apart in a page",
        source=Source("spec", "vllm/utils/torch_utils.py, nvfp4_kv_cache_full_dim", "vLLM 0.32.0"),
        spellings={"vllm": ("nvfp4",), "sglang": ("nvfp4",), "trtllm": ("nvfp4",)},
    ),
    CodecSpec(
        name="ggml_nvfp4",
        block=64,
        block_bytes=36,
        description="llama.cpp's NVFP4: 64 E2M1 elements with four UE4M3 scales, no global scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_nvfp4", "llama.cpp b11434"),
        spellings={"llama_cpp": ("nvfp4", "ggml_nvfp4")},
    ),
)
