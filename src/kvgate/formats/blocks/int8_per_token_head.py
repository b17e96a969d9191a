"""int8_per_token_head: int8 codes with one float32 scale for each head of each token, as vLLM stores it.

scale = max(amax / 127, 1e-6); code = x * (1/scale), plus or minus a half, toward zero, within [-128, 127]; value =
code * scale.
Layout: `formats/token_head.py`. Encoding again changes nothing: (127 * (a / 127)) / 127 is a / 127 for every float32 a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.spec import CodecSpec
from kvgate.formats.token_head import SCALE_BYTES, SOURCE, join, scale_of, split

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


class Int8PerTokenHead(BlockNumerics):
    """Rows: x [n, D] float32, bytes [n, D + 4]."""

    unit = "row"
    nonfinite = "the whole row decodes to NaN (vLLM overlooks a NaN in the maximum, and stores some code for it)"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        scale = scale_of(xp.absmax(x), 127.0, xp)
        q = x * xp.divide(xp.full((1, 1), 1.0, "f32"), scale)
        # Adding a half and cutting off is vLLM's rounding; it is not roundf just below a half.
        q = xp.clip(q + xp.copysign(0.5, q), -128.0, 127.0)
        nan = xp.isnan(q)
        if xp.any(nan):
            q = xp.where(nan, 0.0, q)
        return join(xp.view(xp.cast(q, "i8"), "u8"), scale, xp)

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        codes, scale = split(packed, xp)
        return xp.cast(xp.view(codes, "i8"), "f32") * scale

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        """Half a step; reciprocal, product and dequantization each round once more."""
        return scale_of(xp.absmax(x), 127.0, xp) * 0.5 + xp.abs(x) * 2.0**-21


CODECS = (
    CodecSpec(
        name="int8_per_token_head",
        block=1,
        block_bytes=1,
        row_extra_bytes=SCALE_BYTES,
        description="int8 codes, one float32 scale for each head of each token",
        source=SOURCE,
        spellings={"vllm": ("int8_per_token_head",)},
        numerics=Int8PerTokenHead(),
    ),
)
