"""KVQuant: pre-RoPE keys per channel, non-uniform levels weighted by sensitivity, outliers kept apart, sink native.

    kvquant:bits=3:outliers=10/sink=5

Keys are taken before RoPE. Each channel has thresholds from a calibration (upper and lower percentile of its values);
with middle z and half width r of these, n = (x - z) / r lies in [-1, 1] for all but the outliers. One codebook of 2^b
levels in [-1, 1] a layer, fitted offline by k-means weighted with squared gradients, gives the code (nearest level).
Values: per token over all heads; the largest and smallest elements are outliers, z and r come from the others.
Outliers keep their value as float16. The sink (the first token, unless the recipe says otherwise) stays native.
Q-Norm is a matter of tables: `read_levels` are the levels as they are read back.

Tables (`KVQuantTables`) are given to `open`; fitting them is the lab's.
Shapes: (batch, kv_heads, tokens, head_dim); K before RoPE, and read back before RoPE. Layout per token: codes of each
head, little end first | outlier slots of all heads: index in heads x head_dim as 16 bits, value as float16; an unused
slot has index 65535 | for V also half width and middle as float16. Bytes per token and layer: heads * head_dim * b / 8
+ 4 * slots (+ 4 for V), with slots = the next even number at or above heads * head_dim * outliers / 1000.

Departs: slots are fixed in number, as in the reference's capped kernels (21 + 21 of 4,096), where its simulation keeps
every value beyond a percentile. Keys over the cap keep the ones farthest out, the others go to the end level. The
reference replaces outliers by the median before it takes a value vector's range; leaving them out is the same.
Heads depend on each other here (one range and one set of slots a token), so tensor parallelism changes bytes.
Source: arXiv 2401.18079, sections 3.1 to 3.5; SqueezeAILab/KVQuant quant/kvquant/simquant_module_quantizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._parameters import Parameter
from kvgate.methods._storage import TokenStorage
from kvgate.methods.lloyd_max import db, normal_levels, normal_quantile
from kvgate.methods.spec import Packed, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

UNUSED = 65_535
SINK_TOKENS = 1


@dataclass(frozen=True)
class KVQuantTables:
    """What a calibration gives for one side of one layer.

    Attributes:
        levels: 2^b levels in [-1, 1], ascending.
        lower, upper: thresholds [kv_heads, head_dim] of keys; None for values.
        read_levels: the levels as read back (Q-Norm); None takes `levels`.
    """

    levels: tuple[float, ...]
    lower: Any = None
    upper: Any = None
    read_levels: tuple[float, ...] | None = None

    def check(self, bits: int, side: KVSide, heads: int, dim: int) -> None:
        """UserError unless the tables fit a layer."""
        read = self.levels if self.read_levels is None else self.read_levels
        for levels in (self.levels, read):
            if len(levels) != 1 << bits:
                raise UserError(f"kvquant: {bits} bits need {1 << bits} levels, and the tables have {len(levels)}")
        if not all(a < b for a, b in pairwise(self.levels)) or not all(-1 <= x <= 1 for x in self.levels):
            raise UserError("kvquant: levels are not ascending numbers in [-1, 1]")
        if not all(map(isfinite, read)):
            raise UserError("kvquant: levels as read back are not finite numbers")
        if side == "k":
            self._check_thresholds(heads, dim)

    def _check_thresholds(self, heads: int, dim: int) -> None:
        for name, table in (("lower", self.lower), ("upper", self.upper)):
            shape = tuple(getattr(table, "shape", ()))
            if shape != (heads, dim):
                raise UserError(
                    f"kvquant: {name} thresholds have shape {shape}, and this layer's keys need {(heads, dim)}"
                )
            if "complex" in str(table.dtype):
                raise UserError(f"kvquant: {name} thresholds are complex numbers")
        half = float32_of(self.upper) / 2 - float32_of(self.lower) / 2
        # In float32, which is what keys are divided by; NaN and infinities fail both.
        if not bool((half > 0).all()) or not bool((half < 2.0**127).all()):
            raise UserError(
                "kvquant: an upper threshold is not above its lower one, or one is not a finite float32",
                fix="calibrate on more tokens",
            )


def float32_of(table: Any) -> Any:
    """Thresholds as a float32 numpy array, from either library."""
    import numpy as np

    if hasattr(table, "detach"):
        table = table.detach().cpu().float().numpy()
    return np.asarray(table, np.float32)


@dataclass(frozen=True)
class SparseStorage(TokenStorage):
    """Bytes of dense codes and outlier slots."""

    bits: int
    outliers: int

    def group_bytes(self, dim: int) -> int:
        """One head without its share of the outlier slots."""
        self.refuse(dim, 8, "codes are packed by eight elements")
        return dim * self.bits // 8

    def row_bytes(self, dim: int) -> int:
        """One head, outlier slots included as if it were alone."""
        return self.group_bytes(dim) + 4 * slots(dim, self.outliers) + (4 if self.side == "v" and dim else 0)

    def layer_group_bytes(self, layer: LayerGeometry) -> int:
        dim, extra = self.dim(layer), 4 if self.side == "v" else 0
        return layer.kv_heads * self.group_bytes(dim) + 4 * slots(layer.kv_heads * dim, self.outliers) + extra


def slots(elements: int, outliers: int) -> int:
    """Outlier slots of a token: an even number, half of them for either end of the values."""
    if elements > UNUSED:
        raise UserError(f"kvquant: a token of {elements} elements has no 16-bit index", fix="set outliers=0")
    return 2 * ceil(elements * outliers / 2000)


class SparseCoder(GroupCoder):
    """Codes on given levels, outliers apart."""

    def __init__(self, tables: KVQuantTables, bits: int, count: int) -> None:
        self.tables, self.bits, self.slots = tables, bits, count
        self.edges = tuple((a + b) / 2 for a, b in pairwise(tables.levels))

    def encode_scaled(self, xp: Namespace, x: Array, middle: Array, half: Array, kept: Array) -> dict[str, Array]:
        """Codes of x scaled by middle and half width, and the elements that `kept` [.., slots] names."""
        from kvgate.methods._arrays import pack_codes

        held = {"codes": pack_codes(xp, xp.bucketize(xp.divide(x - middle, half), self.edges, up=False), self.bits)}
        if self.slots:
            flat = token_rows(x)
            used = kept >= 0
            index = xp.where(used, kept, 0)
            values = _at(xp, flat, index)
            shown = xp.cast(xp.where(used, index, UNUSED), "i32")
            shown = xp.cast(xp.where(shown > 32_767, shown - 65_536, shown), "i16")
            held["index"] = xp.view(xp.contiguous(shown), "u8")
            held["values"] = xp.bytes_f16(xp.contiguous(xp.where(used, values, 0.0)))
        return held

    def decode_scaled(self, xp: Namespace, packed: Packed, shape: tuple[int, ...], middle: Array, half: Array) -> Array:
        from kvgate.methods._arrays import scatter, unpack_codes

        codes = unpack_codes(xp, packed["codes"], self.bits, shape[-1])
        x = xp.take(xp.constant(self.tables.read_levels or self.tables.levels, "f32"), codes) * half + middle
        if not self.slots:
            return x
        index = xp.cast(xp.view(xp.contiguous(packed["index"]), "i16"), "i64")
        index = xp.where(index < 0, index + 65_536, index)
        flat = scatter(xp, token_rows(x), index, xp.f16_bytes(packed["values"]), unused=UNUSED)
        batch, heads, tokens, dim = shape
        return xp.contiguous(flat.reshape(batch, tokens, heads, dim).swapaxes(1, 2))


def token_rows(x: Array) -> Array:
    """(batch, heads, tokens, dim) to (batch, 1, tokens, heads * dim)."""
    batch, heads, tokens, dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, 1, tokens, heads * dim)


def _at(xp: Namespace, rows: Array, index: Array) -> Array:
    """rows[..., index[...]] along the last axis."""
    flat, where = rows.reshape(-1, rows.shape[-1]), index.reshape(-1, index.shape[-1])
    return xp.take_along(flat, where).reshape(index.shape)


class KeyCoder(SparseCoder):
    """Keys: thresholds from the tables."""

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import stable_order

        xp = namespace(x)
        middle, half = self._scales(xp)
        if not self.slots:
            return self.encode_scaled(xp, x, middle, half, None)
        # How far out of [-1, 1] each element is; the farthest come first.
        excess = token_rows(xp.abs(xp.divide(x - middle, half))) - xp.full((1,), 1.0, "f32")
        order = stable_order(xp, -excess)[..., : self.slots]
        kept = xp.where(_at(xp, excess, order) > 0, order, -1)
        return self.encode_scaled(xp, x, middle, half, kept)

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace

        xp = namespace(packed["codes"])
        middle, half = self._scales(xp)
        shape = (*packed["codes"].shape[:3], middle.shape[-1])
        return self.decode_scaled(xp, packed, shape, middle, half)

    def _scales(self, xp: Namespace) -> tuple[Array, Array]:
        from kvgate.methods._arrays import as_array

        lower, upper = (as_array(xp, float32_of(t))[None, :, None, :] for t in (self.tables.lower, self.tables.upper))
        two = xp.full((1,), 0.5, "f32")
        return (upper + lower) * two, (upper - lower) * two


class ValueCoder(SparseCoder):
    """Values: range of each token without its outliers."""

    def __init__(self, tables: KVQuantTables, bits: int, count: int, dim: int) -> None:
        super().__init__(tables, bits, count)
        self.dim = dim

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import stable_order

        xp = namespace(x)
        rows = token_rows(x)
        order = stable_order(xp, rows)
        each = self.slots // 2
        ends = order[..., each : order.shape[-1] - each]
        low, high = _at(xp, rows, ends[..., :1]), _at(xp, rows, ends[..., -1:])
        half = xp.round_f16(xp.divide(high - low, 2.0))
        middle = xp.round_f16(xp.divide(high + low, 2.0))
        kept = xp.concat([order[..., :each], order[..., order.shape[-1] - each :]]) if each else order[..., :0]
        safe = xp.where(half > 0, half, 1.0)
        held = self.encode_scaled(xp, x, middle, safe, kept)
        return {**held, "half": xp.bytes_f16(half), "middle": xp.bytes_f16(middle)}

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace

        xp = namespace(packed["codes"])
        shape = (*packed["codes"].shape[:3], self.dim)
        return self.decode_scaled(xp, packed, shape, xp.f16_bytes(packed["middle"]), xp.f16_bytes(packed["half"]))


class KVQuant(StorageMethod):
    """KVQuant."""

    name = "kvquant"
    description = "pre-RoPE keys per channel, values per token, levels from a calibration, outliers apart, sink native"
    source = Source("spec", "arXiv 2401.18079; SqueezeAILab/KVQuant simquant_module_quantizer.py")
    parameters = (Parameter("bits", 3, allowed=(2, 3, 4)), Parameter("outliers", 10, low=0, high=100))
    examples: ClassVar[tuple[Mapping[str, str], ...]] = ({}, {"bits": "4", "outliers": "0"}, {"bits": "2"})
    across_heads = True
    idempotent = False  # equal values may change places among the outlier slots
    calibrated = True
    basis = "pre_rope"

    def sized(self, side: KVSide, values: Mapping[str, int]) -> SparseStorage:
        return SparseStorage(self.name, side, Window(0, SINK_TOKENS), values["bits"], values["outliers"])

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> SparseCoder:
        if not isinstance(tables, KVQuantTables):
            raise UserError("kvquant needs levels, and keys need thresholds", fix="give tables from a calibration")
        dim = layer.k_dim if side == "k" else layer.v_dim
        tables.check(values["bits"], side, layer.kv_heads, dim)
        count = slots(layer.kv_heads * dim, values["outliers"])
        if side == "k":
            return KeyCoder(tables, values["bits"], count)
        return ValueCoder(tables, values["bits"], count, dim)

    def example_tables(
        self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, sample: Any
    ) -> KVQuantTables:
        """Keys: the best levels of a normal density within four deviations. Values: even levels."""
        count = 1 << values["bits"]
        if side == "v":
            return KVQuantTables(tuple(2 * i / (count - 1) - 1 for i in range(count)))
        spread = sample.std((0, 2))
        return KVQuantTables(tuple(x / 4 for x in normal_levels(count).levels), -4 * spread, 4 * spread)

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        """Keys: Lloyd-Max, outliers being rare in the example. Values: uniform over the range without its slots."""
        if side == "k":
            return db(normal_levels(1 << values["bits"]).error)
        elements = layer.kv_heads * layer.v_dim
        each = slots(elements, values["outliers"]) // 2
        end = normal_quantile(1 - (each + 0.625) / (elements + 0.25))
        step = 2 * end / ((1 << values["bits"]) - 1)
        return db(step**2 / 12 * (1 - 2 * (each + 1) / elements))


METHOD = KVQuant()
