"""vLLM's `ultraquant_4bit`: E2M1 elements with a power-of-two scale per 32; keys rotated, values not.

Keys are multiplied by the normalised Sylvester matrix of the whole head. Per group of 32 along head_dim: raw scale
0.156 * max|x|, stored as the nearest power of two by floor(log2(raw) + 0.5) in one byte (exponent + 127; 0 is a zero
group); code = nearest of the E2M1 values to x / scale, a value halfway takes the lower one (toward minus infinity);
beyond 6 the value saturates. Read back is E2M1 * 2^(byte - 127), keys rotated back.

Shapes: (batch, kv_heads, tokens, head_dim). Layout of one head of one token: K codes, even element low | K scales |
V codes | V scales. Bytes: head_dim / 2 + head_dim / 32 for either side, 4.25 bits an element.
The first two and last two layers stay native in dense models.
Departs: vLLM rotates by a matrix product (last bits), and multiplies with queries that it has rotated and cast to E4M3;
that cast is the engine's attention, not storage. An exact tie of the scale's rounding depends on float32's log2 here
and there.
Not idempotent: 0.156 * max|x| of a decoded group can round to another power of two (`tests/methods`, measured).
Source: vLLM 0.32.0, v1/attention/ops/ultraquant/format.py and reference.py (run as oracle).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import floor, log2
from typing import TYPE_CHECKING, Any

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import GroupCoder, StorageMethod, boundary_layers
from kvgate.methods._storage import TokenStorage
from kvgate.methods.hadamard import fast_hadamard
from kvgate.methods.lloyd_max import grid_db
from kvgate.methods.spec import Packed, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array

GROUP = 32
SCALE = 0.156
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = (*_POSITIVE, *(-v for v in _POSITIVE))
_ASCENDING = (*(-v for v in reversed(_POSITIVE[1:])), *_POSITIVE)
#: Between neighbours of the fifteen values.
_EDGES = tuple((a + b) / 2 for a, b in pairwise(_ASCENDING))
#: From the place among the fifteen to sign, exponent and fraction; zero is written without a sign.
_CODE = (*(8 | i for i in range(7, 0, -1)), *range(8))


@dataclass(frozen=True)
class Fp4Storage(TokenStorage):
    """Bytes of codes and scales."""

    def group_bytes(self, dim: int) -> int:
        self.refuse(dim, GROUP, f"scales are for groups of {GROUP} elements")
        if self.side == "k" and dim & (dim - 1):
            raise UserError(f"{self.name} rotates keys by a matrix of the whole head, and {dim} is no power of two")
        return dim // 2 + dim // GROUP


class Fp4Coder(GroupCoder):
    """Codes and scales of one side."""

    def __init__(self, rotate: bool) -> None:
        self.rotate = rotate

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.packing import pack_pairs
        from kvgate.formats.xp import namespace
        from kvgate.methods import _arrays

        xp = namespace(x)
        lead, dim = tuple(x.shape[:-1]), int(x.shape[-1])
        turned = fast_hadamard(x, dim) if self.rotate else x
        grouped = turned.reshape(*lead, -1, GROUP)
        raw = xp.absmax(grouped) * xp.full((1,), SCALE, "f32")
        used = (raw > 0) & xp.isfinite(raw)
        exponent = xp.floor(_arrays.log2(xp, xp.where(used, raw, 1.0)) + xp.full((1,), 0.5, "f32"))
        exponent = xp.cast(xp.clip(exponent, -126.0, 127.0), "i32")
        place = xp.bucketize(xp.divide(grouped, xp.power_of_two(exponent)), _EDGES, up=False)
        codes = xp.take(xp.constant(_CODE, "u8"), xp.where(used, place, 7))
        scales = xp.cast(xp.where(used, exponent + 127, 0), "u8")
        return {"codes": pack_pairs(codes.reshape(*lead, dim)), "scales": scales[..., 0]}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.packing import unpack_pairs
        from kvgate.formats.xp import namespace

        xp = namespace(packed["codes"])
        codes = unpack_pairs(packed["codes"], xp)
        scale = xp.power_of_two(xp.cast(packed["scales"], "i32") - 127)
        scale = xp.where(packed["scales"] == 0, 0.0, scale)[..., None]
        values = xp.take(xp.constant(_VALUES, "f32"), codes).reshape(*codes.shape[:-1], -1, GROUP) * scale
        x = values.reshape(codes.shape)
        return fast_hadamard(x, int(x.shape[-1])) if self.rotate else x


class UltraQuant(StorageMethod):
    """vLLM's `ultraquant_4bit`."""

    name = "ultraquant_4bit"
    description = (
        "vLLM's ultraquant_4bit: E2M1 with a power-of-two scale per 32, keys rotated; two layers at either end native"
    )
    idempotent = False
    source = Source("spec", "vllm/v1/attention/ops/ultraquant/reference.py", "vLLM 0.32.0")

    def sized(self, side: KVSide, values: Mapping[str, int]) -> Fp4Storage:
        return Fp4Storage(self.name, side, Window(0))

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> Fp4Coder:
        return Fp4Coder(rotate=side == "k")

    def native_layers(self, layer_count: int, *, hybrid: bool) -> tuple[int, ...]:
        return boundary_layers(layer_count, hybrid=hybrid)

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        return group_db()


@cache
def group_db() -> float:
    """SQNR of N(0, 1) values in groups of 32."""
    return grid_db(_POSITIVE, GROUP, lambda largest: 2.0 ** floor(log2(SCALE * largest) + 0.5))


METHOD = UltraQuant()
