"""fp8_per_token_head: E4M3 codes with one float32 scale for each head of each token, as vLLM stores it.

scale = max(amax / 448, 1e-6); code = e4m3(x * (1/scale)) within [-448, 448]; value = code * scale. Layout:
`formats/token_head.py`. On AMD's fnuz platforms vLLM divides by 224 and stores E4M3FNUZ; that layout is not this one.
Encoding again changes nothing: (448 * (a / 448)) / 448 is a / 448 for every float32 a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.formats.fp8_numbers import decode_fp8, encode_fp8, half_step
from kvgate.formats.numbers import FLOAT_SPECS
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.spec import CodecSpec
from kvgate.formats.token_head import SCALE_BYTES, SOURCE, join, scale_of, split

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

_E4M3 = FLOAT_SPECS["e4m3fn"]


class Fp8PerTokenHead(BlockNumerics):
    """Rows: x [n, D] float32, bytes [n, D + 4]."""

    unit = "row"
    nonfinite = "the whole row decodes to NaN (vLLM overlooks a NaN in the maximum)"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        scale, y = _scaled(x, xp)
        return join(encode_fp8(y, _E4M3, xp), scale, xp)

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        codes, scale = split(packed, xp)
        return decode_fp8(codes, _E4M3, xp) * scale

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        """Half a step of the code; reciprocal, product and dequantization each round once more."""
        scale, y = _scaled(x, xp)
        return half_step(y, _E4M3, xp) * scale + xp.abs(x) * 2.0**-21


def _scaled(x: Array, xp: Namespace) -> tuple[Array, Array]:
    scale = scale_of(xp.absmax(x), _E4M3.max, xp)
    return scale, x * xp.divide(xp.full((1, 1), 1.0, "f32"), scale)


CODECS = (
    CodecSpec(
        name="fp8_per_token_head",
        block=1,
        block_bytes=1,
        row_extra_bytes=SCALE_BYTES,
        description="E4M3 codes, one float32 scale for each head of each token",
        source=SOURCE,
        spellings={"vllm": ("fp8_per_token_head",)},
        numerics=Fp8PerTokenHead(),
    ),
)
