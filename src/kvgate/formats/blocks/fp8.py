"""fp8: one byte an element. Scales are per tensor or per head and lie outside the cache, so they cost no row bytes."""

from kvgate.core.source import Source
from kvgate.formats.spec import CodecSpec

_OCP = Source("spec", "OCP 8-bit Floating Point Specification (OFP8)", "1.0")

CODECS = (
    CodecSpec(
        name="fp8_e4m3",
        block=1,
        block_bytes=1,
        description="4 exponent and 3 fraction bits, bias 7, largest value 448, no infinity",
        source=_OCP,
        spellings={"vllm": ("fp8_e4m3", "fp8"), "sglang": ("fp8_e4m3",), "trtllm": ("fp8",)},
    ),
    CodecSpec(
        name="fp8_e4m3fnuz",
        block=1,
        block_bytes=1,
        description="4 exponent and 3 fraction bits, bias 8, largest value 240, no infinity, no negative zero",
        source=Source("spec", "float8_e4m3fnuz as used by AMD CDNA3; arXiv 2206.02915"),
    ),
    CodecSpec(
        name="fp8_e5m2",
        block=1,
        block_bytes=1,
        description="5 exponent and 2 fraction bits, bias 15, largest value 57344, with infinities",
        source=_OCP,
        spellings={"vllm": ("fp8_e5m2",), "sglang": ("fp8_e5m2",)},
    ),
)
