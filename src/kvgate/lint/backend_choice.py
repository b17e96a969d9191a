"""The table of backends, asked for one subject of the linter."""

from __future__ import annotations

from kvgate.enginefacts import backend_table
from kvgate.enginefacts.backend_table import LayerNeed, Place, blocks_fit, layer_needs
from kvgate.enginefacts.facts import BackendRow
from kvgate.lint.subject import Subject

__all__ = ["blocks_fit", "chosen", "needs", "per_head_scales", "why_not"]


def needs(s: Subject) -> tuple[LayerNeed, ...]:
    """Each kind of layer of the model once; one need without details where the model is not known."""
    if s.model is None or not s.model.layers:
        return (LayerNeed(),)
    return layer_needs(s.model.layers)


def why_not(row: BackendRow, s: Subject, word: str, need: LayerNeed) -> list[tuple[str, str]]:
    """Reasons, each with its kind, why a backend cannot serve a layer with this KV word; empty if it can."""
    return backend_table.why_not(row, _place(s), word, need)


def chosen(s: Subject, word: str) -> tuple[str, ...] | None:
    """Backends that vLLM would take, one for each kind of layer; None without an NVIDIA device; "" where none fits."""
    return None if s.facts is None else backend_table.choose(s.facts, _place(s), word, needs(s))


def per_head_scales(s: Subject) -> bool:
    """Whether the checkpoint asks for one scale a head (compressed-tensors strategy attn_head)."""
    scheme = s.model.kv_scheme if s.model is not None else None
    return scheme is not None and scheme.get("strategy") == "attn_head" and s.is_fp8


def _place(s: Subject) -> Place:
    sinks = s.model is not None and s.model.has_sinks
    return Place(s.vendor, s.capability, sinks, per_head_scales(s), int(s.number("block_tokens") or 0))
