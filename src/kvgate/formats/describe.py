"""What there is to say about a codec: size, range, scales, layout, codes, rules, names, source. For tables and pages.

Everything with a number in it is computed from the codec's own arithmetic (`formats/probe.py`); the words are those of
the file that defines it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction
from inspect import cleandoc

from kvgate.formats import probe
from kvgate.formats.drawing import Line, draw
from kvgate.formats.mla_rows import MlaRowSpec
from kvgate.formats.numerics import ScaledNumerics
from kvgate.formats.probe import CodeTable, Range
from kvgate.formats.spec import CodecSpec

#: The head size that bits per element are given for, where they depend on it.
HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class Drawn:
    """The layout of a row of `dim` elements, `row_bytes` long, and the codes of its first element."""

    dim: int
    row_bytes: int
    lines: tuple[Line, ...]
    codes: CodeTable | None


@dataclass(frozen=True, slots=True)
class Rules:
    """What happens to values that do not fit.

    Attributes:
        nonfinite: what a NaN or an infinity becomes, in the codec's own words.
        overflow: policies for finite values beyond the largest; empty where the codec finds its own scale.
        outside_scale: whether a scale from outside the cache is needed (1.0 where none is given).
        idempotent: whether storing again what was read back stores the same bytes, for ordinary values.
    """

    nonfinite: str
    overflow: tuple[str, ...]
    outside_scale: bool
    idempotent: bool


def row_dim(spec: CodecSpec) -> int:
    """The row length that sizes are stated for."""
    return max(spec.rows) if isinstance(spec, MlaRowSpec) else HEAD_DIM


def bits_per_element(spec: CodecSpec) -> Fraction:
    """Bits per element of a row, scales included, at `row_dim`; of a block where that row does not fit."""
    dim = row_dim(spec)
    if not isinstance(spec, MlaRowSpec) and dim % spec.block:
        return spec.bits
    return spec.bits_per_element(dim)


def drawings(spec: CodecSpec) -> tuple[Drawn, ...]:
    """The layout of a block or a short row; of every width where rows are packed whole. Empty without arithmetic."""
    if spec.numerics is None:
        return ()
    found = []
    for dim in probe.shown_dims(spec):
        layout = probe.layout(spec, dim)
        found.append(Drawn(dim, layout.row_bytes, draw(layout), probe.code_table(spec, dim)))
    return tuple(found)


def value_range(spec: CodecSpec) -> Range | None:
    """Smallest and largest magnitude that come back (scale 1 where it comes from outside)."""
    return None if spec.numerics is None else probe.value_range(spec)


def scales(spec: CodecSpec) -> str:
    """In short: what scales there are, and for how many elements each."""
    if spec.numerics is None:
        return "?"
    found = []
    for dim in probe.shown_dims(spec):
        layout = probe.layout(spec, dim)
        shared = [b for b in layout.bits if b.moves > 1 and b.first == 0]
        if not layout.code_bits(0):
            found.append(f"{spec.row_extra_bytes} bytes for a row")
        elif shared:
            table = probe.code_table(spec, dim)
            kind = table.scale if table else f"{len(layout.shared_bytes(0))} bytes"
            found.append(f"{kind} for {'a row' if spec.row_extra_bytes else 1 + max(b.last for b in shared)}")
    if isinstance(spec.numerics, ScaledNumerics):
        found.append("one outside (tensor or head)")
    return " or ".join(found) if isinstance(spec, MlaRowSpec) else ", ".join(found) or "none"


def rules(spec: CodecSpec) -> Rules | None:
    """What the codec states about values that do not fit."""
    numerics = spec.numerics
    if numerics is None:
        return None
    outside = isinstance(numerics, ScaledNumerics)
    overflow = tuple(numerics.overflows) if isinstance(numerics, ScaledNumerics) else ()
    return Rules(numerics.nonfinite, overflow, outside, numerics.idempotent)


def words(spec: CodecSpec) -> tuple[str, ...]:
    """Docstrings that state the rules: of the module that defines the codec, then of shared arithmetic that it uses."""
    found = [_defined_in(spec)]
    kind = type(spec.numerics)
    shared = sys.modules.get(kind.__module__)
    if shared is not None and spec.numerics is not None and shared.__doc__ != found[0]:
        found += [shared.__doc__, kind.__doc__]
    return tuple(cleandoc(text) for text in found if text)


def _defined_in(spec: CodecSpec) -> str | None:
    for module in list(sys.modules.values()):
        codecs = getattr(module, "CODECS", None)
        if codecs is spec or (isinstance(codecs, tuple) and any(c is spec for c in codecs)):
            return module.__doc__
    return None
