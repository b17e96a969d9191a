"""nvfp4: E2M1 elements with an E4M3 scale per 16, as vLLM's cache keeps them.

Layout of a row (head_dim D): D/2 bytes of nibbles, neighbours share a byte, the first one low | D/16 scales. In a
page of the cache all rows' data come first and all their scales after, V's scales shuffled for one kernel:
`formats/nvfp4_pages.py`.

With k the tensor's scale from the checkpoint (`k_scale`, a dequantization scale; 1.0 where there is none):
    s = e4m3(amax/6 / k)    code = e2m1(x / (s k)), 0 if s is 0    value = code * s * k
The order of operations is that of vLLM's writer (csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu and
quantization/fp4/nvfp4_utils.cuh, vLLM 0.32.0): reciprocals are multiplied. Ours are correctly rounded; that kernel's
rcp.approx may differ from them in the last bit, so that a scale or a code in some thousands may fall to the other
side. vLLM's reference in Python (nvfp4_emulation_utils.py, `ref_nvfp4_quant`) agrees to the byte. llama.cpp's layout,
without k, is ggml_nvfp4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.e2m1 import E2M1, decode_e2m1, encode_e2m1
from kvgate.formats.fp8_numbers import decode_fp8, encode_fp8, half_step
from kvgate.formats.numbers import FLOAT_SPECS
from kvgate.formats.numerics import Overflow, ScaledNumerics
from kvgate.formats.packing import pack_pairs, unpack_pairs
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

E4M3 = FLOAT_SPECS["e4m3fn"]
BLOCK = 16


class Nvfp4(ScaledNumerics):
    """Rows: x [n, D] float32, bytes [n, D/2 + D/16]; scale [1, 1] or [n, 1]."""

    unit = "row"
    #: Where a block's scale is subnormal (amax below 0.094 k) it may fall on the second pass; above, nothing moves.
    idempotent = False
    nonfinite = (
        "a NaN becomes the block's largest code, as on the GPU; an infinity saturates, and the block's scale with it"
    )

    def encode_blocks(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        blocks, per_block = _blocks(x, scale, xp)
        scales, inverse = self._scales(blocks, per_block, xp)
        data = pack_pairs(encode_e2m1(blocks * inverse, xp))
        return xp.concat([data.reshape(x.shape[0], -1), scales.reshape(x.shape[0], -1)])

    def decode_blocks(self, packed: Array, xp: Namespace, scale: Array) -> Array:
        n, data_bytes = packed.shape[0], packed.shape[1] * 8 // 9
        values = decode_e2m1(unpack_pairs(xp.contiguous(packed[:, :data_bytes]), xp), xp)
        step = decode_fp8(xp.contiguous(packed[:, data_bytes:]), E4M3, xp) * scale
        return (values.reshape(n, -1, BLOCK) * step.reshape(n, -1, 1)).reshape(n, -1)

    def error_bound(self, x: Array, xp: Namespace, scale: Array, overflow: Overflow) -> Array:
        """Half a step of E2M1, or what saturation cuts off, times both scales; all of x where the block's scale is 0.

        The stored scale is exact; the reciprocals and products around it round five times: 2**-20 of x covers them.
        """
        blocks, per_block = _blocks(x, scale, xp)
        scales, inverse = self._scales(blocks, per_block, xp)
        size, y = xp.abs(blocks), xp.abs(blocks * inverse)
        unit = decode_fp8(scales, E4M3, xp) * per_block
        lost = xp.where(y > E2M1.max, size - unit * E2M1.max, half_step(xp.minimum(y, E2M1.max), E2M1, xp) * unit)
        bound = xp.where(inverse == 0, size, lost) + size * 2.0**-20 + 2.0**-147
        # Scales near the ends of float32 overflow on the way: no bound then.
        return xp.where(xp.isnan(bound), float("inf"), bound).reshape(x.shape)

    def _scales(self, blocks: Array, per_block: Array, xp: Namespace) -> tuple[Array, Array]:
        """u8 codes and float32 1/(s k), 0 where s is 0; both [m, 1]."""
        return candidate(_largest(blocks, xp), 6.0, per_block, xp)


def candidate(amax: Array, divisor: float, scale: Array, xp: Namespace) -> tuple[Array, Array]:
    """The E4M3 scale that maps `amax` to `divisor`, and the factor that its elements are multiplied by. All [m, 1]."""
    one = xp.full((1, 1), 1.0, "f32")
    g = xp.divide(one, scale)
    codes = encode_fp8(g * (amax * xp.divide(one, divisor)), E4M3, xp)
    s = decode_fp8(codes, E4M3, xp)
    return codes, xp.reciprocal_or_zero(s * xp.divide(one, g))


def _blocks(x: Array, scale: Array, xp: Namespace) -> tuple[Array, Array]:
    """x [n, D] -> [n D/16, 16], and the scale of each block."""
    blocks = x.reshape(-1, BLOCK)
    if scale.shape[0] == 1:
        return blocks, scale
    return blocks, xp.repeat(scale, blocks.shape[0] // scale.shape[0] if scale.shape[0] else 1)


def _largest(blocks: Array, xp: Namespace) -> Array:
    """Largest magnitude of each block; NaNs do not count, as in CUDA's max."""
    found = xp.absmax(blocks)
    nan = xp.isnan(found)
    if xp.any(nan):
        return xp.where(nan, xp.absmax(xp.where(xp.isnan(blocks), 0.0, blocks)), found)
    return found


CODECS = (
    CodecSpec(
        name="nvfp4",
        block=BLOCK,
        block_bytes=9,
        description="16 E2M1 elements and one E4M3 scale, data and scales apart in a page",
        source=Source("spec", "vllm/utils/torch_utils.py, nvfp4_kv_cache_full_dim", "vLLM 0.32.0"),
        spellings={"vllm": ("nvfp4",), "sglang": ("nvfp4",), "trtllm": ("nvfp4",)},
        numerics=Nvfp4(),
    ),
)
