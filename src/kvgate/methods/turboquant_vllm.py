"""vLLM's `turboquant_*` cache dtypes, byte for byte: k8v4, 4bit_nc, k3v4_nc, 3bit_nc.

Keys of the *_nc presets: n = |k| in float32; y = H k / (n + 1e-8) with the normalised Sylvester matrix of the whole
head (no random signs, no QJL); code = how many midpoints between centroids lie at or below y; stored are the codes and
n as float16. Centroids: Lloyd-Max for N(0, 1/head_dim) by vLLM's own integration (`lloyd_max.vllm_levels`). Read back:
n16 * H c / |c|, c the centroids of the codes ("norm correction").
Keys of k8v4: the E4M3 cast of k, no scale, no rotation, saturating.
Values: not rotated; per token and head s = max((max - min) / (2^b - 1), 1e-8), code = trunc((v - min) / s + 0.5)
clamped, computed with the float32 s; stored are codes, s and min as float16; v' = code * s16 + min16.

Shapes: (batch, kv_heads, tokens, head_dim). Layout of one head of one token ("slot"): key codes | norm | value codes |
s | min, little end first; 4 bits: even element low; 3 bits: 8 codes in 24 bits. A slot of odd length has a zero byte at
its end, which is counted under V. Bytes at head_dim 128: 196, 134, 118, 102.

The first two and last two layers stay native in dense models (`native_layers`); hybrid models have none of these.
Departs: vLLM rotates by a matrix product, so that a code whose y lies within float32 rounding of a midpoint may differ
by one. The ROCm variant (FlyDSL) keeps codes and scales of a page apart and stores the norm already divided by |c|: the
same bytes a token, another layout. On GPUs before SM 8.9 keys of k8v4 are e4b15, another FP8. vLLM's prefill attends to
the raw keys and values of the first chunk and of chunks over 128 tokens (`LayerStream.step` does too); its read-back of
earlier chunks passes through float16, ours does not.
Source: vLLM 0.32.0, turboquant/config.py and centroids.py, ops/triton_turboquant_store.py and _decode.py,
backends/turboquant_attn.py (read and run in the Triton interpreter).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import GroupCoder, StorageMethod, boundary_layers
from kvgate.methods._storage import TokenStorage
from kvgate.methods.lloyd_max import db, float_db, range_db, sphere_levels
from kvgate.methods.spec import Packed, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

#: vLLM continues chunks up to this length on its stored tokens; see `_CONTINUATION_DECODE_THRESHOLD`.
SMALL_CHUNK_TOKENS = 128
FP8_BITS = 8


def key_bytes(dim: int, bits: int) -> int:
    """One head of one token: codes and a float16 norm, or the FP8 bytes."""
    return dim if bits == FP8_BITS else -(-dim * bits // 8) + 2


def value_bytes(dim: int, bits: int) -> int:
    """One head of one token: codes, float16 scale and minimum."""
    return -(-dim * bits // 8) + 4


@dataclass(frozen=True)
class SlotStorage(TokenStorage):
    """Bytes of one side of the slot.

    Attributes:
        key_bits, value_bits: of the preset.
    """

    key_bits: int
    value_bits: int

    def group_bytes(self, dim: int) -> int:
        if self.side == "k":
            if self.key_bits != FP8_BITS and dim & (dim - 1):
                raise UserError(
                    f"{self.name} rotates keys by a Hadamard matrix of the whole head, and {dim} is no power of two",
                    fix="choose turboquant_k8v4, whose keys are not rotated",
                )
            self.refuse(dim, 8, "codes are packed by eight elements")
            return key_bytes(dim, self.key_bits)
        self.refuse(dim, 8, "codes are packed by eight elements")
        # The slot is padded to an even length.
        return (
            value_bytes(dim, self.value_bits) + (key_bytes(dim, self.key_bits) + value_bytes(dim, self.value_bits)) % 2
        )


class Fp8KeyCoder(GroupCoder):
    """Keys of k8v4."""

    def __init__(self) -> None:
        from kvgate.formats.codec import codecs

        self.codec = codecs["fp8_e4m3"]

    def encode(self, x: Array, tables: Packed) -> Packed:
        return {"codes": self.codec.encode(x)}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        return self.codec.decode(packed["codes"])


class KeyCoder(GroupCoder):
    """Rotated keys on Lloyd-Max centroids."""

    def __init__(self, dim: int, bits: int) -> None:
        import numpy as np

        from kvgate.methods.lloyd_max import vllm_levels

        self.dim, self.bits = dim, bits
        self.levels = vllm_levels(dim, bits)
        c = np.array(self.levels, np.float32)
        self.midpoints = tuple(map(float, (c[:-1] + c[1:]) / np.float32(2)))

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import pack_codes

        xp = namespace(x)
        norm = norms(xp, x)
        y = self._rotate(xp.divide(x, norm + xp.full((1,), 1e-8, "f32")))
        codes = xp.bucketize(y, self.midpoints, up=True)
        return {"codes": pack_codes(xp, codes, self.bits), "norm": xp.bytes_f16(norm)}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import sqrt, tree_sum, unpack_codes

        xp = namespace(packed["codes"])
        c = xp.take(xp.constant(self.levels, "f32"), unpack_codes(xp, packed["codes"], self.bits, self.dim))
        inverse = xp.divide(xp.full((1,), 1.0, "f32"), sqrt(xp, tree_sum(c * c) + xp.full((1,), 1e-16, "f32")))
        return self._rotate(xp.f16_bytes(packed["norm"]) * (c * inverse))

    def _rotate(self, x: Array) -> Array:
        from kvgate.methods.hadamard import fast_hadamard

        return fast_hadamard(x, self.dim)


class ValueCoder(GroupCoder):
    """Uniform codes between the least and the largest element of a head of one token."""

    def __init__(self, dim: int, bits: int, pad: int) -> None:
        self.dim, self.bits, self.pad = dim, bits, pad

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import pack_codes

        xp = namespace(x)
        top = float((1 << self.bits) - 1)
        low = xp.min(x)
        scale = xp.divide(xp.max(x) - low, top)
        scale = xp.where(scale > 1e-8, scale, 1e-8)
        # Clamp before the cast: the quotient of a huge range by a tiny scale would not fit an integer.
        codes = xp.clip(xp.trunc(xp.divide(x - low, scale) + xp.full((1,), 0.5, "f32")), 0.0, top)
        held = {
            "codes": pack_codes(xp, xp.cast(codes, "u8"), self.bits),
            "scale": xp.bytes_f16(scale),
            "min": xp.bytes_f16(low),
        }
        if self.pad:
            held["pad"] = xp.full((*x.shape[:3], self.pad), 0, "u8")
        return held

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import unpack_codes

        xp = namespace(packed["codes"])
        q = xp.cast(unpack_codes(xp, packed["codes"], self.bits, self.dim), "f32")
        return q * xp.f16_bytes(packed["scale"]) + xp.f16_bytes(packed["min"])


class TurboQuantPreset(StorageMethod):
    """One `turboquant_*`."""

    own_raw = SMALL_CHUNK_TOKENS

    def __init__(self, name: str, key_bits: int, value_bits: int) -> None:
        self.name = f"turboquant_{name}"
        self.key_bits, self.value_bits = key_bits, value_bits
        keys = "FP8 keys" if key_bits == FP8_BITS else f"{key_bits}-bit rotated Lloyd-Max keys with their norm"
        self.description = f"vLLM's {self.name}: {keys}, {value_bits}-bit values; two layers at either end native"
        self.source = Source("spec", "vllm turboquant/config.py, ops/triton_turboquant_store.py", "vLLM 0.32.0")

    def sized(self, side: KVSide, values: Mapping[str, int]) -> SlotStorage:
        return SlotStorage(self.name, side, Window(0), self.key_bits, self.value_bits)

    def slot(self, dim: int) -> int:
        """Bytes of one head of one token, K and V, as vLLM reserves them."""
        both = key_bytes(dim, self.key_bits) + value_bytes(dim, self.value_bits)
        return both + both % 2

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> GroupCoder:
        if side == "v":
            pad = (
                self.slot(layer.v_dim)
                - key_bytes(layer.v_dim, self.key_bits)
                - value_bytes(layer.v_dim, self.value_bits)
            )
            return ValueCoder(layer.v_dim, self.value_bits, pad)
        return Fp8KeyCoder() if self.key_bits == FP8_BITS else KeyCoder(layer.k_dim, self.key_bits)

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        if side == "v":
            return range_db(self.value_bits, layer.v_dim)
        dim = layer.k_dim
        return float_db(3) if self.key_bits == FP8_BITS else db(dim * sphere_levels(1 << self.key_bits, dim).error)

    def native_layers(self, layer_count: int, *, hybrid: bool) -> tuple[int, ...]:
        return boundary_layers(layer_count, hybrid=hybrid)


def norms(xp: Namespace, x: Array) -> Array:
    """Euclidean norm over the last axis, kept; summed as a tree, so that numpy and torch agree."""
    from kvgate.methods._arrays import sqrt, tree_sum

    return sqrt(xp, tree_sum(x * x))


METHOD = (
    TurboQuantPreset("k8v4", 8, 4),
    TurboQuantPreset("4bit_nc", 4, 4),
    TurboQuantPreset("k3v4_nc", 3, 4),
    TurboQuantPreset("3bit_nc", 3, 3),
)
