"""fp8_ds_mla, nvfp4_ds_mla: DeepSeek's packed latents, as vLLM stores them. The model's width decides the row.

fp8_ds_mla, DeepSeek V3.2, 512 + 64 elements, 656 bytes:
    512 E4M3 | 4 scales f32, one per 128: max(amax / 448, smallest normal float32) | 64 bf16 (rotary, kept)
fp8_ds_mla, DeepSeek V4, 448 + 64 elements, 584 bytes (in a page: all first 576 bytes, then all last 8):
    448 E4M3 | 64 bf16 (rotary, kept) | 7 scales E8M0, one per 64: 2**ceil(log2(max(amax, 1e-4) / 448)) | a zero byte
nvfp4_ds_mla, 512 + 64 elements, 352 bytes (not nvfp4's layout; the scale is rounded up):
    256 bytes of E2M1, neighbours share a byte, the first one low | 64 E4M3 (rotary, no scale) |
    32 scales E4M3, one per 16: max(amax / 6, 2**-9) rounded up; scale s lies at byte 8 * (s mod 4) + s div 4

DeepSeek V4.1's rows (528 bytes, and 288 for NVFP4) are not here. vLLM takes one word for both fp8 rows.
Source: vLLM 0.32.0, v1/attention/backends/mla/flashmla_sparse.py (layouts), csrc/libtorch_stable/cache_kernels.cu and
nvfp4_ds_mla_cache_kernels.cu, models/deepseek_v4/common/ops/cache_utils.py (arithmetic). The row of V4 is written by
a GPU's log2 and ceil: for bfloat16 latents that is exact, as it is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.core.source import Source
from kvgate.formats.e2m1 import E2M1, decode_e2m1, encode_e2m1
from kvgate.formats.fp8_numbers import decode_fp8, encode_fp8, half_step
from kvgate.formats.mla_rows import ROPE_DIM, MlaRowSpec
from kvgate.formats.numbers import FLOAT_SPECS
from kvgate.formats.numerics import BlockNumerics
from kvgate.formats.packing import pack_pairs, unpack_pairs

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

_E4M3 = FLOAT_SPECS["e4m3fn"]
_SMALLEST_NORMAL = 2.0**-126
V32_DIM, V32_BYTES, V32_TILE = 576, 656, 128
V4_DIM, V4_BYTES, V4_TILE = 512, 584, 64
FP4_BYTES, FP4_TILE = 352, 16
#: Where the scale of block s of nvfp4_ds_mla lies, and back.
_PLACES = tuple(8 * (s & 3) + (s >> 2) for s in range(32))
_BLOCK_AT = tuple(_PLACES.index(p) for p in range(32))


class Fp8DsMla(BlockNumerics):
    """Rows of one width: x [n, 576] to bytes [n, 656], or x [n, 512] to bytes [n, 584]."""

    unit = "row"
    #: The 656-byte row is; in V4's, a tile whose largest code became 224 takes half the scale on the second pass, and
    #: keeps its values in other bytes.
    idempotent = False
    nonfinite = "the tile that holds it decodes to NaN; a rotary element stays what it is"

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        latent, rope = _parts(x, xp)
        tiles, scale = self._tiles(latent, xp)
        codes = encode_fp8(xp.divide(tiles, scale), _E4M3, xp).reshape(x.shape[0], -1)
        kept = xp.view(xp.to_bf16(rope), "u8")
        stored = self._store(scale.reshape(x.shape[0], -1), xp)
        return xp.concat([codes, stored, kept] if x.shape[1] == V32_DIM else [codes, kept, stored])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        n, rope_bytes = packed.shape[0], 2 * ROPE_DIM
        if packed.shape[1] == V32_BYTES:
            width = V32_DIM - ROPE_DIM
            scale = xp.f32_bytes(packed[:, width : width + 16])
            kept = packed[:, width + 16 :]
        else:
            width = V4_DIM - ROPE_DIM
            kept = packed[:, width : width + rope_bytes]
            scale = xp.from_e8m0(packed[:, width + rope_bytes : width + rope_bytes + 7])
        codes = decode_fp8(xp.contiguous(packed[:, :width]), _E4M3, xp)
        latent = codes.reshape(n, scale.shape[1], -1) * scale.reshape(n, -1, 1)
        return xp.concat([latent.reshape(n, -1), xp.from_bf16(xp.view(xp.contiguous(kept), "i16"))])

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        """Half a step of E4M3 times the tile's scale, and two roundings of float32; of bfloat16 in the rotary part."""
        latent, rope = _parts(x, xp)
        tiles, scale = self._tiles(latent, xp)
        y = xp.abs(xp.divide(tiles, scale))
        lost = xp.where(y > _E4M3.max, y - _E4M3.max, half_step(y, _E4M3, xp)) * scale + xp.abs(tiles) * 2.0**-22
        return xp.concat([lost.reshape(x.shape[0], -1) + 2.0**-148, _bf16_bound(rope, xp)])

    def _tiles(self, latent: Array, xp: Namespace) -> tuple[Array, Array]:
        """The latent in tiles [m, 128] or [m, 64], and the scale of each [m, 1]."""
        if latent.shape[1] == V32_DIM - ROPE_DIM:
            tiles = latent.reshape(-1, V32_TILE)
            return tiles, xp.maximum(xp.divide(xp.absmax(tiles), _E4M3.max), _SMALLEST_NORMAL)
        tiles = latent.reshape(-1, V4_TILE)
        ratio = xp.divide(xp.maximum(xp.absmax(tiles), 1e-4), _E4M3.max)
        over = xp.cast((xp.bits(ratio) & 0x7FFFFF) != 0, "i32")
        power = xp.power_of_two(xp.minimum(xp.exponent(ratio) + over, 127))
        return tiles, xp.where(xp.isfinite(ratio), power, float("nan"))

    def _store(self, scale: Array, xp: Namespace) -> Array:
        """Bytes of a row's scales: 4 float32, or 7 E8M0 (255 for NaN) and a zero."""
        if scale.shape[1] == (V32_DIM - ROPE_DIM) // V32_TILE:
            return xp.bytes_f32(scale)
        codes = xp.where(xp.isfinite(scale), xp.exponent(scale) + 127, 255)
        return xp.concat([xp.cast(codes, "u8"), xp.full((scale.shape[0], 1), 0, "u8")])


class Nvfp4DsMla(BlockNumerics):
    """Rows: x [n, 576] float32, bytes [n, 352]."""

    unit = "row"
    #: Where a block's scale is subnormal (amax below 0.094) it may move on the second pass.
    idempotent = False
    nonfinite = (
        "an infinity saturates, and its block's scale too; a NaN becomes 6 scales in the latent, NaN in the rotary part"
    )

    def encode_blocks(self, x: Array, xp: Namespace) -> Array:
        n = x.shape[0]
        latent, rope = _parts(x, xp)
        blocks, codes, scale = _rounded_up(latent, xp)
        data = pack_pairs(encode_e2m1(blocks * xp.divide(xp.full((1, 1), 1.0, "f32"), scale), xp))
        order = xp.constant(_BLOCK_AT, "i64")
        return xp.concat([data.reshape(n, -1), encode_fp8(rope, _E4M3, xp), codes.reshape(n, -1)[:, order]])

    def decode_blocks(self, packed: Array, xp: Namespace) -> Array:
        n = packed.shape[0]
        values = decode_e2m1(unpack_pairs(xp.contiguous(packed[:, :256]), xp), xp)
        rope = decode_fp8(xp.contiguous(packed[:, 256 : 256 + ROPE_DIM]), _E4M3, xp)
        stored = xp.contiguous(packed[:, 256 + ROPE_DIM :][:, xp.constant(_PLACES, "i64")])
        scale = decode_fp8(stored, _E4M3, xp)
        return xp.concat([(values.reshape(n, -1, FP4_TILE) * scale.reshape(n, -1, 1)).reshape(n, -1), rope])

    def error_bound(self, x: Array, xp: Namespace) -> Array:
        """Half a step of E2M1 times the scale, or what saturation cuts off; of E4M3 in the rotary part."""
        latent, rope = _parts(x, xp)
        blocks, _, scale = _rounded_up(latent, xp)
        y = xp.abs(blocks * xp.divide(xp.full((1, 1), 1.0, "f32"), scale))
        lost = xp.where(y > E2M1.max, y - E2M1.max, half_step(y, E2M1, xp)) * scale + xp.abs(blocks) * 2.0**-21
        at = xp.abs(rope)
        kept = xp.where(at > _E4M3.max, at - _E4M3.max, half_step(at, _E4M3, xp)) + at * 2.0**-23
        return xp.concat([lost.reshape(x.shape[0], -1), kept])


def _parts(x: Array, xp: Namespace) -> tuple[Array, Array]:
    return xp.contiguous(x[:, :-ROPE_DIM]), xp.contiguous(x[:, -ROPE_DIM:])


def _rounded_up(latent: Array, xp: Namespace) -> tuple[Array, Array, Array]:
    """Blocks [m, 16], E4M3 codes and values of their scales [m, 1]; the next code up where rounding went down."""
    blocks = latent.reshape(-1, FP4_TILE)
    amax = xp.absmax(xp.where(xp.isnan(blocks), 0.0, blocks))
    wanted = xp.maximum(xp.divide(amax, E2M1.max), _E4M3.min_subnormal)
    codes = encode_fp8(wanted, _E4M3, xp)
    low = (decode_fp8(codes, _E4M3, xp) < wanted) & (codes < _E4M3.max_code)
    codes = codes + xp.cast(low, "u8")
    return blocks, codes, decode_fp8(codes, _E4M3, xp)


def _bf16_bound(x: Array, xp: Namespace) -> Array:
    """Half a step of bfloat16 at |x|; infinite where it rounds to infinity."""
    step = xp.power_of_two(xp.maximum(xp.exponent(x), -126) - 8)
    beyond = xp.abs(x) >= (2.0 - 2.0**-8) * 2.0**127
    return xp.where(beyond, float("inf"), step)


_LAYOUTS = "vllm/v1/attention/backends/mla/flashmla_sparse.py"

CODECS = (
    MlaRowSpec(
        name="fp8_ds_mla",
        block=V32_DIM,
        block_bytes=V32_BYTES,
        description="packed latents: E4M3 with a scale per tile, rotary part in bfloat16",
        source=Source("spec", _LAYOUTS, "vLLM 0.32.0"),
        spellings={"vllm": ("fp8_ds_mla",)},
        numerics=Fp8DsMla(),
        rows={V32_DIM: V32_BYTES, V4_DIM: V4_BYTES},
        unrotated={V32_DIM - ROPE_DIM: V32_BYTES},
    ),
    MlaRowSpec(
        name="nvfp4_ds_mla",
        block=V32_DIM,
        block_bytes=FP4_BYTES,
        description="packed latents: E2M1 with an E4M3 scale per 16, rotary part in E4M3",
        source=Source("spec", _LAYOUTS, "vLLM 0.32.0"),
        spellings={"vllm": ("nvfp4_ds_mla",)},
        numerics=Nvfp4DsMla(),
        rows={V32_DIM: FP4_BYTES},
    ),
)
