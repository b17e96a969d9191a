"""Small floating-point formats as rows of one table; every code's value and every limit is computed from the row.

Names are those of ml_dtypes without "float". Codes are sign | exponent | fraction from the top bit down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Literal

from kvgate.core.source import Source

if TYPE_CHECKING:
    from kvgate.formats.numerics import Overflow
    from kvgate.formats.xp import Array, Namespace

#: Which codes are not numbers. "ieee": the top exponent holds infinity and NaNs; "fn": only all ones is NaN, with
#: either sign; "fnuz": only negative zero's code is NaN, and there is no negative zero; "finite": all are numbers.
Specials = Literal["ieee", "fn", "fnuz", "finite"]

_OCP = Source("spec", "OCP 8-bit Floating Point Specification (OFP8)", "1.0")
_MX = Source("spec", "OCP Microscaling Formats (MX) Specification", "1.0")
_FNUZ = Source("spec", "8-bit numerical formats for deep neural networks, arXiv 2206.02915")


@dataclass(frozen=True)
class FloatSpec:
    """One format: exponent and fraction bits, bias, what is special.

    Attributes:
        signed: whether the top bit is a sign; an unsigned format has none.
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    bias: int
    specials: Specials
    source: Source
    signed: bool = True

    @property
    def bits(self) -> int:
        return self.signed + self.exponent_bits + self.fraction_bits

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The value of every code, in code order; exact."""
        return tuple(self._value(code) for code in range(1 << self.bits))

    @cached_property
    def max_code(self) -> int:
        """The code of the largest finite value."""
        half = self.values[: 1 << (self.bits - self.signed)]
        return max((c for c, v in enumerate(half) if isfinite(v)), key=lambda c: half[c])

    @property
    def max(self) -> float:
        return self.values[self.max_code]

    @property
    def min_normal(self) -> float:
        return float(2.0 ** (1 - self.bias))

    @property
    def min_subnormal(self) -> float:
        return float(2.0 ** (1 - self.bias - self.fraction_bits))

    @property
    def nan_code(self) -> int | None:
        """The NaN code that we write; None where there is none."""
        if self.specials == "finite":
            return None
        if self.specials == "fnuz":
            return 1 << (self.bits - 1)
        # One quiet NaN: all ones for "fn", infinity plus the top fraction bit for "ieee".
        ones = (1 << (self.bits - self.signed)) - 1
        return ones if self.specials == "fn" else self.inf_code_of_ieee | (1 << (self.fraction_bits - 1))

    @property
    def inf_code_of_ieee(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def has_inf(self) -> bool:
        return self.specials == "ieee"

    def _value(self, code: int) -> float:
        top = 1 << (self.bits - 1)
        negative = self.signed and bool(code & top)
        magnitude = code & ~top if self.signed else code
        exponent, fraction = magnitude >> self.fraction_bits, magnitude & ((1 << self.fraction_bits) - 1)
        if self.specials == "fnuz" and code == top:
            return nan
        if self.specials == "fn" and magnitude == (1 << (self.bits - self.signed)) - 1:
            return nan
        if self.specials == "ieee" and exponent == (1 << self.exponent_bits) - 1:
            return nan if fraction else -inf if negative else inf
        step = 2.0 ** (max(exponent, 1) - self.bias - self.fraction_bits)
        value = (fraction + ((1 << self.fraction_bits) if exponent else 0)) * step
        return -value if negative else value


FLOAT_SPECS: Mapping[str, FloatSpec] = {
    s.name: s
    for s in (
        FloatSpec("e4m3fn", 4, 3, 7, "fn", _OCP),
        FloatSpec("e4m3fnuz", 4, 3, 8, "fnuz", _FNUZ),
        FloatSpec("e5m2", 5, 2, 15, "ieee", _OCP),
        FloatSpec("e5m2fnuz", 5, 2, 16, "fnuz", _FNUZ),
        FloatSpec("e2m1", 2, 1, 1, "finite", _MX),
        FloatSpec("ue4m3", 4, 3, 7, "fn", Source("spec", "ggml-impl.h, ggml_fp32_to_ue4m3", "llama.cpp b11434"), False),
    )
}


def encode_float(x: Array, spec: FloatSpec, xp: Namespace, overflow: Overflow = "saturate") -> Array:
    """float32 -> u8 codes, half to even; what overflows (rounds beyond the largest) follows `overflow`.

    NaN becomes `spec.nan_code` (0 where the format has none). An infinity is an overflow. "nan" and "inf" need a format
    that has them.
    """
    bits = xp.bits(x)
    magnitude = bits & 0x7FFFFFFF
    shift = 23 - spec.fraction_bits
    # Normal range: add just under half of the last kept place, plus one if that place is odd, and drop the rest.
    normal = ((magnitude + (((magnitude >> shift) & 1) + ((1 << (shift - 1)) - 1))) >> shift) - (
        (127 - spec.bias) << spec.fraction_bits
    )
    # Subnormal range: a float32 sum whose last place is the smallest subnormal rounds half to even by itself.
    big = spec.min_subnormal * 2.0**23
    low = xp.bits(xp.from_bits(magnitude) + xp.constant((big,), "f32")) - int(_float_bits(big))
    code = xp.where(magnitude < _float_bits(spec.min_normal), low, normal)
    code = xp.minimum(code, spec.max_code + 1)
    beyond = spec.max_code if overflow == "saturate" else _beyond(spec, overflow)
    code = xp.where(code > spec.max_code, beyond, code)
    nan_code = 0 if spec.nan_code is None else spec.nan_code
    if spec.signed:
        sign = (bits >> (32 - spec.bits)) & (1 << (spec.bits - 1))
        code = code | (xp.where(code == 0, 0, sign) if spec.specials == "fnuz" else sign)
    return xp.cast(xp.where(magnitude > 0x7F800000, nan_code, code), "u8")


def decode_float(codes: Array, spec: FloatSpec, xp: Namespace) -> Array:
    """u8 codes -> float32, by table."""
    return xp.take(xp.constant(spec.values, "f32"), codes)


def _beyond(spec: FloatSpec, overflow: Overflow) -> int:
    if overflow == "inf" and spec.has_inf:
        return spec.inf_code_of_ieee
    if overflow == "nan" and spec.nan_code is not None:
        return spec.nan_code
    raise ValueError(f"{spec.name} has no {overflow}")


def _float_bits(value: float) -> int:
    """Bit pattern of a positive float32."""
    import struct

    return int(struct.unpack("<i", struct.pack("<f", value))[0])
