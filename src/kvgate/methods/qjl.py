"""QJL: keys as signs of a random projection with their norm, loud channels apart; values as KIVI has them in 2 bits.

    qjl:sketch=256/residual=128

Keys wait native until R = 128 are there, then all R are stored, in groups of 32 tokens. In each group and head the 8
channels of largest norm over the group are outliers. The projection S is head_dim x m: square Gaussian blocks, each
made orthogonal, times sqrt(head_dim). Of each key k = inliers + outliers, stored are sign(S^T inliers) in m bits,
sign(S^T outliers) in m / 2 bits (the first half of S), and both norms. Read back, restricted to the channels of each
part: sqrt(pi/2) / m * norm * S sign(...): its product with a query is the paper's estimator, without bias over S.
Values: KIVI's, 2 bits, groups of 32 channels, the last R native.

Shapes: (batch, kv_heads, tokens, head_dim), head_dim at most 256. Layout of one head and group of 32 tokens: per token
signs of inliers [m / 8] and of outliers [m / 16], lowest bit first, both norms float16; per group 8 channel numbers,
one byte each.
Bytes per element at head_dim 128, m = 256: 32 + 16 + 4 + 1/4 = 52.25 a token, 3.27 bits.

Departs: the reference keeps the whole key's norm and takes the root of the difference of squares when it scores; here
the inliers' norm is stored. It takes a larger sketch (512) in the first 15 layers: a recipe by layer (`mixed`) says
that. A projection of exactly 0 counts as negative, as there. Products are summed in float64.
Source: arXiv 2406.03482; amirzandieh/QJL models/llama3_utils_qjl.py at 1a8e14b and its README's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import pi, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods import kivi
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._parameters import Parameter
from kvgate.methods._storage import TokenStorage
from kvgate.methods.lloyd_max import db, range_db
from kvgate.methods.spec import Flush, Packed, Window
from kvgate.methods.turboquant_vllm import norms

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kvgate.formats.xp import Array, Namespace

GROUP, OUTLIERS, RESIDUAL_TOKENS = 32, 8, 128
VALUE_BITS = 2
SEED = 20240605


@dataclass(frozen=True)
class SketchStorage(TokenStorage):
    """Bytes of keys."""

    sketch: int

    flush: ClassVar[Flush] = "flush"

    @property
    def group_tokens(self) -> int:
        return GROUP

    def group_bytes(self, dim: int) -> int:
        if dim > 256 or dim <= OUTLIERS:
            raise UserError(
                f"{self.name} numbers channels in one byte and takes {OUTLIERS} of them apart: no head of {dim}"
            )
        return GROUP * (self.sketch // 8 + self.sketch // 16 + 4) + OUTLIERS

    def windowed(self, window: Window) -> TokenStorage:
        found = super().windowed(window)
        residual = found.residual_tokens
        if not residual or residual % GROUP:
            raise UserError(
                f"{self.name} flushes whole groups: /residual={residual} is not a positive multiple of {GROUP}",
                fix=f"write /residual={max(GROUP, residual // GROUP * GROUP)}",
            )
        return found


class SketchCoder(GroupCoder):
    """Signs and norms of keys."""

    group_tokens = GROUP

    def __init__(self, dim: int, sketch: int, seed: int) -> None:
        self.dim, self.sketch, self.seed = dim, sketch, seed

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import pack_codes, product, stable_order, tree_sum

        xp = namespace(x)
        batch, heads, tokens, dim = x.shape
        grouped = x.reshape(batch, heads, tokens // GROUP, GROUP, dim)
        energy = tree_sum(xp.contiguous((grouped * grouped).swapaxes(-1, -2)))[..., 0]
        loud = stable_order(xp, -energy)[..., :OUTLIERS]
        mask = self._mask(xp, loud, energy.shape)
        outer, inner = xp.where(mask, grouped, 0.0), xp.where(mask, 0.0, grouped)
        matrix = random_sketch(dim, self.sketch, self.seed)
        flat = (batch, heads, tokens // GROUP, -1)
        signs = xp.cast(product(xp, inner, matrix) > 0, "u8")
        outer_signs = xp.cast(product(xp, outer, matrix[:, : self.sketch // 2]) > 0, "u8")
        return {
            "signs": pack_codes(xp, signs, 1).reshape(flat),
            "outlier_signs": pack_codes(xp, outer_signs, 1).reshape(flat),
            "norm": xp.bytes_f16(norms(xp, inner).reshape(flat)),
            "outlier_norm": xp.bytes_f16(norms(xp, outer).reshape(flat)),
            "channels": xp.cast(loud, "u8"),
        }

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace

        xp = namespace(packed["signs"])
        batch, heads, groups, _ = packed["channels"].shape
        mask = self._mask(xp, xp.cast(packed["channels"], "i64"), (batch, heads, groups, self.dim))
        inner = self._estimate(xp, packed["signs"], packed["norm"], self.sketch, (batch, heads, groups))
        half = self.sketch // 2
        outer = self._estimate(xp, packed["outlier_signs"], packed["outlier_norm"], half, (batch, heads, groups))
        return xp.where(mask, outer, inner).reshape(batch, heads, groups * GROUP, self.dim)

    def _estimate(self, xp: Namespace, signs: Array, norm: Array, width: int, lead: tuple[int, ...]) -> Array:
        from kvgate.methods._arrays import product, unpack_codes

        bits = unpack_codes(xp, signs.reshape(*lead, GROUP, -1), 1, width)
        values = xp.cast(bits, "f32") * xp.full((1,), 2.0, "f32") - xp.full((1,), 1.0, "f32")
        back = product(xp, values, random_sketch(self.dim, self.sketch, self.seed)[:, :width].T)
        return xp.f16_bytes(norm).reshape(*lead, GROUP, 1) * xp.full((1,), sqrt(pi / 2) / width, "f32") * back

    def _mask(self, xp: Namespace, channels: Array, shape: tuple[int, ...]) -> Array:
        """bool [..., 1, dim], true for the named channels."""
        from kvgate.methods._arrays import scatter

        ones = xp.full(tuple(channels.shape), 1.0, "f32")
        marked = scatter(xp, xp.full(shape, 0.0, "f32"), channels, ones, unused=-1)
        return (marked > 0)[..., None, :]


class Qjl(StorageMethod):
    """QJL."""

    name = "qjl"
    description = "keys as signs of a random projection with norms, 8 loud channels apart; values in 2 bits like KIVI's"
    idempotent = False
    source = Source("spec", "arXiv 2406.03482; amirzandieh/QJL models/llama3_utils_qjl.py", "1a8e14b")
    parameters = (
        Parameter("sketch", 256, allowed=(128, 256, 512, 1024)),
        Parameter("seed", SEED, low=0, high=999_999_999),
    )
    own_raw = True

    def sized(self, side: KVSide, values: Mapping[str, int]) -> TokenStorage:
        if side == "v":
            return kivi.ValueStorage(self.name, side, Window(RESIDUAL_TOKENS), VALUE_BITS, GROUP)
        return SketchStorage(self.name, side, Window(RESIDUAL_TOKENS), values["sketch"])

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> GroupCoder:
        if side == "v":
            return kivi.ValueCoder(VALUE_BITS, GROUP)
        return SketchCoder(layer.k_dim, values["sketch"], values["seed"])

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float | None:
        """Of an estimate from d orthogonal signs, pi/2 - 1 of the square is noise, evenly over the channels.

        More blocks of signs average it, and what falls outside a part's channels is dropped. The outliers of
        independent values hold a third more than their share of the square.
        """
        if side == "v":
            return range_db(VALUE_BITS, GROUP)
        dim, sketch = layer.k_dim, values["sketch"]
        loud = 1.3 * OUTLIERS / dim
        noise = (dim - OUTLIERS) / sketch * (1 - loud) + OUTLIERS / (sketch / 2) * loud
        return db((pi / 2 - 1) * noise) if sketch % dim == 0 else None


@cache
def random_sketch(dim: int, width: int, seed: int) -> npt.NDArray[np.float64]:
    """[dim, width]: Gaussian blocks of dim columns, each made orthonormal, times sqrt(dim)."""
    import numpy as np

    rng = np.random.Generator(np.random.PCG64(seed))
    blocks = []
    for first in range(0, width, dim):
        q, r = np.linalg.qr(rng.standard_normal((dim, min(dim, width - first))))
        blocks.append(q * np.sign(np.diag(r)))
    return np.asarray(np.concatenate(blocks, 1) * sqrt(dim))


METHOD = Qjl()
