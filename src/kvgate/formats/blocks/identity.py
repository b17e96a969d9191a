"""f32, f16, bf16: values as they are, without blocks or scales."""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

_IEEE = Source("spec", "IEEE 754-2019 binary32 and binary16; bfloat16 is the upper half of binary32")

CODECS = (
    CodecSpec(
        name="f32",
        block=1,
        block_bytes=4,
        description="32-bit floating point",
        source=_IEEE,
        spellings={"llama_cpp": ("f32",)},
        lossless_from=("f32", "f16", "bf16"),
    ),
    CodecSpec(
        name="f16",
        block=1,
        block_bytes=2,
        description="16-bit floating point, 10 fraction bits",
        source=_IEEE,
        spellings={"llama_cpp": ("f16",), "vllm": ("float16",)},
        lossless_from=("f16",),
    ),
    CodecSpec(
        name="bf16",
        block=1,
        block_bytes=2,
        description="16-bit floating point, 7 fraction bits",
        source=_IEEE,
        spellings={"llama_cpp": ("bf16",), "vllm": ("bfloat16",), "sglang": ("bf16", "bfloat16")},
        lossless_from=("bf16",),
    ),
)
