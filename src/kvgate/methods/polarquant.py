"""PolarQuant: random rotation, then pairs to angle and radius, four times over; angles quantized, one radius per 16.

    polarquant

A row is rotated by a random orthogonal matrix (one for all layers). Level 1 turns neighbours (a, b) into a radius
sqrt(a^2 + b^2) and an angle atan2(b, a) in [0, 2 pi); levels 2 to 4 do the same with neighbouring radii, whose angles
lie in [0, pi/2]. After the rotation all angles have known densities: uniform on level 1, proportional to sin(2
t)^(2^(l-1) - 1) on level l. Level 1 has 16 even cells of 22.5 degrees, levels 2 to 4 have 4 Lloyd-Max levels each. Each
16 elements keep one float16 radius.

Shapes: (batch, kv_heads, tokens, head_dim), head_dim a multiple of 16. Layout of one head of one token, little end
first: level 1 codes, 4 bits [head_dim / 2] | level 2, 2 bits [head_dim / 4] | level 3, 2 bits [head_dim / 8] | level 4,
2 bits [head_dim / 16] | radii, float16 [head_dim / 16]; each part padded to whole bytes. 62 bits per 16: 3.875 bits an
element where head_dim is a multiple of 64. K and V alike.

Departs: angles are not computed; a cell is found by comparing products with its edges' sine and cosine, so that
numpy and torch agree. Level 1 codebooks fitted to a prompt (the paper's "online" variant) are left out. The rotation is
that of `turboquant` with a seed of its own.
Source: arXiv 2502.02617, sections 3 and 4 (excerpts): 4 + 2 + 2 + 2 bits, Lemma 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi, sin
from typing import TYPE_CHECKING, Any

from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._parameters import Parameter
from kvgate.methods._storage import TokenStorage
from kvgate.methods.lloyd_max import angle_levels, db
from kvgate.methods.spec import Packed, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

BLOCK = 16
#: Bits of the angles of each level, and how many angles of it a block of 16 has.
BITS = (4, 2, 2, 2)
ANGLES = (8, 4, 2, 1)
SEED = 20250205
TURNS = 16


@dataclass(frozen=True)
class PolarStorage(TokenStorage):
    """Bytes of angles and radii."""

    def group_bytes(self, dim: int) -> int:
        self.refuse(dim, BLOCK, f"angles are taken of blocks of {BLOCK}")
        blocks = dim // BLOCK
        return sum(-(-blocks * n * bits // 8) for n, bits in zip(ANGLES, BITS, strict=True)) + 2 * blocks


class PolarCoder(GroupCoder):
    """Angles of blocks of 16."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self.seed = dim, seed
        # Level 1: cells [i, i + 1) * 22.5 degrees, read back in their middle.
        self.first = tuple((i + 0.5) * 2 * pi / TURNS for i in range(TURNS))
        self.upper = tuple(angle_levels(4, level) for level in (2, 3, 4))

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import pack_codes, product
        from kvgate.methods.turboquant import random_rotation

        xp = namespace(x)
        radii = product(xp, x, random_rotation(self.dim, self.seed).T)
        held: dict[str, Array] = {}
        for level, bits in enumerate(BITS, start=1):
            a, b = radii[..., 0::2], radii[..., 1::2]
            codes = _turn(xp, a, b) if level == 1 else _quarter(xp, a, b, self.upper[level - 2].edges)
            held[f"angles{level}"] = pack_codes(xp, codes, bits)
            radii = _length(xp, a, b)
        return {**held, "radii": xp.bytes_f16(xp.contiguous(radii))}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import product, stack_last, unpack_codes
        from kvgate.methods.turboquant import random_rotation

        xp = namespace(packed["radii"])
        radii = xp.f16_bytes(packed["radii"])
        for level in (4, 3, 2, 1):
            count = self.dim // 2**level
            codes = unpack_codes(xp, packed[f"angles{level}"], BITS[level - 1], count)
            angles = self.first if level == 1 else self.upper[level - 2].levels
            a = radii * xp.take(xp.constant(tuple(map(cos, angles)), "f32"), codes)
            b = radii * xp.take(xp.constant(tuple(map(sin, angles)), "f32"), codes)
            radii = stack_last(xp, [a, b]).reshape(*a.shape[:-1], 2 * count)
        return product(xp, radii, random_rotation(self.dim, self.seed))


def _turn(xp: Namespace, a: Array, b: Array) -> Array:
    """Which of 16 even cells the angle of (a, b) lies in, from 0 counter-clockwise; (0, 0) is cell 0."""
    lower = (b < 0) | ((b == 0) & (a < 0))
    # Turned by half a circle where it lies below: then the angle is in [0, pi).
    up_a, up_b = xp.where(lower, -a, a), xp.where(lower, -b, b)
    cells = xp.cast(lower, "u8") * 8
    for i in range(1, TURNS // 2):
        edge = 2 * pi * i / TURNS
        cells = cells + xp.cast(_beyond(xp, up_a, up_b, edge), "u8")
    return cells


def _quarter(xp: Namespace, a: Array, b: Array, edges: tuple[float, ...]) -> Array:
    """How many edges in (0, pi/2) the angle of (a, b) lies beyond, both not negative."""
    cells = xp.cast(_beyond(xp, a, b, edges[0]), "u8")
    for edge in edges[1:]:
        cells = cells + xp.cast(_beyond(xp, a, b, edge), "u8")
    return cells


def _beyond(xp: Namespace, a: Array, b: Array, edge: float) -> Array:
    """Whether the angle of (a, b), in [0, pi), is `edge` or more: b cos - a sin >= 0, and not the zero vector."""
    across = b * xp.full((1,), cos(edge), "f32") - a * xp.full((1,), sin(edge), "f32")
    return (across >= 0) & ((a != 0) | (b != 0))


def _length(xp: Namespace, a: Array, b: Array) -> Array:
    from kvgate.methods._arrays import sqrt

    return sqrt(xp, a * a + b * b)


class PolarQuant(StorageMethod):
    """PolarQuant."""

    name = "polarquant"
    description = "random rotation, four levels of angles in 4, 2, 2 and 2 bits, one float16 radius per 16 elements"
    source = Source("spec", "arXiv 2502.02617, sections 3 and 4")
    parameters = (Parameter("seed", SEED, low=0, high=999_999_999),)

    def sized(self, side: KVSide, values: Mapping[str, int]) -> PolarStorage:
        return PolarStorage(self.name, side, Window(0))

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> PolarCoder:
        return PolarCoder(layer.k_dim if side == "k" else layer.v_dim, values["seed"])

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        """An angle that is off by e turns a vector of length r by 2 r sin(e / 2): about (r e)^2, levels adding up.

        Level 1: e is even in a cell of 22.5 degrees, E[2 - 2 cos e] = 2 - 2 sin(h) / h with h half a cell. Level l has
        the Lloyd-Max error of its angle. Each level turns the whole of the vector's square.
        """
        half = pi / TURNS
        first = 2 - 2 * sin(half) / half
        return db(first + sum(angle_levels(4, level).error for level in (2, 3, 4)))


METHOD = PolarQuant()
