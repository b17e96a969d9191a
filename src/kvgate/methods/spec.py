"""What a method is to the planner and to a cache: its place in a recipe, its parameters and its bytes.

A method is one file in `methods/` with attribute METHOD (one object or a tuple). A `storage` method stands in the
codec's place (`kivi:bits=2:group=32`, `turboquant_4bit_nc`); a `transform` is written behind a codec (`q8_0+hadamard`)
and changes what is stored, not how much of it. Sizes are answered without numpy; arithmetic on values is in each
method's own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, cast

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import Side
from kvgate.core.source import Source
from kvgate.formats.spec import KVSide, codecs

Role = Literal["storage", "transform"]


class Storage(Protocol):
    """Bytes of K or of V in one layer. A `CodecSpec` is one; a method with its parameters is another."""

    @property
    def name(self) -> str: ...

    def row_bytes(self, dim: int) -> int:
        """Bytes of one head of one token of `dim` elements; UserError where the dimension does not fit."""
        ...

    def slot_bytes(self, layer: LayerGeometry, side: KVSide) -> int:
        """Bytes that one token takes in one layer, all heads; amortised over a group where tokens share scales."""
        ...

    def fixed_bytes(self, layer: LayerGeometry) -> int:
        """Bytes per sequence and layer that do not grow with tokens (a residual window, codebooks, sinks)."""
        ...


class Method(Protocol):
    """One way to store or to transform K and V."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def description(self) -> str: ...

    @property
    def source(self) -> Source: ...

    def storage(self, side: KVSide, params: Mapping[str, str]) -> Storage:
        """Sizes for one side under these parameters; a transform has none and raises TypeError.

        Raises:
            UserError: an unknown parameter or a value outside its range; the message lists what there is.
        """
        ...

    def native_layers(self, layer_count: int, *, hybrid: bool) -> tuple[int, ...]:
        """Layer numbers that this method leaves native by itself (TurboQuant's first and last two)."""
        ...


def method(name: str) -> Method:
    """The method with this name.

    Raises:
        UserError: there is none; the message lists what there is.
    """
    return cast(Method, registry.get("method", name))


def methods() -> tuple[Method, ...]:
    """All registered methods in name order."""
    return tuple(registry.discover("method").values())


def storage_of(side: Side, kv: KVSide) -> Storage:
    """The storage that stands in a recipe's codec slot: a codec, or a storage method with its parameters.

    Raises:
        UserError: no such codec or storage method, or wrong parameters.
    """
    known = {c.name: c for c in codecs()}
    if side.codec in known:
        return known[side.codec]
    stored = {m.name: m for m in methods() if m.role == "storage"}
    if side.codec in stored:
        return stored[side.codec].storage(kv, parameters(side))
    raise UserError(f"unknown codec or method {side.codec!r}", allowed=(*known, *stored))


def parameters(side: Side) -> dict[str, str]:
    """`:key=value` parameters of a side; a bare granularity (`:head`) comes under the key "scale"."""
    found: dict[str, str] = {}
    for text in side.params:
        key, eq, value = text.partition("=")
        key, value = (key, value) if eq else ("scale", key)
        if key in found:
            raise UserError(f"{side}: parameter {key!r} is given twice", fix="give it once")
        found[key] = value
    return found
