"""Sizes that all storage methods share: groups of tokens, tables, sinks and the residual window.

`sequence_bytes` is what a stream of one sequence holds, to the byte. `slot_bytes` is its slope and `fixed_bytes` the
most that it can lie above that slope, so that slope times tokens plus fixed is never too little. Without numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import ClassVar

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats.spec import KVSide
from kvgate.methods.spec import Flush, Window


@dataclass(frozen=True)
class TokenStorage(ABC):
    """Bytes of one side under one method with its parameters.

    Attributes:
        name: the method's. side: "k" or "v".
        window: sinks and residual window with the method's own defaults filled in.
    """

    name: str
    side: KVSide
    window: Window

    flush: ClassVar[Flush] = "slide"

    @property
    def group_tokens(self) -> int:
        """Tokens that share scales; the last, unfinished group is held native."""
        return 1

    @property
    def warmup_tokens(self) -> int:
        """Tokens behind the sinks after which the first one is encoded."""
        return self.window.warmup_tokens

    @abstractmethod
    def group_bytes(self, dim: int) -> int:
        """Bytes of one head of one group of tokens.

        Raises:
            UserError: the method cannot store heads of `dim` elements.
        """

    def layer_group_bytes(self, layer: LayerGeometry) -> int:
        """Bytes of one group of tokens, all heads."""
        return layer.kv_heads * self.group_bytes(self.dim(layer))

    def table_bytes(self, layer: LayerGeometry) -> int:
        """Bytes that a sequence holds whatever its length (a frozen mean); tables shared by all sequences are none."""
        return layer.kv_heads * self.dim(layer) * self.window.channel_bytes

    def dim(self, layer: LayerGeometry) -> int:
        return layer.k_dim if self.side == "k" else layer.v_dim

    def row_bytes(self, dim: int) -> int:
        """One head of one token, its share of the group rounded up."""
        return ceil(Fraction(self.group_bytes(dim), self.group_tokens)) if dim else 0

    def slot_bytes(self, layer: LayerGeometry, side: KVSide) -> int:
        """One token of one layer, all heads, its share of the group rounded up."""
        if side != self.side:
            raise TypeError(f"this storage is for {self.side}")
        return ceil(self._slope(layer))

    def native_slot_bytes(self, layer: LayerGeometry) -> int:
        return layer.kv_heads * self.dim(layer) * self.window.native_bytes

    def fixed_bytes(self, layer: LayerGeometry) -> int:
        """What a sequence holds beyond `slot_bytes` a token: tables, sinks, the window and the unfinished group."""
        if not self.dim(layer):
            return 0
        above = max(Fraction(0), self.native_slot_bytes(layer) - self._slope(layer))
        most = self.native_tokens
        if layer.window_tokens is not None:
            most = min(most, layer.window_tokens)
        return self.table_bytes(layer) + ceil(above * most)

    @property
    def native_tokens(self) -> int:
        """The most tokens of a sequence that are held native at once."""
        recent = self.residual_tokens + (self.group_tokens - 1 if self.flush == "slide" else 0)
        return self.sink_tokens + max(recent, self.warmup_tokens)

    @property
    def sink_tokens(self) -> int:
        return self.window.sink_tokens or 0

    @property
    def residual_tokens(self) -> int:
        return self.window.residual_tokens or 0

    def sequence_bytes(self, layer: LayerGeometry, tokens: int) -> int:
        """Bytes that a sequence of `tokens` tokens holds in one layer after its last step."""
        done = encoded_range(self, tokens)
        native = (tokens - len(done)) * self.native_slot_bytes(layer)
        tables = self.table_bytes(layer) if len(done) else 0
        return tables + native + len(done) // self.group_tokens * self.layer_group_bytes(layer)

    def windowed(self, window: Window) -> TokenStorage:
        residual = self.window.residual_tokens if window.residual_tokens is None else window.residual_tokens
        sink = self.window.sink_tokens if window.sink_tokens is None else window.sink_tokens
        return replace(self, window=replace(window, residual_tokens=residual, sink_tokens=sink))

    def refuse(self, dim: int, multiple: int, why: str) -> None:
        """UserError where `dim` is not a multiple of what the method needs."""
        if dim % multiple:
            below = dim // multiple * multiple
            near = " or ".join(str(n) for n in (below, below + multiple) if n)
            raise UserError(f"{self.name}: a head of {dim} elements does not fit, {why}", fix=f"nearest: {near}")

    def _slope(self, layer: LayerGeometry) -> Fraction:
        if not self.dim(layer):
            return Fraction(0)
        return Fraction(self.layer_group_bytes(layer), self.group_tokens)


def encoded_range(storage: TokenStorage, tokens: int) -> range:
    """Which of the first `tokens` tokens are encoded; see `residual_window` for the rules."""
    sink, keep, group = storage.sink_tokens, storage.residual_tokens, storage.group_tokens
    after_sink = max(0, tokens - sink)
    if after_sink < storage.warmup_tokens:
        count = 0
    elif storage.flush == "flush" and keep:
        count = after_sink - after_sink % keep
    else:
        count = max(0, after_sink - keep)
    return range(sink, sink + count - count % group) if count >= group else range(sink, sink)
