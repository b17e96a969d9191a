"""E2M1, the four-bit float of MXFP4 and NVFP4: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives.

Code = sign << 3 | index. Rounding is half to even of the code, saturating at 6, as NVIDIA's cvt.rn.satfinite.e2m1x2 and
vLLM's `cast_to_fp4` have it (vLLM 0.32.0, nvfp4_emulation_utils.py); a NaN becomes +6 there, and here (PTX ISA, cvt).
The sign of what rounds to zero is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.formats.numbers import FLOAT_SPECS, decode_float

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

E2M1 = FLOAT_SPECS["e2m1"]

#: Largest float32 below .75, 1.75 and 3.5: a half that goes up counts as above.
_P75, _P175, _P35 = 0.75 - 2.0**-24, 1.75 - 2.0**-23, 3.5 - 2.0**-22
#: Middles between neighbours; a value above one takes the next code.
_EDGES = (0.25, _P75, 1.25, _P175, 2.5, _P35, 5.0)
_NAN_CODE = 7


def encode_e2m1(y: Array, xp: Namespace) -> Array:
    """float32 -> u8 codes 0 to 15."""
    codes = xp.bucketize(xp.abs(y), _EDGES, up=False)
    codes |= xp.cast((xp.bits(y) >> 28) & 8, "u8")
    nan = xp.isnan(y)
    return xp.where(nan, float(_NAN_CODE), codes) if xp.any(nan) else codes


def decode_e2m1(codes: Array, xp: Namespace) -> Array:
    """u8 codes 0 to 15 -> float32."""
    return decode_float(codes, E2M1, xp)
