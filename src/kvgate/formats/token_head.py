"""What vLLM's `*_per_token_head` layouts share: one float32 scale for each head of each token, behind its codes.

Layout of a row (head_dim D): the codes | scale f32, little-endian. K and V each have their own (vLLM 0.32.0,
v1/attention/backends/triton_attn.py, `customize_spec`). Scales are found from the row itself when it is written.
On a GPU, Triton's division by a constant may differ from the correctly rounded one here in the last bit of a scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

SCALE_BYTES = 4
#: No scale is smaller: a row of zeros stores this one.
SMALLEST_SCALE = 1e-6
SOURCE = Source("spec", "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py", "vLLM 0.32.0")


def scale_of(span: Array, steps: float, xp: Namespace) -> Array:
    """span / steps, at least the smallest scale; NaN where the span is NaN. [n, 1]."""
    return xp.maximum(xp.divide(span, steps), SMALLEST_SCALE)


def join(codes: Array, scale: Array, xp: Namespace) -> Array:
    """u8 [n, c] and float32 [n, 1] -> u8 [n, c + 4]."""
    return xp.concat([codes, xp.bytes_f32(scale)])


def split(packed: Array, xp: Namespace) -> tuple[Array, Array]:
    """u8 [n, c + 4] -> u8 [n, c] and float32 [n, 1]."""
    return xp.contiguous(packed[:, :-SCALE_BYTES]), xp.f32_bytes(packed[:, -SCALE_BYTES:])
