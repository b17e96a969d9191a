"""TurboQuant as the paper has it: random rotation, Lloyd-Max levels of the sphere, with or without a QJL residual.

    turboquant:bits=4     turboquant:bits=4:qjl=1

A key or value x with norm n is rotated by a random orthogonal matrix P (Q of a Gaussian matrix, one for all layers):
y = P x / n lies on the unit sphere, where each coordinate has a known density (Beta, tending to N(0, 1/d)). Each
coordinate goes to the nearest of 2^b levels that are best for this density; read back is n P^T c. That is the version
of least mean square error (`qjl=0`).
`qjl=1` spends one of the b bits on an unbiased inner product: b-1 bits as above give x1; of the residual r = x - x1,
the signs of S r are stored, S Gaussian d x d, with |r|. Read back is x1 + |r| sqrt(pi/2) / d S^T sign(S r), whose
product with any query is the paper's estimator.

Shapes: (batch, kv_heads, tokens, head_dim). Layout of one head of one token: codes, little end first | norm float16,
and with qjl: signs, lowest bit first | residual norm float16. Bytes: head_dim * b / 8 + 2, with qjl 2 more. K and V
alike.

Departs: the paper keeps norms as floats of unstated width, here float16. Its mixes of 2.5 and 3.5 bits (more bits for
outlier channels) are left out: the text does not say how the channels are chosen, and its own arithmetic (32 channels
of 3 bits and 96 of 2) gives 2.25. P and S come from numpy's PCG64 with a fixed seed; products are summed in float64.
Source: arXiv 2504.19874, algorithms 1 and 2, equation 4. The paper's text was not at hand: taken from accounts of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import pi, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._parameters import Parameter
from kvgate.methods._storage import TokenStorage
from kvgate.methods.lloyd_max import db, sphere_levels
from kvgate.methods.spec import Packed, Window
from kvgate.methods.turboquant_vllm import norms

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kvgate.formats.xp import Array

SEED = 20250428


@dataclass(frozen=True)
class SphereStorage(TokenStorage):
    """Bytes of rotated codes with a norm, and of the residual's signs with theirs."""

    bits: int
    qjl: bool

    def group_bytes(self, dim: int) -> int:
        self.refuse(dim, 8, "codes and signs are packed by eight elements")
        return dim * self.bits // 8 + 2 + (2 if self.qjl else 0)


class SphereCoder(GroupCoder):
    """Codes on the unit sphere."""

    def __init__(self, dim: int, bits: int, qjl: bool, seed: int) -> None:
        self.dim, self.qjl, self.seed = dim, qjl, seed
        self.code_bits = bits - 1 if qjl else bits
        self.table = sphere_levels(1 << self.code_bits, dim)

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import pack_codes, product

        xp = namespace(x)
        norm = norms(xp, x)
        y = product(xp, xp.divide(x, xp.where(norm > 0, norm, 1.0)), random_rotation(self.dim, self.seed).T)
        codes = xp.bucketize(y, self.table.edges, up=True)
        held = {"codes": pack_codes(xp, codes, self.code_bits), "norm": xp.bytes_f16(norm)}
        if self.qjl:
            rest = x - self._first(held)
            projected = product(xp, rest, random_projection(self.dim, self.seed).T)
            held["signs"] = pack_codes(xp, xp.cast(projected >= 0, "u8"), 1)
            held["rest_norm"] = xp.bytes_f16(norms(xp, rest))
        return held

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import product, unpack_codes

        first = self._first(packed)
        if not self.qjl:
            return first
        xp = namespace(first)
        signs = xp.cast(unpack_codes(xp, packed["signs"], 1, self.dim), "f32") * xp.full((1,), 2.0, "f32") - xp.full(
            (1,), 1.0, "f32"
        )
        back = product(xp, signs, random_projection(self.dim, self.seed))
        return first + xp.f16_bytes(packed["rest_norm"]) * xp.full((1,), sqrt(pi / 2) / self.dim, "f32") * back

    def _first(self, packed: Packed) -> Array:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import product, unpack_codes

        xp = namespace(packed["codes"])
        c = xp.take(xp.constant(self.table.levels, "f32"), unpack_codes(xp, packed["codes"], self.code_bits, self.dim))
        return xp.f16_bytes(packed["norm"]) * product(xp, c, random_rotation(self.dim, self.seed))


class TurboQuant(StorageMethod):
    """TurboQuant."""

    name = "turboquant"
    description = "the paper's random rotation and Lloyd-Max levels; qjl=1 spends one bit on signs of the residual"
    idempotent = False
    source = Source("spec", "arXiv 2504.19874, algorithms 1 and 2")
    parameters = (
        Parameter("bits", 4, allowed=(2, 3, 4)),
        Parameter("qjl", 0, allowed=(0, 1)),
        Parameter("seed", SEED, low=0, high=999_999_999),
    )
    examples: ClassVar[tuple[Mapping[str, str], ...]] = ({}, {"bits": "2"}, {"bits": "3", "qjl": "1"})

    def sized(self, side: KVSide, values: Mapping[str, int]) -> SphereStorage:
        return SphereStorage(self.name, side, Window(0), values["bits"], bool(values["qjl"]))

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> SphereCoder:
        dim = layer.k_dim if side == "k" else layer.v_dim
        return SphereCoder(dim, values["bits"], bool(values["qjl"]), values["seed"])

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        """Lloyd-Max on the sphere; the residual's estimator has pi/2 - 1/d times the residual's square as its error.

        Of the d terms sqrt(pi/2) s sign(s . r), each has mean r; along r its square is pi/2, across it (d - 1) pi/2.
        """
        dim = layer.k_dim if side == "k" else layer.v_dim
        levels = sphere_levels(1 << (values["bits"] - values["qjl"]), dim)
        return db(dim * levels.error * (pi / 2 - 1 / dim if values["qjl"] else 1.0))


@cache
def random_rotation(dim: int, seed: int) -> npt.NDArray[np.float64]:
    """A uniform random orthogonal matrix: Q of a Gaussian one, with the signs of R's diagonal taken out."""
    import numpy as np

    q, r = np.linalg.qr(np.random.Generator(np.random.PCG64(seed)).standard_normal((dim, dim)))
    return np.asarray(q * np.sign(np.diag(r)))


@cache
def random_projection(dim: int, seed: int) -> npt.NDArray[np.float64]:
    """A Gaussian matrix, drawn apart from the rotation."""
    import numpy as np

    return np.random.Generator(np.random.PCG64([seed, 1])).standard_normal((dim, dim))


METHOD = TurboQuant()
