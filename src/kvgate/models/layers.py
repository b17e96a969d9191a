"""Shapes that families share: plain attention layers, and every n-th layer full with a window on the others.

A file with keys that no rule here accounts for is refused with the key: a wrong size looks like a right one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import MAX_LAYERS, ArchKeys

WINDOW_KEY = "attention.sliding_window"
PATTERN_KEY = "attention.sliding_window_pattern"
MAX_DIM = 65_536

#: Attention keys that do not change what is cached, or that `attention_layers` reads.
_HARMLESS = frozenset(
    f"attention.{name}"
    for name in (
        "head_count",
        "head_count_kv",
        "key_length",
        "value_length",
        "layer_norm_epsilon",
        "layer_norm_rms_epsilon",
        "group_norm_epsilon",
        "group_norm_groups",
        "max_alibi_bias",
        "clamp_kqv",
        "causal",
        "scale",
        "output_scale",
        "temperature_length",
        "temperature_scale",
    )
)
#: Beginnings of keys that mean a state, a shared cache or a second stack.
_STATEFUL = (
    "ssm.",
    "wkv.",
    "kda.",
    "shortconv.",
    "token_shift_count",
    "full_attention_interval",
    "decoder_",
    "altup.",
    "embedding_length_per_layer_input",
    "posnet.",
    "convnext.",
)


class Family(Protocol):
    """One file in `families/`, exported as FAMILY."""

    @property
    def name(self) -> str: ...

    @property
    def architectures(self) -> tuple[str, ...]:
        """Values of `general.architecture`; the family without any takes what nobody else claims."""
        ...

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        """Layers with a cache, in order.

        Raises:
            UserError: a key is missing, or one is there for which there is no rule.
        """
        ...


def refuse_unknown_keys(keys: ArchKeys, known: Collection[str] = ()) -> None:
    """Refuse a file whose cache depends on keys that the caller does not know.

    Raises:
        UserError: names the key.
    """
    if not keys.flag("attention.causal", True):
        raise UserError(f"{keys.architecture} is an encoder: it has no KV cache", fix="give a text-generating model")
    for name in keys.names():
        if name in known or name in _HARMLESS:
            continue
        if name == WINDOW_KEY and keys.maybe_int(WINDOW_KEY) == 0:
            continue
        if name.startswith("attention.") or name.startswith(_STATEFUL):
            raise UserError(
                f"kvgate has no verified rule for {keys.architecture!r} with the key {name!r}",
                fix="try a model of another architecture",
            )


def attention_layers(keys: ArchKeys) -> tuple[LayerGeometry, ...]:
    """All layers with KV heads, as full attention; MTP blocks at the end of the stack are not counted.

    Raises:
        UserError: missing or senseless keys.
    """
    count = keys.integer("block_count")
    if not 1 <= count <= MAX_LAYERS:
        raise UserError(f"{keys.architecture}.block_count is {count}; llama.cpp takes 1 to {MAX_LAYERS}")
    count -= keys.maybe_int("nextn_predict_layers") or 0
    heads = keys.per_layer("attention.head_count", count) if count > 0 else None
    if not heads:
        raise UserError(f"the GGUF metadata lacks {keys.architecture}.attention.head_count, or has no layers")
    kv_heads = keys.per_layer("attention.head_count_kv", count) or heads
    k_dim, v_dim = _head_dim(keys, "attention.key_length", heads), _head_dim(keys, "attention.value_length", heads)
    return tuple(LayerGeometry(index, "full_attention", n, k_dim, v_dim) for index, n in enumerate(kv_heads) if n > 0)


def _head_dim(keys: ArchKeys, name: str, heads: tuple[int, ...]) -> int:
    dim = keys.maybe_int(name)
    if dim is None:
        # As llama.cpp: the first layer's heads, whatever the others have.
        dim = keys.integer("embedding_length") // heads[0] if heads[0] else 0
    if not 1 <= dim <= MAX_DIM:
        raise UserError(f"{keys.architecture}: a head of {dim} elements ({name}) cannot be")
    return dim


@dataclass(frozen=True, slots=True)
class EveryNthFull:
    """Every `period`-th layer sees all tokens, the others a window: layer i is full when (i + 1) % period == 0.

    Attributes:
        window_tokens: used where the file does not say; None makes the key mandatory, 0 means no windows then.
        fixed_window: the file's key is not read for the size (llama4's chunks).
    """

    name: str
    architectures: tuple[str, ...]
    period: int
    window_tokens: int | None
    kind: str = "sliding_window"
    fixed_window: bool = False

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, (WINDOW_KEY, PATTERN_KEY))
        window = keys.maybe_int(WINDOW_KEY)
        if window is None:
            window = self.window_tokens if self.window_tokens is not None else keys.integer(WINDOW_KEY)
        elif window and self.fixed_window and self.window_tokens is not None:
            window = self.window_tokens
        period = keys.maybe_int(PATTERN_KEY)
        period = self.period if period is None else period
        all_layers = attention_layers(keys)
        if not window:
            return all_layers
        return tuple(
            # Period 0 is llama.cpp's word for "all layers have the window".
            layer
            if period and (layer.index + 1) % period == 0
            else replace(layer, kind=self.kind, window_tokens=window)
            for layer in all_layers
        )
