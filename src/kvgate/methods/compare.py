"""One tensor through a codec or a method, and how far it comes back from where it was; see `formats/compare.py`.

A plain codec works row by row, so any shape [..., dim] goes, a slice at a time. Methods, and transforms that look at
the first tokens, work on sequences: (heads, tokens, head_dim) or (batch, heads, tokens, head_dim), one head at a time
(all heads of a batch where a method stores them together); tokens that stay native are part of the figures, and
counted. What is compared is what attention reads, in the model's basis, before any rounding to the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import Recipe, Side
from kvgate.formats.compare import Comparison, Distance, Rows, Tally, row_count
from kvgate.formats.spec import KVSide, codecs
from kvgate.methods import spec
from kvgate.methods.spec import Unfitted, Window

if TYPE_CHECKING:
    import numpy as np

    from kvgate.methods.spec import BoundTransform, SideStream

    Array = np.ndarray[Any, Any]

#: Elements of a slice: half a MiB of float32, and some twenty times that in sums.
SLICE_ELEMENTS = 1 << 17
UNIT, AMAX = "unit", "amax"


@dataclass(frozen=True, slots=True)
class SideComparison:
    """A tensor under one side of a recipe.

    Attributes:
        bits: per element of this tensor, everything that is stored included.
        scale: smallest and largest scale from outside; None where the codec finds its own.
        encoded: figures of encoded tokens alone, and how many there are of `tokens`; None for row-by-row codecs.
    """

    bits: Fraction
    comparison: Comparison
    scale: tuple[float, float] | None = None
    encoded: Distance | None = None
    encoded_tokens: int | None = None
    tokens: int | None = None


def side_of(recipe: Recipe, kv: KVSide) -> tuple[Side, Window | None]:
    """The side of a recipe that a tensor of K or of V goes through, and its window.

    Raises:
        UserError: `native`, or options that need a whole model.
    """
    side = recipe.k if kv == "k" else recipe.v
    if side is None:
        raise UserError("native stores values as they are", allowed=(c.name for c in codecs() if c.numerics))
    if recipe.keep:
        raise UserError(f"{recipe}: a tensor has no layers to keep", fix="leave out /keep=")
    window = spec.window_of(recipe)
    return side, None if window == Window() else window


def compare_side(
    rows: Rows, side: Side, kv: KVSide, *, window: Window | None = None, scale: str | float = UNIT
) -> SideComparison:
    """Encode and decode a tensor, and compare.

    Args:
        rows: at least one element. kv: whether it is K or V; methods treat them differently.
        scale: of codecs whose scale lies outside the cache: "unit" (1.0), "amax" (the tensor's largest magnitude over
            the codec's; each head's with `:head`), or a number.

    Raises:
        UserError: the codec or method does not exist, takes no such parameters, or does not fit the shape.
    """
    bound = check_side(rows.shape, side, kv, window)
    return _by_tokens(rows, side, kv, window, scale) if bound is None else _by_rows(rows, side, kv, bound, scale)


def check_side(
    shape: tuple[int, ...], side: Side, kv: KVSide, window: Window | None = None
) -> tuple[BoundTransform, ...] | None:
    """Refuse what does not fit a tensor of this shape, before any of it is read.

    Returns:
        The transforms of a codec that works row by row; None for what works on sequences of tokens.

    Raises:
        UserError: as `compare_side`.
    """
    from kvgate.methods.stream import transforms_of

    if side.origin is not None and side.origin != UNIT and takes_scale(side.codec):
        raise UserError(
            f"{side}: a tensor alone has no scales @{side.origin}", fix="leave it out, and give --scale NUMBER or amax"
        )
    storage = spec.storage_of(side, kv, window)
    _refuse_calibrated(side)
    storage.row_bytes(shape[-1])
    bound = transforms_of(side, kv, shape[-1])
    plain = any(c.name == side.codec for c in codecs())
    if plain and window is None and not any(isinstance(t, Unfitted) for t in bound):
        return bound
    if len(shape) not in (3, 4):
        raise UserError(
            f"{side} works on sequences of tokens, and the tensor has the shape {list(shape)}",
            allowed=("(heads, tokens, head_dim)", "(batch, heads, tokens, head_dim)"),
        )
    return None


def takes_scale(name: str) -> bool:
    """Whether this codec's scale lies outside the cache."""
    from kvgate.formats.numerics import ScaledNumerics

    return any(c.name == name and isinstance(c.numerics, ScaledNumerics) for c in codecs())


def _by_rows(
    rows: Rows, side: Side, kv: KVSide, bound: tuple[BoundTransform, ...], scale: str | float
) -> SideComparison:
    """A codec, with transforms that need no look at the tokens before."""
    import numpy as np

    from kvgate.formats.clipping import Clipping
    from kvgate.formats.codec import codecs as arithmetic
    from kvgate.methods.stream import open_side

    dim = rows.shape[-1]
    codec = arithmetic[side.codec]
    row_bytes = codec.spec.row_bytes(dim)
    factors = _scales(rows, side, bound, scale)
    given = None if factors is None or scale == UNIT else float(factors.flat[0])
    open_side(side, kv, _layer(1, dim), tables=given)  # refuses parameters that do not fit
    tally, clipping = Tally(rows.shape), Clipping(codec, dim)
    for start, stop in slices(row_count(rows.shape), dim):
        x = rows.rows(start, stop)
        with np.errstate(all="ignore"):
            stored = _forward(x, bound)
            factor = factors if factors is None or len(factors) == 1 else factors[_heads_of(rows.shape, start, stop)]
            packed = codec.encode(stored, scale=factor)
            back = codec.decode(packed, scale=factor)
            for transform in reversed(bound):
                back = transform.inverse(back)
            tally.add(start, x, back, clipping.of(stored, packed, factor))
    used = None if factors is None else (float(factors.min()), float(factors.max()))
    return SideComparison(Fraction(8 * row_bytes, dim), tally.result(), used)


def _by_tokens(rows: Rows, side: Side, kv: KVSide, window: Window | None, scale: str | float) -> SideComparison:
    """Whatever works on a sequence of tokens."""
    import numpy as np

    from kvgate.methods.stream import open_side

    shape = rows.shape
    heads, tokens, dim = shape[-3:]
    factors = _scales(rows, side, (), scale)
    tables = None if factors is None or scale == UNIT else factors.reshape(-1, 1, 1)
    together = heads if _across_heads(side) else 1
    tally, encoded, held, count, seen = Tally(shape), None, 0, 0, 0
    for first in range(0, prod(shape[:-2]), together):
        here = tables if tables is None or together > 1 or len(tables) == 1 else tables[[first % heads]]
        stream, _ = open_side(side, kv, _layer(together, dim), window=window, native=rows.native, tables=here)
        _feed(stream, rows, first * tokens, together, tokens)
        with np.errstate(all="ignore"):
            back = np.asarray(stream.read()).reshape(together * tokens, dim)
        within = stream.encoded(tokens)
        count = len(within)
        encoded = encoded or Tally((max(1, count * prod(shape[:-2])), dim))
        held += stream.stored_bytes()
        for start, stop in slices(together * tokens, dim):
            x = rows.rows(first * tokens + start, first * tokens + stop)
            tally.add(first * tokens + start, x, back[start:stop], None)
            token = np.arange(start, stop) % tokens
            mine = (token >= within.start) & (token < within.stop)
            encoded.add(seen, x[mine], back[start:stop][mine], None)
            seen += int(mine.sum())
    only = encoded.result().distance if encoded else None
    used = None if factors is None else (float(factors.min()), float(factors.max()))
    return SideComparison(Fraction(8 * held, prod(shape)), tally.result(), used, only, count, tokens)


def slices(count: int, dim: int) -> Iterator[tuple[int, int]]:
    """Rows from .. to, a bounded number of elements at a time."""
    step = max(1, SLICE_ELEMENTS // dim)
    return ((start, min(start + step, count)) for start in range(0, count, step))


def _feed(stream: SideStream, rows: Rows, start: int, heads: int, tokens: int) -> None:
    """All tokens of some heads; one head slice by slice, several at once."""
    dim = rows.shape[-1]
    if heads > 1:
        stream.append(rows.rows(start, start + heads * tokens).reshape(1, heads, tokens, dim))
        return
    for a, b in slices(tokens, dim):
        stream.append(rows.rows(start + a, start + b).reshape(1, 1, b - a, dim))


def _scales(rows: Rows, side: Side, bound: tuple[BoundTransform, ...], scale: str | float) -> Array | None:
    """float32 [heads, 1] or [1, 1]; None where the codec finds its own."""
    import numpy as np

    from kvgate.formats.probe import largest_at_one
    from kvgate.formats.spec import codec

    if not takes_scale(side.codec):
        return None
    if scale != AMAX:
        number = 1.0 if scale == UNIT else float(scale)
        if not (0 < number <= float(np.finfo(np.float32).max) and np.float32(number) > 0):
            raise UserError(f"the scale {number:g} is not positive and finite in float32")
        return np.full((1, 1), number, np.float32)
    shape = rows.shape
    heads = shape[-3] if len(shape) > 2 and "head" in side.params else 1
    amax = np.zeros(heads)
    for start, stop in slices(row_count(shape), shape[-1]):
        with np.errstate(all="ignore"):
            size = np.abs(_forward(rows.rows(start, stop), bound))
        owner = _heads_of(shape, start, stop) if heads > 1 else np.zeros(stop - start, np.int64)
        np.maximum.at(amax, owner, np.where(np.isfinite(size), size, 0).max(axis=1))
    if not amax.all():
        which = f"head {int(np.argmin(amax))}" if heads > 1 else "the tensor"
        raise UserError(f"{which} holds nothing but zeros: an amax of 0 gives no scale", fix="write --scale unit")
    found: Array = (amax / largest_at_one(codec(side.codec))).astype(np.float32).reshape(-1, 1)
    return found


def _heads_of(shape: tuple[int, ...], start: int, stop: int) -> Array:
    """The head of each of these rows."""
    import numpy as np

    return np.arange(start, stop) // shape[-2] % shape[-3]


def _forward(x: Array, bound: tuple[BoundTransform, ...]) -> Array:
    for transform in bound:
        x = transform.forward(x)
    return x


def _layer(heads: int, dim: int) -> LayerGeometry:
    return LayerGeometry(0, "full_attention", heads, dim, dim)


def _refuse_calibrated(side: Side) -> None:
    known = {m.name: m for m in spec.methods()}
    if getattr(known.get(side.codec), "calibrated", False):
        raise UserError(
            f"{side.codec} needs tables from a calibration, and a tensor alone has none",
            allowed=(m.name for m in known.values() if m.role == "storage" and not getattr(m, "calibrated", False)),
        )


def _across_heads(side: Side) -> bool:
    found = {m.name: m for m in spec.methods()}.get(side.codec)
    return bool(getattr(found, "across_heads", False))
