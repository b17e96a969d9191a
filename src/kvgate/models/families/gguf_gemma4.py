"""gemma4 (GGUF): layers with a window and layers that see all tokens, each kind with its own heads and head size.

The file has a true for each layer with a window, KV heads a layer, head sizes of both kinds, and how many layers at the
end read the KV of earlier ones. Source: llama.cpp src/models/gemma4.cpp (load_arch_hparams).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.gguf_states import layer_flags
from kvgate.models.layers import MAX_DIM, PATTERN_KEY, WINDOW_KEY, attention_layers, refuse_unknown_keys

SHARED_KEY = "attention.shared_kv_layers"
_LOCAL = ("attention.key_length_swa", "attention.value_length_swa")
_KNOWN = (WINDOW_KEY, PATTERN_KEY, SHARED_KEY, *_LOCAL, "embedding_length_per_layer_input")


@dataclass(frozen=True, slots=True)
class Gemma4Gguf:
    name: str = "gemma4"
    architectures: tuple[str, ...] = ("gemma4",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, _KNOWN)
        flags = layer_flags(keys, PATTERN_KEY)
        if flags is None:
            raise UserError(f"the GGUF metadata lacks {keys.architecture}.{PATTERN_KEY}", fix="convert the model again")
        window = keys.integer(WINDOW_KEY)
        k_dim, v_dim = (_dim(keys, name) for name in _LOCAL)
        if window < 1:
            raise UserError(f"{keys.architecture}.{WINDOW_KEY} is {window}")
        owning = keys.integer("block_count") - (keys.maybe_int(SHARED_KEY) or 0)
        return tuple(
            replace(layer, kind="sliding_window", k_dim=k_dim, v_dim=v_dim, window_tokens=window)
            if flags[layer.index]
            else layer
            for layer in attention_layers(keys)
            if layer.index < owning
        )


def _dim(keys: ArchKeys, name: str) -> int:
    dim = keys.integer(name)
    if not 1 <= dim <= MAX_DIM:
        raise UserError(f"{keys.architecture}: a head of {dim} elements ({name}) cannot be")
    return dim


FAMILY = Gemma4Gguf()
