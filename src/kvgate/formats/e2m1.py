"""E2M1, the four-bit float of MXFP4 and NVFP4: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives.

Code = sign << 3 | index. Rounding is half to even of the code, saturating at 6, as NVIDIA's cvt.rn.satfinite.e2m1x2 and
vLLM's `cast_to_fp4` have it (vLLM 0.32.0, nvfp4_emulation_utils.py); a NaN becomes +6 there, and here (PTX ISA, cvt).
The sign of what rounds to zero is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.formats.fp8_numbers import by_table
from kvgate.formats.numbers import FLOAT_SPECS, decode_float

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

E2M1 = FLOAT_SPECS["e2m1"]

_NAN_CODE = 7


def encode_e2m1(y: Array, xp: Namespace) -> Array:
    """float32 -> u8 codes 0 to 15."""
    nan = xp.isnan(y)
    some = xp.any(nan)
    if xp.name == "torch":
        codes = _by_steps(xp.where(nan, 0.0, y) if some else y, xp)
    else:
        codes = by_table(y, E2M1, xp)
    return xp.where(nan, float(_NAN_CODE), codes) if some else codes


def decode_e2m1(codes: Array, xp: Namespace) -> Array:
    """u8 codes 0 to 15 -> float32."""
    return decode_float(codes, E2M1, xp)


def _by_steps(y: Array, xp: Namespace) -> Array:
    """Codes 0 to 4 lie half apart, 4 to 6 one apart, 6 and 7 two apart: the size in those steps, rounded, and the codes
    below. torch's own look-up takes longer."""
    size = xp.minimum(xp.abs(y), E2M1.max)
    from_two, from_four = xp.cast(size >= 2, "f32"), xp.cast(size >= 4, "f32")
    whole = xp.round_half_even(size * (2.0 - from_two - 0.5 * from_four)) + 2.0 * (from_two + from_four)
    return xp.cast(whole, "u8") | xp.cast((xp.bits(y) >> 28) & 8, "u8")
