"""Caches that llama.cpp allocates and reports in its load log, in cells and bytes.

One part a cache: all layers without a window, and, where the architecture has windows, a second one for those layers
("iswa"). Flash attention is taken to be on (kvgate always asks for it; without it V is padded to the widest layer).
Recurrent states are a cache of their own (`llama_cpp_rule.py`); indexer caches are not known here.
Source: llama.cpp src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-context.cpp at b11434; sizes seen with b11549.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.core.units import MIB_BYTES
from kvgate.formats.spec import CodecSpec, KVSide

RULE = Source("spec", "llama.cpp src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp", "b11434")
#: Cells come in multiples of this.
PAD_CELLS = 256


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One cache of a context, as the engine will log it.

    Attributes:
        kind: "full_attention" or "sliding_window".
        cells: tokens of room per stream. streams: separate copies, one per slot unless unified.
        layers: layers in this cache. k_bytes, v_bytes: over all layers, cells and streams.
    """

    kind: str
    cells: int
    streams: int
    layers: int
    k_bytes: int
    v_bytes: int

    @property
    def bytes(self) -> int:
        return self.k_bytes + self.v_bytes

    @property
    def k_mib(self) -> float:
        return self.k_bytes / MIB_BYTES

    @property
    def v_mib(self) -> float:
        return self.v_bytes / MIB_BYTES

    @property
    def mib(self) -> float:
        return self.bytes / MIB_BYTES


@dataclass(frozen=True, slots=True)
class Room:
    """Context as the engine rounds it: tokens of one sequence, streams, and tokens over all streams."""

    sequence_tokens: int
    streams: int

    @property
    def context_tokens(self) -> int:
        return self.sequence_tokens * self.streams


def room(trained_tokens: int, *, context_tokens: int, slots: int = 1, unified: bool = False) -> Room:
    """Round a requested context as llama.cpp does. Split slots may get more than was asked, never less.

    Args:
        trained_tokens: the model's own context, used when `context_tokens` is 0.
        context_tokens: `n_ctx`, for all slots together.
        slots: `n_seq_max`. unified: one pool for all slots instead of one stream each.

    Raises:
        UserError: a negative context or no slot.
    """
    if context_tokens < 0 or slots < 1:
        raise UserError(
            f"{context_tokens} context tokens for {slots} slots cannot be planned", fix="give positive numbers"
        )
    n_ctx = pad_cells(context_tokens or trained_tokens)
    if unified:
        return Room(n_ctx, 1)
    return Room(pad_cells(n_ctx // slots), slots)


def cache_parts(
    geometry: ModelGeometry,
    k_codec: CodecSpec,
    v_codec: CodecSpec,
    *,
    context_tokens: int,
    slots: int = 1,
    ubatch_tokens: int = 512,
    swa_full: bool = False,
    unified: bool = False,
) -> tuple[PlannedPart, ...]:
    """Caches of one context, in the order in which llama.cpp creates them.

    Args:
        geometry: layers with their windows; a layer with v_dim 0 (MLA) keeps K only.
        k_codec, v_codec: codecs that llama.cpp stores.
        context_tokens: `n_ctx`, for all slots together; 0 is the model's own context.
        slots: parallel sequences. ubatch_tokens: `n_ubatch`, part of a sliding cache's room.
        swa_full: give sliding layers the whole context. unified: one pool for all slots.

    Raises:
        UserError: a head is not a multiple of the codec's block, a codec cannot be stored, K and V differ on a model
            that caches one vector, or windows differ between layers.
    """
    _refuse(geometry, k_codec, v_codec)
    space = room(geometry.context_tokens, context_tokens=context_tokens, slots=slots, unified=unified)
    cached = [layer for layer in geometry.layers if layer.kv_heads > 0]
    full = [layer for layer in cached if layer.window_tokens is None]
    sliding = [layer for layer in cached if layer.window_tokens is not None]
    parts = []
    if full:
        parts.append(_part("full_attention", space.sequence_tokens, space.streams, full, k_codec, v_codec))
    if sliding:
        seen_tokens = one_window(sliding) * (slots if unified else 1) + ubatch_tokens
        cells = space.sequence_tokens if swa_full else pad_cells(min(space.sequence_tokens, seen_tokens))
        parts.append(_part("sliding_window", cells, space.streams, sliding, k_codec, v_codec))
    return tuple(parts)


def printed_mib(n_bytes: int) -> str:
    """`n_bytes` as the load log prints it: MiB, two decimals, C's %.2f."""
    # CPython formats the same double with the same round-half-even rule as C's printf.
    return f"{n_bytes / MIB_BYTES:.2f}"


def pad_cells(tokens: int) -> int:
    """Cells of a cache that must hold `tokens` tokens."""
    return -(-tokens // PAD_CELLS) * PAD_CELLS


def _part(
    kind: str, cells: int, streams: int, layers: Sequence[LayerGeometry], k: CodecSpec, v: CodecSpec
) -> PlannedPart:
    def total(codec: CodecSpec, side: KVSide) -> int:
        return sum(codec.slot_bytes(layer, side) for layer in layers) * cells * streams

    return PlannedPart(kind, cells, streams, len(layers), total(k, "k"), total(v, "v"))


def one_window(sliding: Sequence[LayerGeometry]) -> int:
    """The window of all sliding layers.

    Raises:
        UserError: they have different ones.
    """
    windows = {layer.window_tokens for layer in sliding if layer.window_tokens is not None}
    if len(windows) != 1:
        raise UserError(f"llama.cpp keeps one window for all sliding layers, this model has {sorted(windows)}")
    return windows.pop()


def _refuse(geometry: ModelGeometry, k: CodecSpec, v: CodecSpec) -> None:
    for codec in (k, v):
        codec.spelling("llama_cpp")
    if k.name != v.name and any(layer.v_dim == 0 for layer in geometry.layers):
        raise UserError(
            f"k={k.name},v={v.name}: {geometry.architecture} caches one vector for K and V, so both have one type",
            fix=f"write {k.name}",
        )
