"""OCP microscaling blocks: 32 small floats with one shared power-of-two scale (E8M0).

shared exponent = floor(log2 of the largest magnitude) - the element format's largest exponent, kept in [-127, 127];
element = x / 2**shared, half to even, saturating. Some large elements saturate: the block's largest may lie up to
2**emax+1 while the largest code is below it (E2M1: 8 and 6; E4M3: 512 and 448).
Source: OCP MX 1.0, sections 5.2, 5.4 and 6.3. The specification leaves the order of bytes open: scale first, then the
elements in order, a pair's first element in the low half; and what an infinity or NaN does: the block's scale is NaN
here. ggml's MXFP4 differs in the rounding of elements and in the order of nibbles (`ggml_mxfp4`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.formats.e2m1 import E2M1, decode_e2m1, encode_e2m1
from kvgate.formats.fp8_numbers import decode_fp8, encode_fp8, half_step
from kvgate.formats.numbers import FloatSpec
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.packing import pack_pairs, unpack_pairs

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

_SCALE_NAN = 255


class Mx(BlockNumerics):
    """x [n, 32] float32, bytes [n, 17] for E2M1 or [n, 33] for an 8-bit element."""

    nonfinite = "the whole block decodes to NaN"

    def __init__(self, element: FloatSpec) -> None:
        self.element = element
        #: Exponent of the largest element value: 2 for E2M1, 8 for E4M3.
        self.emax = ((element.max_code >> element.fraction_bits) or 1) - element.bias

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        shared, code = self._shared(x, xp)
        y = x * xp.power_of_two(-shared)
        if self.element is E2M1:
            return xp.concat([code, pack_pairs(encode_e2m1(y, xp))])
        return xp.concat([code, encode_fp8(y, self.element, xp)])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        codes = xp.contiguous(packed[:, 1:])
        if self.element is E2M1:
            values = decode_e2m1(unpack_pairs(codes, xp), xp)
        else:
            values = decode_fp8(codes, self.element, xp)
        return values * xp.from_e8m0(packed[:, :1])

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        """Half a step of the element, or what saturation cuts off, times the scale: all powers of two, so exact."""
        shared, _ = self._shared(x, xp)
        y = xp.abs(x * xp.power_of_two(-shared))
        largest = self.element.max
        lost = xp.where(y > largest, y - largest, half_step(y, self.element, xp))
        return lost * xp.power_of_two(shared)

    def _shared(self, x: Array, xp: Namespace) -> tuple[Array, Array]:
        """The exponent as i32 [n, 1], and its E8M0 code, 255 where the block holds an infinity or a NaN."""
        largest = xp.absmax(x)
        exponent = xp.exponent(largest)
        shared = xp.minimum(xp.maximum(exponent - self.emax, -127), 127)
        code = xp.where(exponent > 127, _SCALE_NAN, shared + 127)
        return shared, xp.cast(code, "u8")
