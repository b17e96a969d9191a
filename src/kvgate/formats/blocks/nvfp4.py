"""nvfp4: E2M1 elements with an E4M3 scale per 16, as vLLM's cache keeps them.

vLLM keeps per page all data (8 bytes per 16 elements), then all scales (1 byte per 16); the tensor's global scale lies
outside the cache. llama.cpp's layout is ggml_nvfp4.
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
)
