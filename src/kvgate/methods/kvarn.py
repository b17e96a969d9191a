"""KVarN: Hadamard rotation, variance normalisation over both axes of a tile of tokens, then asymmetric rounding.

    k=kvarn:bits=4,v=kvarn:bits=2     kvarn:bits=2:group=64

A tile is `group` consecutive tokens of one head, rotated along channels. For K its rows are channels and its columns
tokens, for V the other way round. Column and row scales start at 1; each of 16 rounds multiplies the column scales by
the columns' standard deviation (n - 1 in the denominator, clamped to [1e-3, 1e3]) and then the row scales by the rows',
every scale clamped to [e^-0.3, e^10]. The scales of the round with the least imbalance (largest over smallest deviation
of columns plus that of rows; the latest of equals; the start counts) are kept. The balanced tile is rounded row by row:
lo = min, s = max((max - lo) / (2^b - 1), 1e-10), code = round half to even of (x - lo) / s. Read back is
(code * s * row + lo * row) * column, then rotated back.

Shapes: (batch, kv_heads, tokens, head_dim). Layout of one head and tile: codes [rows, columns * b / 8] little end first
| s * row [rows] | lo * row [rows] | column [columns], float16. Bytes of a tile: head_dim * group * b / 8 + 4 * rows + 2
* columns; 2 bits at head_dim 256: 2.31 bits an element for K, the paper's 2.3. A tile that is not full stays native.

The lower clamp is the authors': rows and columns whose deviation is below 0.74 are never scaled up, so a tile of small
values is hardly balanced at all.
Departs: the reference keeps logarithms of the scales; here the scales themselves are multiplied and clamped, the same
but for the last bits, and the same from numpy and torch. What the text leaves open, and what is taken here: the number
of rounds (16, the default of the authors' test), the tile (128, their design point; 64 is the other preset), ddof,
clamps, the order columns then rows, ties and rounding (their test's reference), the rotation's size where head_dim is
no power of two (the largest that divides it), and whether attention sees the token that fills a tile native (here: as
stored).
Source: arXiv 2606.03458, abstract and figures; huawei-csl/KVarN README and
ascend_kernel/kvarn_store_tile_k/api_test.py at f9806bd. The paper's full text was not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any, ClassVar

from kvgate.core.geometry import LayerGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide
from kvgate.methods._method import GroupCoder, StorageMethod
from kvgate.methods._parameters import Parameter
from kvgate.methods._storage import TokenStorage
from kvgate.methods.hadamard import fast_hadamard, power_of_two_in
from kvgate.methods.lloyd_max import range_db
from kvgate.methods.spec import Packed, Window

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

ROUNDS = 16
DEVIATIONS = (1e-3, 1e3)
SCALES = (exp(-0.3), exp(10.0))


@dataclass(frozen=True)
class TileStorage(TokenStorage):
    """Bytes of tiles."""

    bits: int
    group: int

    @property
    def group_tokens(self) -> int:
        return self.group

    def group_bytes(self, dim: int) -> int:
        self.refuse(dim, 8, "codes are packed by eight elements")
        rows, columns = (dim, self.group) if self.side == "k" else (self.group, dim)
        return dim * self.group * self.bits // 8 + 4 * rows + 2 * columns if dim else 0


class TileCoder(GroupCoder):
    """Tiles of `group` tokens."""

    def __init__(self, side: KVSide, dim: int, bits: int, group: int) -> None:
        self.side, self.dim, self.bits, self.group_tokens = side, dim, bits, group

    def encode(self, x: Array, tables: Packed) -> Packed:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import pack_codes

        xp = namespace(x)
        batch, heads, tokens, dim = x.shape
        groups = tokens // self.group_tokens
        tile = fast_hadamard(x, power_of_two_in(dim)).reshape(batch, heads, groups, self.group_tokens, dim)
        if self.side == "k":
            tile = xp.contiguous(tile.swapaxes(-1, -2))
        column, row = balance(xp, tile)
        even = _over(xp, tile, column, row)
        low = xp.min(even)
        step = xp.maximum(xp.divide(xp.max(even) - low, float((1 << self.bits) - 1)), 1e-10)
        codes = xp.clip(xp.round_half_even(xp.divide(even - low, step)), 0.0, float((1 << self.bits) - 1))
        flat = (batch, heads, groups, -1)
        return {
            "codes": pack_codes(xp, xp.cast(codes, "u8"), self.bits).reshape(flat),
            "row_scale": xp.bytes_f16((row * step).reshape(flat)),
            "row_low": xp.bytes_f16((row * low).reshape(flat)),
            "column": xp.bytes_f16(column.reshape(flat)),
        }

    def decode(self, packed: Packed, tables: Packed) -> Array:
        from kvgate.formats.xp import namespace
        from kvgate.methods._arrays import unpack_codes

        xp = namespace(packed["codes"])
        batch, heads, groups, _ = packed["codes"].shape
        rows, columns = (self.dim, self.group_tokens) if self.side == "k" else (self.group_tokens, self.dim)
        lead = (batch, heads, groups)
        codes = unpack_codes(xp, packed["codes"].reshape(*lead, rows, -1), self.bits, columns)
        scale, low = (xp.f16_bytes(packed[n]).reshape(*lead, rows, 1) for n in ("row_scale", "row_low"))
        tile = (xp.cast(codes, "f32") * scale + low) * xp.f16_bytes(packed["column"]).reshape(*lead, 1, columns)
        if self.side == "k":
            tile = xp.contiguous(tile.swapaxes(-1, -2))
        x = tile.reshape(batch, heads, groups * self.group_tokens, self.dim)
        return fast_hadamard(x, power_of_two_in(self.dim))


def balance(xp: Namespace, tile: Array, rounds: int = ROUNDS) -> tuple[Array, Array]:
    """Column scales [..., 1, columns] and row scales [..., rows, 1] of tiles [..., rows, columns]."""
    lead, (rows, columns) = tuple(tile.shape[:-2]), tile.shape[-2:]
    column, row = xp.full((*lead, 1, columns), 1.0, "f32"), xp.full((*lead, rows, 1), 1.0, "f32")
    best_column, best_row = column, row
    least = imbalance(xp, tile)
    for _ in range(rounds):
        column = _clamped(xp, column, _column_deviation(xp, _over(xp, tile, column, row)))
        row = _clamped(xp, row, deviation(xp, _over(xp, tile, column, row)))
        found = imbalance(xp, _over(xp, tile, column, row))
        better = found <= least
        best_column, best_row = xp.where(better, column, best_column), xp.where(better, row, best_row)
        least = xp.where(better, found, least)
    return best_column, best_row


def imbalance(xp: Namespace, tile: Array) -> Array:
    """Largest over smallest deviation of columns, plus the same of rows: 2 is perfect. [..., 1, 1]."""
    found = 0.0
    for spread in (_column_deviation(xp, tile), deviation(xp, tile).swapaxes(-1, -2)):
        found = found + xp.divide(xp.max(spread), xp.maximum(xp.min(spread), 1e-8))
    return found


def deviation(xp: Namespace, x: Array) -> Array:
    """Standard deviation over the last axis with n - 1, kept; summed as a tree."""
    from kvgate.methods._arrays import sqrt, tree_mean, tree_sum

    off = x - tree_mean(xp, x)
    return sqrt(xp, xp.divide(tree_sum(off * off), float(x.shape[-1] - 1)))


def _column_deviation(xp: Namespace, tile: Array) -> Array:
    return deviation(xp, tile.swapaxes(-1, -2)).swapaxes(-1, -2)


def _over(xp: Namespace, tile: Array, column: Array, row: Array) -> Array:
    return xp.divide(xp.divide(tile, column), row)


def _clamped(xp: Namespace, scale: Array, spread: Array) -> Array:
    return xp.clip(scale * xp.clip(spread, *DEVIATIONS), *SCALES)


class KVarN(StorageMethod):
    """KVarN."""

    name = "kvarn"
    description = "Hadamard rotation, variance normalised over tokens and channels of a tile, 2 or 4 bits asymmetric"
    idempotent = False
    source = Source("spec", "arXiv 2606.03458; huawei-csl/KVarN kvarn_store_tile_k/api_test.py", "f9806bd")
    parameters = (Parameter("bits", 2, allowed=(2, 4)), Parameter("group", 128, allowed=(64, 128)))
    examples: ClassVar[tuple[Mapping[str, str], ...]] = ({}, {"bits": "4", "group": "64"})

    def sized(self, side: KVSide, values: Mapping[str, int]) -> TileStorage:
        return TileStorage(self.name, side, Window(0), values["bits"], values["group"])

    def coder(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry, tables: Any) -> TileCoder:
        return TileCoder(side, layer.k_dim if side == "k" else layer.v_dim, values["bits"], values["group"])

    def expected_db(self, side: KVSide, values: Mapping[str, int], layer: LayerGeometry) -> float:
        return range_db(values["bits"], values["group"] if side == "k" else layer.v_dim)


METHOD = KVarN()
