"""nvfp4_4over6: nvfp4's layout, but each block of 16 chooses its scale: amax/6 or amax/4, whichever loses less.

The smaller sum of squared errors wins, amax/6 on a tie (vLLM 0.32.0, config/cache.py and
csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu, `cvt_warp_fp16_to_fp4_4over6`). The sum runs over pairs in order, in
float32, each operation rounded; the GPU may fuse multiply and add, so that two candidates within some 2**-22 of each
other may change places there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.blocks.nvfp4 import BLOCK, Nvfp4, _largest, candidate
from kvgate.formats.e2m1 import decode_e2m1, encode_e2m1
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace


class FourOverSix(Nvfp4):
    """As `Nvfp4`, with two candidates for the scale."""

    def _scales(self, blocks: Array, per_block: Array, xp: Namespace) -> tuple[Array, Array]:
        amax = _largest(blocks, xp)
        codes6, inverse6 = candidate(amax, 6.0, per_block, xp)
        codes4, inverse4 = candidate(amax, 4.0, per_block, xp)
        use4 = _squared_error(blocks, inverse4, xp) < _squared_error(blocks, inverse6, xp)
        return xp.where(use4, codes4, codes6), xp.where(use4, inverse4, inverse6)


def _squared_error(blocks: Array, inverse: Array, xp: Namespace) -> Array:
    """Sum of squared errors of each block [m, 1] with these factors; what the GPU adds up, in its order."""
    back = xp.reciprocal_or_zero(inverse)
    d = decode_e2m1(encode_e2m1(blocks * inverse, xp), xp) * back - blocks
    squares = d * d
    pairs = squares[:, 0::2] + squares[:, 1::2]
    total = pairs[:, :1]
    for i in range(1, BLOCK // 2):
        total = total + pairs[:, i : i + 1]
    return total


CODECS = (
    CodecSpec(
        name="nvfp4_4over6",
        block=BLOCK,
        block_bytes=9,
        description="nvfp4 whose blocks choose between amax/6 and amax/4 as their scale",
        source=Source("spec", "vllm/config/cache.py, CacheConfig.cache_dtype", "vLLM 0.32.0"),
        spellings={"vllm": ("nvfp4_4over6",)},
        numerics=FourOverSix(),
    ),
)
