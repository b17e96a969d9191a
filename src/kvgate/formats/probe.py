"""What a codec's bytes mean, found by trying: which element each bit belongs to, what every code is worth.

Each bit of a few encoded rows is flipped and the row decoded again: a bit that moves one element belongs to its code,
a bit that moves many is part of their scale. So a drawing of the layout comes from the arithmetic itself and holds for
a codec that was added a minute ago. Rotated rows (int4_per_token_head) show nothing but shared bits, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kvgate.formats.codec import Codec
from kvgate.formats.mla_rows import MlaRowSpec
from kvgate.formats.spec import CodecSpec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_R = TypeVar("_R")

#: A row of a codec whose rows carry more than blocks is shown with so many elements.
SHOWN_DIM = 64
#: Codes of more bits are not listed; 16-bit floats are what IEEE says.
MOST_CODE_BITS = 8
#: Bytes and values held at once while bits are flipped.
_ELEMENTS_AT_ONCE = 1 << 22
_SEED, _ROWS = 20260401, 4
#: Ways in which scale bytes may say "1 and nothing added", with their name; the first that gives a usable table is it.
_ONES: tuple[tuple[str, bytes], ...] = (
    ("f32", bytes((0, 0, 0x80, 0x3F))),
    ("f16 + f16 offset", bytes((0, 0x3C, 0, 0))),
    ("f16", bytes((0, 0x3C))),
    ("E4M3", bytes((0x38,))),
    ("E8M0", bytes((127,))),
)


def _once(look: Callable[..., _R]) -> Callable[..., _R]:
    """Remember what was found for a spec; specs are not hashable, so by identity (and held, so that it stays one)."""
    known: dict[tuple[int, tuple[int, ...]], tuple[CodecSpec, _R]] = {}

    @wraps(look)
    def found(spec: CodecSpec, *where: int) -> _R:
        key = (id(spec), where)
        if key not in known:
            known[key] = (spec, look(spec, *where))
        return known[key][1]

    return found


class Bit(NamedTuple):
    """The elements that one bit moves: `moves` of them from `first` to `last`; none for a bit without meaning."""

    first: int
    last: int
    moves: int

    @property
    def own(self) -> bool:
        """Part of one element's code."""
        return self.moves == 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Bits of one row (or block, where rows are nothing but blocks), in the order of bytes, lowest bit first."""

    dim: int
    bits: tuple[Bit, ...]

    @property
    def row_bytes(self) -> int:
        return len(self.bits) // 8

    def code_bits(self, element: int) -> tuple[int, ...]:
        """Places of an element's code, lowest first: the byte that holds most of them has the low ones (ggml's)."""
        by_byte: dict[int, list[int]] = {}
        for place, bit in enumerate(self.bits):
            if bit.own and bit.first == element:
                by_byte.setdefault(place // 8, []).append(place)
        return tuple(p for chunk in sorted(by_byte.values(), key=len, reverse=True) for p in chunk)

    def shared_bytes(self, element: int) -> tuple[int, ...]:
        """Bytes that move this element together with others."""
        shared = (p // 8 for p, b in enumerate(self.bits) if b.moves > 1 and b.first <= element <= b.last)
        return tuple(dict.fromkeys(shared))


class CodeTable(NamedTuple):
    """Values of all codes of an element, in code order, with scale 1 and offset 0; `scale` names the scale's type."""

    bits: int
    scale: str
    values: tuple[float, ...]


def shown_dims(spec: CodecSpec) -> tuple[int, ...]:
    """Row lengths that show the layout: a block where that is all, else a short row; every width of packed rows."""
    if isinstance(spec, MlaRowSpec):
        return tuple(sorted(spec.rows, reverse=True))
    numerics = spec.numerics
    if numerics is not None and numerics.unit == "row" and SHOWN_DIM % spec.block == 0:
        return (SHOWN_DIM,)
    return (spec.block,)


@_once
def layout(spec: CodecSpec, dim: int) -> Layout:
    """Find the owner of every bit of a row of `dim` elements.

    Raises:
        UserError: the codec has no arithmetic, or no such row.
    """
    import numpy as np

    codec = Codec(spec)
    rng = np.random.default_rng(_SEED)
    packed = codec.encode(rng.standard_normal((_ROWS, dim)).astype(np.float32))
    bits: list[Bit] = []
    for flipped in _flips(packed, dim):
        moved = flipped_elements(codec, packed, flipped)
        for row in moved:
            at = np.flatnonzero(row)
            bits.append(Bit(int(at[0]), int(at[-1]), int(at.size)) if at.size else Bit(0, 0, 0))
    return Layout(dim, tuple(bits))


def flipped_elements(codec: Codec, packed: Array, places: Array) -> Array:
    """bool [places, dim]: whether flipping that bit moves that element in any of the rows of `packed`."""
    import numpy as np

    before = codec.decode(packed).view(np.uint32)
    moved = np.zeros((len(places), before.shape[1]), bool)
    index = np.arange(len(places))
    for row, was in zip(packed, before, strict=True):
        many = np.repeat(row[None], len(places), axis=0)
        many[index, places // 8] ^= np.uint8(1) << (places % 8).astype(np.uint8)
        moved |= codec.decode(many).view(np.uint32) != was
    return moved


@_once
def code_table(spec: CodecSpec, dim: int, element: int = 0) -> CodeTable | None:
    """What each code of `element` decodes to; None where its bits do not show, or are more than 8.

    A code's bits are shown with the low ones first where an element's code lies in several bytes.
    """
    import numpy as np

    found = layout(spec, dim)
    places, shared = found.code_bits(element), found.shared_bytes(element)
    if not 0 < len(places) <= MOST_CODE_BITS:
        return None
    codes = np.arange(1 << len(places))
    rows = np.zeros((len(codes), found.row_bytes), np.uint8)
    for i, place in enumerate(places):
        rows[:, place // 8] |= ((codes >> i & 1) << (place % 8)).astype(np.uint8)
    for name, one in (("", b""),) if not shared else _ONES:
        if shared and len(shared) % len(one):
            continue
        if shared:
            rows[:, list(shared)] = np.frombuffer(one * (len(shared) // len(one)), np.uint8)
        values = Codec(spec).decode(rows)[:, element]
        finite = values[np.isfinite(values)]
        usable = finite.size > len(codes) // 2 and 1 <= np.abs(finite).max() <= 2**16 and finite.max() > finite.min()
        if usable or not shared:
            return CodeTable(len(places), name, tuple(values.tolist()))
    return None


class Ends(NamedTuple):
    """Row bytes that stand for the codes at the ends of the range: keep `& keep`, then `| put`, for four codes each."""

    keep: Array
    put: Array


@_once
def ends(spec: CodecSpec, dim: int) -> Ends | None:
    """The lowest, second lowest, second highest and highest code of every element, as masks over a row of `dim`.

    None where codes do not show (rotated rows), or where every element has more than 8 bits: those do not clip.
    """
    import numpy as np

    unit = shown_dims(spec)[0] if spec.numerics is not None and spec.numerics.unit != "row" else dim
    found = layout(spec, unit)
    keep = np.full(found.row_bytes, 255, np.uint8)
    put = np.zeros((4, found.row_bytes), np.uint8)
    by_kind: dict[int, tuple[int, int, int, int]] = {}
    for element in range(unit):
        places = found.code_bits(element)
        if len(places) not in by_kind:
            table = code_table(spec, unit, element)
            if table is None:
                continue
            by_kind[len(places)] = _four(table.values)
        for i, place in enumerate(places):
            keep[place // 8] &= 255 ^ (1 << (place % 8))
            for end, code in enumerate(by_kind[len(places)]):
                put[end, place // 8] |= (code >> i & 1) << (place % 8)
    if not by_kind:
        return None
    times = dim // unit
    return Ends(np.tile(keep, times), np.tile(put, (1, times)))


def largest_at_one(spec: CodecSpec) -> float:
    """The largest magnitude that a codec with a scale from outside stores under the scale 1; it saturates there."""
    import numpy as np

    dim = shown_dims(spec)[0]
    return float(np.abs(Codec(spec).roundtrip(np.full((1, dim), 3e38, np.float32))).max())


class Range(NamedTuple):
    """Magnitudes that come back: the smallest that is not lost among zeros, and the largest finite one."""

    smallest: float
    largest: float


@_once
def value_range(spec: CodecSpec) -> Range:
    """One value in a row of zeros, with scale 1 where the scale comes from outside; edges are found by bisection."""
    import numpy as np

    codec, dim = Codec(spec), shown_dims(spec)[0]

    def back(bits: Array) -> Array:
        """What the float32 values with these bits come back as."""
        x = np.zeros((len(bits), dim), np.float32)
        # Not the first element: a rotation spreads it over the row with one sign.
        x[:, min(1, dim - 1)] = bits.view(np.float32)
        found: Array = np.abs(codec.decode(codec.encode(x))[:, min(1, dim - 1)])
        return found

    def edge(inside: int, outside: int, lies_inside: Callable[[Array], Array]) -> int:
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            kept = bool(lies_inside(back(np.array([middle], np.uint32)))[0])
            inside, outside = (middle, outside) if kept else (inside, middle)
        return inside

    # Every power of two and the middles between them, and the largest number; bits of float32 are in order of size.
    grid = np.append(np.arange(0, 0x7F800000, 1 << 22), 0x7F7FFFFF).astype(np.uint32)
    seen = back(grid)
    first = int(np.flatnonzero(seen)[0])
    smallest = edge(int(grid[first]), int(grid[first - 1]), lambda v: v != 0)
    largest = float(seen[np.isfinite(seen)].max())
    if not np.isfinite(seen).all():
        last = int(np.flatnonzero(~np.isfinite(seen))[0]) - 1
        at = edge(int(grid[last]), int(grid[last + 1]), np.isfinite)
        largest = max(largest, float(back(np.array([at], np.uint32))[0]))
    return Range(float(back(np.array([smallest], np.uint32))[0]), largest)


def _flips(packed: Array, dim: int) -> Iterator[Array]:
    """Places of bits, a bounded number at a time."""
    import numpy as np

    total = packed.shape[1] * 8
    step = max(1, _ELEMENTS_AT_ONCE // max(dim, packed.shape[1]))
    for start in range(0, total, step):
        yield np.arange(start, min(start + step, total))


def _four(values: tuple[float, ...]) -> tuple[int, int, int, int]:
    """Codes of the lowest, second lowest, second highest and highest finite value (different values)."""
    from math import isfinite

    codes = {v: code for code, v in sorted(enumerate(values), reverse=True) if isfinite(v)}
    order = [codes[v] for v in sorted(codes)]
    return order[0], order[1], order[-2], order[-1]
