"""f32, f16, bf16: values as they are, without blocks or scales. What float16 cannot hold becomes infinity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

_IEEE = Source("spec", "IEEE 754-2019 binary32 and binary16; bfloat16 is the upper half of binary32")


class F32(BlockNumerics):
    unit = "element"
    nonfinite = "kept; a NaN keeps its bits"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        return xp.view(x, "u8")

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        return xp.f32_bytes(packed)

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        return xp.full((1, 1), 0.0, "f32")


class F16(BlockNumerics):
    unit = "element"
    nonfinite = "kept; there is one NaN"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        return xp.bytes_f16(x)

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        return xp.f16_bytes(packed)

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        return xp.half_ulp_f16(x)


class BF16(BlockNumerics):
    unit = "element"
    nonfinite = "kept; there is one NaN"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        return xp.view(xp.to_bf16(x), "u8")

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        return xp.from_bf16(xp.view(packed, "i16"))

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        # Half a place of 8 significant bits; subnormals have the place of 2**-126. From 2**128 - 2**119 on the value
        # rounds to infinity.
        half = xp.maximum(xp.power_below(x), 2.0**-126) * 2.0**-8
        return xp.where(xp.abs(x) >= 2.0**128 - 2.0**119, float("inf"), half)


CODECS = (
    CodecSpec(
        name="f32",
        block=1,
        block_bytes=4,
        description="32-bit floating point",
        source=_IEEE,
        spellings={"llama_cpp": ("f32",)},
        numerics=F32(),
        lossless_from=("f32", "f16", "bf16"),
    ),
    CodecSpec(
        name="f16",
        block=1,
        block_bytes=2,
        description="16-bit floating point, 10 fraction bits",
        source=_IEEE,
        spellings={"llama_cpp": ("f16",), "vllm": ("float16",)},
        numerics=F16(),
        lossless_from=("f16",),
    ),
    CodecSpec(
        name="bf16",
        block=1,
        block_bytes=2,
        description="16-bit floating point, 7 fraction bits",
        source=_IEEE,
        spellings={"llama_cpp": ("bf16",), "vllm": ("bfloat16",), "sglang": ("bf16", "bfloat16")},
        numerics=BF16(),
        lossless_from=("bf16",),
    ),
)
