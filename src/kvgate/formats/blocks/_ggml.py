"""What llama.cpp's block formats share: codes around zero or from a minimum up, their bits and their error bounds.

Blocks are 32 consecutive elements of a row. Scales are rounded to float16, but codes are made with the unrounded
float32 reciprocal. Codes come from casts in C that are undefined where the scaled value is not finite; x86 gives 0, and
so do we. A NaN makes the scale NaN, where the reference skips it or forgets what came before it.
Source: ggml-quants.c, quantize_row_*_ref and dequantize_row_*, llama.cpp b11434.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.formats import packing
from kvgate.formats.numerics import BlockNumerics

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

#: Rounding of a reciprocal, two products and a sum: 2**-22 of the largest code covers their four half places.
SLACK = 2.0**-22


def settled(scaled: Array, d: Array, reciprocal: Array, xp: Namespace) -> Array:
    """0 where the scaled value is not finite; looks at the elements only if some scale or its reciprocal is not."""
    # 1 or 0 wherever both are finite; infinite or NaN elsewhere.
    odd = ~xp.isfinite(d * reciprocal)
    return xp.where(xp.isfinite(scaled), scaled, 0.0) if xp.any(odd) else scaled


def pack_codes(q: Array, bits: int, xp: Namespace) -> list[Array]:
    """Codes of 4 or 5 bits, [n, 32] -> the fifth bits (u32, if there are any) and 16 bytes of nibbles."""
    if bits == 4:
        return [packing.pack_halves(q)]
    return [xp.pack_bits(xp.cast(q > 15, "u8")), packing.pack_halves(q & 15)]


def unpack_codes(packed: Array, bits: int, xp: Namespace) -> Array:
    """The reverse of `pack_codes`: u8 [n, 32]."""
    if bits == 4:
        return packing.unpack_halves(packed, xp)
    return packing.unpack_halves(packed[:, 4:], xp) | xp.unpack_bits(packed[:, :4]) * 16


def decoded(numerics: BlockNumerics, packed: Array, xp: Namespace) -> Array:
    """float32 [n, 32] by `decode_into`."""
    out = xp.empty((packed.shape[0], 32), "f32")
    numerics.decode_into(out, packed, xp)
    return out


class Symmetric(BlockNumerics):
    """Codes around zero; the element of largest magnitude becomes the most negative code exactly.

    d = that element / -2**(bits-1), so d may be negative; codes are trunc(x/d + 2**(bits-1) + 0.5), and the other
    end is cut to 2**(bits-1) - 1: an element of the opposite sign may be off by a whole step. On a tie of magnitudes
    the first element decides. A block of zeros stores the scale -0.
    """

    columns = True
    nonfinite = "the whole block decodes to NaN or infinity"

    def __init__(self, bits: int) -> None:
        self.bits, self.half = bits, 1 << (bits - 1)

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        d, reciprocal = self._scale(x, xp)
        scaled = settled(x * reciprocal + (self.half + 0.5), d, reciprocal, xp)
        codes = xp.cast(xp.clip(scaled, 0.0, 2 * self.half - 1), "u8")
        return xp.concat([xp.bytes_f16(d), *pack_codes(codes, self.bits, xp)])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        return decoded(self, packed, xp)

    def decode_into(self, out: Array, packed: Array, xp: Namespace) -> None:
        out[...] = xp.view(unpack_codes(packed[:, 2:], self.bits, xp), "i8") - self.half
        out *= xp.f16_bytes(packed[:, :2])

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        d, _ = self._scale(x, xp)
        code = xp.divide(x, xp.where(d == 0, 1.0, d))
        # Half a step, or what is cut off at the other end; and the rounding of the float16 scale times the code.
        steps = xp.maximum(code - (self.half - 1), 0.5) + self.half * SLACK
        return steps * xp.abs(d) + xp.minimum(xp.abs(code) + 0.5, self.half) * xp.half_ulp_f16(d)

    def _scale(self, x: Array, xp: Namespace) -> tuple[Array, Array]:
        d = xp.divide(xp.first_extreme(x), -self.half)
        return d, xp.reciprocal_or_zero(d)


class Affine(BlockNumerics):
    """Codes from the block's minimum (0) to its maximum (2**bits - 1): x = code * d + m.

    d = (max - min) / (2**bits - 1), m = min, codes trunc((x - min)/d + 0.5). A minimum far from zero costs the accuracy
    that float16 has there, whatever the spread.
    """

    columns = True
    nonfinite = "the whole block decodes to NaN or infinity"

    def __init__(self, bits: int) -> None:
        self.bits, self.top = bits, (1 << bits) - 1

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        d, m, reciprocal = self._scale(x, xp)
        scaled = settled((x - m) * reciprocal + 0.5, d, reciprocal, xp)
        codes = xp.cast(xp.clip(scaled, 0.0, self.top), "u8")
        return xp.concat([xp.bytes_f16(d), xp.bytes_f16(m), *pack_codes(codes, self.bits, xp)])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        return decoded(self, packed, xp)

    def decode_into(self, out: Array, packed: Array, xp: Namespace) -> None:
        out[...] = unpack_codes(packed[:, 4:], self.bits, xp)
        out *= xp.f16_bytes(packed[:, :2])
        out += xp.f16_bytes(packed[:, 2:4])

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        d, m, _ = self._scale(x, xp)
        # Half a step; the rounding of both float16 numbers, times the code for the scale; the last sum's own rounding.
        code = xp.divide(x - m, xp.where(d == 0, 1.0, d)) + 0.5
        rounded = xp.minimum(code, self.top) * xp.half_ulp_f16(d) + xp.half_ulp_f16(m)
        bound = d * (0.5 + self.top * SLACK) + rounded + (xp.abs(m) + d * self.top) * 2.0**-23
        # max - min may overflow float32.
        return xp.where(xp.isfinite(bound), bound, float("inf"))

    def _scale(self, x: Array, xp: Namespace) -> tuple[Array, Array, Array]:
        m = xp.first_min(x)
        # A difference of zeros is +0, whatever their signs.
        d = xp.divide(xp.max(x) - m, self.top) + 0.0
        return d, m, xp.reciprocal_or_zero(d)
