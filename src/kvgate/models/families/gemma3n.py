"""gemma3n: four layers with a window, then one that sees all tokens; the last layers read the KV of earlier ones.

`num_kv_shared_layers` layers at the end own no cache; 15 where the file is silent.
Source: transformers 5.19 configuration_gemma3n.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.config_layers import attention_stack, every_nth_full, heads, layer_count, listed_kinds
from kvgate.models.config_sharing import owning_layers


@dataclass(frozen=True, slots=True)
class Gemma3n:
    name: str = "gemma3n"
    model_types: tuple[str, ...] = ("gemma3n", "gemma3n_text")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        kinds = listed_kinds(keys, count)
        notes: tuple[str, ...] = ()
        if kinds is None:
            kinds = every_nth_full(count, 5)
            notes = ("no layer_types: every fifth layer sees all tokens, as in the family's code",)
        same = heads(keys)
        # Per-layer embeddings and AltUp are weights, not caches.
        keys.ignore("hidden_size_per_layer_input", "vocab_size_per_layer_input")
        return owning_layers(keys, attention_stack(keys, kinds, count, lambda kind: same, notes=notes), absent=15)


CONFIG_FAMILY = Gemma3n()
