"""fp8: one byte an element. Scales are per tensor or per head and lie outside the cache, so they cost no row bytes.

stored = fp8(x / scale), half to even; value = fp8 * scale: the scale is the dequantization scale, amax over the largest
code (vLLM 0.32.0, v1/attention/ops/triton_reshape_and_cache_flash.py; compressed-tensors writes it as `k_scale` and
`v_scale`). On AMD's fnuz platforms vLLM doubles the checkpoint's scale, see `scales.for_fnuz`.

What lies beyond the largest code follows the overflow policy, whatever a library's own cast does with it:
    saturate    the largest code (CUDA's cvt.satfinite, and what engines store); infinities too
    nan         NaN (ml_dtypes' E4M3FN and fnuz; torch's before 2.12)
    inf         infinity, only where the format has one (E5M2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.fp8_numbers import decode_fp8, encode_fp8, half_step, overflows
from kvgate.formats.numbers import FLOAT_SPECS, FloatSpec
from kvgate.formats.numerics import Overflow, ScaledNumerics
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


class Fp8(ScaledNumerics):
    """Elements that do not know of each other: [n, k] float32 and [n, k] bytes."""

    unit = "element"
    nonfinite = "NaN stays NaN, one code; an infinity overflows"

    def __init__(self, spec: FloatSpec) -> None:
        self.number = spec

    @property
    def overflows(self) -> tuple[Overflow, ...]:  # type: ignore[override]
        return ("saturate", "nan", "inf") if self.number.has_inf else ("saturate", "nan")

    def encode_blocks(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        return encode_fp8(_over(x, scale, xp), self.number, xp, overflow)

    def decode_blocks(self, packed: Array, xp: Namespace, scale: Array) -> Array:
        values = decode_fp8(packed, self.number, xp)
        return values if _is_one(scale) else values * scale

    def error_bound(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        """Half a step of the code times the scale; what is clipped, where it saturates.

        Beside it, for each of the quotient and the product, one rounding of float32: 2**-23 of x is both and a margin.
        """
        size, y = xp.abs(x), xp.abs(_over(x, scale, xp))
        largest = self.number.max
        kept = xp.minimum(y, largest)
        step = half_step(kept, self.number, xp)
        lost = xp.where(y > largest, size - scale * largest, step * scale)
        gone = ~xp.isfinite((kept + step) * scale)
        if overflow != "saturate":
            gone = gone | overflows(y, self.number)
        return xp.where(gone, float("inf"), lost + size * 2.0**-22 + 2.0**-148)


def _over(x: Array, scale: Array, xp: Namespace) -> Array:
    return x if _is_one(scale) else xp.divide(x, scale)


def _is_one(scale: Array) -> bool:
    return scale.shape[0] == 1 and float(scale[0, 0]) == 1.0


_OCP = Source("spec", "OCP 8-bit Floating Point Specification (OFP8)", "1.0")
_FNUZ = Source("spec", "float8 fnuz types as used by AMD CDNA3; arXiv 2206.02915")

CODECS = (
    CodecSpec(
        name="fp8_e4m3",
        block=1,
        block_bytes=1,
        description="4 exponent and 3 fraction bits, bias 7, largest value 448, no infinity",
        source=_OCP,
        spellings={"vllm": ("fp8_e4m3", "fp8"), "sglang": ("fp8_e4m3",), "trtllm": ("fp8",)},
        numerics=Fp8(FLOAT_SPECS["e4m3fn"]),
    ),
    CodecSpec(
        name="fp8_e4m3fnuz",
        block=1,
        block_bytes=1,
        description="4 exponent and 3 fraction bits, bias 8, largest value 240, no infinity, no negative zero",
        source=_FNUZ,
        numerics=Fp8(FLOAT_SPECS["e4m3fnuz"]),
    ),
    CodecSpec(
        name="fp8_e5m2",
        block=1,
        block_bytes=1,
        description="5 exponent and 2 fraction bits, bias 15, largest value 57344, with infinities",
        source=_OCP,
        spellings={"vllm": ("fp8_e5m2",), "sglang": ("fp8_e5m2",)},
        numerics=Fp8(FLOAT_SPECS["e5m2"]),
    ),
    CodecSpec(
        name="fp8_e5m2fnuz",
        block=1,
        block_bytes=1,
        description="5 exponent and 2 fraction bits, bias 16, largest value 57344, no infinity, no negative zero",
        source=_FNUZ,
        numerics=Fp8(FLOAT_SPECS["e5m2fnuz"]),
    ),
)
