"""FP8 casts, fast: float32 to and from the codes of an 8-bit `FloatSpec`, with the overflow policy given by the caller.

The bytes are those of `numbers.encode_float`, which is the definition; here are the two quick ways to them.

* numpy: one table look-up. Dropping the low 18 bits of a float32 to an "odd" rest (the last kept bit is set if anything
  was dropped) keeps 6 significant bits, two more than E4M3 has, so that rounding that rest half to even gives what
  rounding the whole would. Sign, exponent and rest are 14 bits: a table of 16 KiB.
* torch: its own cast, after a clamp, where it rounds half to even in every version. Outside the range torch's casts
  differ between versions (E4M3FN gave NaN before 2.12 and saturates since) and formats, and so does its E5M2 NaN
  (0x7F): those elements are set here.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from kvgate.formats.numbers import FloatSpec, decode_float, encode_float

if TYPE_CHECKING:
    from kvgate.formats.numerics import Overflow
    from kvgate.formats.xp import Array, Namespace

#: Bits of a float32 that the table does not see, one by one.
_DROPPED = 18


def encode_fp8(x: Array, spec: FloatSpec, xp: Namespace, overflow: Overflow = "saturate") -> Array:
    """float32 -> u8 codes of an 8-bit format, half to even, as `encode_float` defines them; x is not written to."""
    if xp.name == "torch":
        dtype = _torch_dtype(spec.name)
        return encode_float(x, spec, xp, overflow) if dtype is None else _by_cast(x, spec, xp, overflow, dtype)
    return by_table(x, spec, xp, overflow)


def by_table(x: Array, spec: FloatSpec, xp: Namespace, overflow: Overflow = "saturate") -> Array:
    """The same for numpy, and for any format of up to 4 significant bits."""
    bits = xp.bits(x)
    rest = bits & ((1 << _DROPPED) - 1)
    rest += (1 << _DROPPED) - 1
    rest |= bits
    rest >>= _DROPPED
    # A negative index counts from the end, and that is where the sign bit's half of the table lies. numpy would take
    # each index apart if it were not as wide as a pointer.
    return _table(spec, overflow)[xp.cast(rest, "i64")]


def decode_fp8(codes: Array, spec: FloatSpec, xp: Namespace) -> Array:
    """u8 codes -> float32, exact; a NaN's sign and payload are not kept."""
    dtype = _torch_dtype(spec.name) if xp.name == "torch" else None
    if dtype is None:
        return decode_float(codes, spec, xp)
    return xp.cast(codes.view(dtype), "f32")


def half_step(y: Array, spec: FloatSpec, xp: Namespace) -> Array:
    """Half the distance between neighbouring codes around |y|, float32; for |y| up to the largest value."""
    exponent = xp.maximum(xp.exponent(y), 1 - spec.bias)
    return xp.power_of_two(exponent - (spec.fraction_bits + 1))


def overflows(y: Array, spec: FloatSpec) -> Array:
    """Where |y| rounds beyond the largest value: past the middle of a step above it, or on it if the code is odd."""
    edge = spec.max + (spec.max - spec.values[spec.max_code - 1]) / 2
    return (y >= edge) if spec.max_code & 1 else (y > edge)


@cache
def _table(spec: FloatSpec, overflow: Overflow) -> Any:
    """u8 [2**14]: the code of each float32 whose bits are the index, shifted."""
    from kvgate.formats.xp import numpy_namespace  # here: sizes are asked for far more often than arithmetic

    xp = numpy_namespace()
    index = xp.cast(xp.full((1 << (32 - _DROPPED),), 1, "i32").cumsum() - 1, "i32")
    with xp.quiet():
        return encode_float(xp.from_bits(index << _DROPPED), spec, xp, overflow)


def _torch_dtype(name: str) -> Any:
    """torch's dtype of this format, or None if this torch has none."""
    return getattr(sys.modules.get("torch"), f"float8_{name}", None)


def _by_cast(x: Array, spec: FloatSpec, xp: Namespace, overflow: Overflow, dtype: Any) -> Array:
    kept = x.clamp(-spec.max, spec.max)
    codes = xp.view(kept.to(dtype), "u8")
    if overflow != "saturate":
        over = overflows(xp.abs(x), spec)
        if xp.any(over):
            codes = xp.where(over, encode_float(x, spec, xp, overflow), codes)
    # fnuz formats have one NaN. Elsewhere torch keeps a sign: a sum of clamped values is NaN if any of them is.
    if spec.specials == "fnuz" or not xp.any(xp.isnan(kept.sum())):
        return codes
    return xp.where(xp.isnan(x), float(spec.nan_code or 0), codes)
