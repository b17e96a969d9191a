"""A layout as lines of text: which bytes hold what, runs of bytes that follow one rule put together."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from kvgate.formats.probe import Bit, Layout

_UNREAD = Bit(0, 0, 0)


class Field(NamedTuple):
    """Neighbouring bits of one byte with the same owner: from `low` on, `width` of them."""

    low: int
    width: int
    bit: Bit


class Line(NamedTuple):
    """One line of the drawing: bytes `first` to `last`, and what they hold."""

    first: int
    last: int
    what: str

    @property
    def where(self) -> str:
        return f"byte {self.first}" if self.first == self.last else f"bytes {self.first}..{self.last}"


class Unit(NamedTuple):
    """Neighbouring bytes with the same owner: a nibble pair, a float of four bytes, a scale."""

    first: int
    size: int
    fields: tuple[Field, ...]


def draw(layout: Layout) -> tuple[Line, ...]:
    """The layout, bytes in order."""
    if not any(bit.own for bit in layout.bits):
        return (Line(0, layout.row_bytes - 1, "all elements together: the row is rotated, no byte is one element's"),)
    units: list[Unit] = []
    for fields, same in groupby(range(layout.row_bytes), key=lambda byte: _fields(layout, byte)):
        members = list(same)
        units.append(Unit(members[0], len(members), fields))
    lines: list[Line] = []
    start = 0
    while start < len(units):
        end, step = start + 1, None
        while end < len(units):
            moved = _step(units[end - 1], units[end])
            if moved is None or (step is not None and moved != step):
                break
            end, step = end + 1, moved
        a, b = units[start], units[end - 1]
        lines.append(Line(a.first, b.first + b.size - 1, _what(a, b, step or 0)))
        start = end
    return tuple(lines)


def _fields(layout: Layout, byte: int) -> tuple[Field, ...]:
    bits = layout.bits[8 * byte : 8 * byte + 8]
    found, low = [], 0
    for bit, same in groupby(bits):
        width = len(list(same))
        found.append(Field(low, width, bit))
        low += width
    # A scale's bits may move a few elements more or less (codes of 0 do not move): one field all the same.
    if len(found) > 1 and all(f.bit.moves > 1 for f in found):
        return (Field(0, 8, Bit(min(f.bit.first for f in found), max(f.bit.last for f in found), 2)),)
    return tuple(Field(f.low, f.width, f.bit._replace(moves=min(f.bit.moves, 2))) for f in found)


def _step(a: Unit, b: Unit) -> int | None:
    """By how much the elements move on from one unit to the next; None where they follow different rules."""
    if a.size != b.size or [(f.low, f.width, f.bit.moves) for f in a.fields] != [
        (f.low, f.width, f.bit.moves) for f in b.fields
    ]:
        return None
    read = [(p.bit, q.bit) for p, q in zip(a.fields, b.fields, strict=True) if p.bit != _UNREAD]
    moves = {q.first - p.first for p, q in read} | {q.last - p.last for p, q in read}
    return moves.pop() if len(moves) == 1 else None


def _what(a: Unit, b: Unit, step: int) -> str:
    first, last = a.fields, b.fields
    if len(first) == 1:
        return _one(first[0], last[0], step, a.size)
    # Elements that follow each other inside a byte and on to the next are one stream of bits.
    starts = [f.bit.first for f in first]
    widths = {f.width for f in first}
    run = all(f.bit.own for f in first) and starts == list(range(starts[0], starts[0] + len(first)))
    if run and len(widths) == 1 and step in (0, len(first)):
        return f"elements {starts[0]}..{last[-1].bit.first}, {_bits(first[0].width)} each, low bits first"
    parts = sorted(zip(first, last, strict=True), key=lambda p: -p[0].low)
    return "; ".join(f"{_bits_at(f)} {_one(f, g, step, a.size)}" for f, g in parts)


def _one(first: Field, last: Field, step: int, size: int) -> str:
    if first.bit == _UNREAD:
        return "not read when decoding"
    a, b = first.bit, last.bit
    if a.own:
        if a.first == b.first:
            return f"element {a.first}"
        each = f", {size} byte{'s' if size > 1 else ''} each" if first.width == 8 else ""
        return f"elements {a.first}..{b.first}" + (f", every {step}th" if step > 1 else "") + each
    if step == 0:
        return f"scale of elements {a.first}..{a.last}"
    span = a.last - a.first + 1
    if step == span:
        each = f"{size} bytes" if size > 1 else "one"
        return f"scales of elements {a.first}..{b.last}, {each} for every {span}"
    return f"scales of {span} elements each, those from element {a.first}, {a.first + step}, .. {b.first} on"


def _bits(width: int) -> str:
    return "1 bit" if width == 1 else f"{width} bits"


def _bits_at(f: Field) -> str:
    return f"bit {f.low}" if f.width == 1 else f"bits {f.low + f.width - 1}..{f.low}"
