"""ggml_nvfp4: llama.cpp's NVFP4: 64 E2M1 codes, four unsigned E4M3 scales, no global scale.

Layout (36 bytes): 4 scales UE4M3 | 4 groups of 8 bytes, in group g element j low and j+8 high.
The scale of 16 elements is amax/6, rounded half up (not half to even); 448 from 248 on, also where 256 or 320 would be
nearer; 0 below 2**-10: the group is lost.
Source: ggml-quants.c quantize_row_nvfp4_ref, ggml-impl.h ggml_fp32_to_ue4m3, llama.cpp b11434.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats import packing
from kvgate.formats.blocks import _ggml_e2m1 as e2m1
from kvgate.formats.numbers import FLOAT_SPECS
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

GROUPS = 4
#: Adding 0 takes the sign from -0, which the reference's table of integers does not have.
DOUBLED = tuple(2 * v + 0.0 for v in e2m1.VALUES)
#: Half of each scale byte's value. The NaN of UE4M3 counts as 0; the top bit is ignored, so that 0xFF is 480.
HALVED = tuple(0.0 if isnan(v) else v / 2 for v in FLOAT_SPECS["ue4m3"].values) + tuple(
    240.0 if isnan(v) else v / 2 for v in FLOAT_SPECS["ue4m3"].values
)


class Grouped(BlockNumerics):
    nonfinite = "NaN becomes 0; an infinity is cut to 6 * 448"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        x, scale_codes, scale = self._scales(x, xp)
        codes = e2m1.codes_of(x, xp.where(scale == 0, float("inf"), scale), xp)
        return xp.concat([scale_codes.reshape(-1, GROUPS), packing.pack_halves(codes).reshape(-1, GROUPS * 8)])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        codes = packing.unpack_halves(packed[:, GROUPS:].reshape(-1, 8), xp)
        half = xp.take(xp.constant(HALVED, "f32"), packed[:, :GROUPS]).reshape(-1, 1)
        return (xp.take(xp.constant(DOUBLED, "f32"), codes) * half).reshape(-1, GROUPS * 16)

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        x, _, scale = self._scales(x, xp)
        return e2m1.bound(x, scale, xp).reshape(-1, GROUPS * 16)

    def _scales(self, x: Array, xp: Namespace) -> tuple[Array, Array, Array]:
        """x as groups [4n, 16] without NaN, scale bytes and scales [4n, 1]."""
        x = xp.in_columns(x.reshape(-1, 16))
        x, amax = e2m1.without_nan(x, xp.absmax(x), xp)
        codes = half_up(xp.divide(amax, 6.0), xp)
        return x, codes, xp.take(xp.constant(FLOAT_SPECS["ue4m3"].values, "f32"), codes)


def half_up(x: Array, xp: Namespace) -> Array:
    """Non-negative float32 -> u8 UE4M3, half up; the top exponent always becomes 448."""
    x = xp.minimum(x, 448.0)
    subnormal = xp.minimum(xp.cast(x * 512.0 + 0.5, "i32"), 7)
    normal = ((xp.bits(x) + (1 << 19)) >> 20) - (120 << 3)
    code = xp.where(x < 2.0**-6, subnormal, normal)
    return xp.cast(xp.where(code >= 0x78, 0x7E, code), "u8")


CODECS = (
    CodecSpec(
        name="ggml_nvfp4",
        block=64,
        block_bytes=36,
        description="llama.cpp's NVFP4: 64 E2M1 elements with four UE4M3 scales, no global scale",
        source=Source("spec", "ggml/src/ggml-common.h, block_nvfp4", "llama.cpp b11434"),
        spellings={"llama_cpp": ("nvfp4", "ggml_nvfp4")},
        numerics=Grouped(),
    ),
)
