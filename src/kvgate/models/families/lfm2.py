"""lfm2: short convolutions with attention in some layers (LFM2).

A convolution layer keeps its last `conv_L_cache` - 1 inputs. Which layers attend says `layer_types` (conv,
full_attention), in older files `full_attn_idxs`. Sources: transformers Lfm2Config; vLLM 0.32 lfm2.py. In GGUF files
(lfm2, lfm2moe) a zero in head_count_kv is a convolution layer: llama.cpp src/models/lfm2.cpp; sizes in
gpustack/gguf-parser-go issue 31.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, ConfigKeys
from kvgate.models.config_layers import FULL, heads, layer_count
from kvgate.models.gguf_states import SHORT_CONV_KEYS, short_conv_gguf_state, with_states, without_kv
from kvgate.models.layer_words import layer_words
from kvgate.models.layers import attention_layers, refuse_unknown_keys
from kvgate.models.state_parts import short_conv_state

CONV = "conv"


@dataclass(frozen=True, slots=True)
class Lfm2:
    name: str = "lfm2"
    model_types: tuple[str, ...] = ("lfm2", "lfm2_moe")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        words = _words(keys, count)
        keys.ignore("conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads")
        shape = heads(keys)
        states = short_conv_state(
            keys.integer("hidden_size", maximum=MAX_DIM), keys.integer("conv_L_cache", maximum=MAX_DIM)
        )
        layers = tuple(
            shape.layer(n) if word == FULL else LayerGeometry(n, CONV, 0, 0, 0, state=states)
            for n, word in enumerate(words)
        )
        return ConfigLayers(layers, count)


def _words(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    words = layer_words(keys, "layer_types", count, (CONV, FULL))
    indices = keys.ints("full_attn_idxs", maximum=count - 1)
    if words is not None:
        return words
    if indices is None:
        raise keys.lacks("layer_types", "full_attn_idxs")
    return tuple(FULL if n in indices else CONV for n in range(count))


@dataclass(frozen=True, slots=True)
class Lfm2Gguf:
    name: str = "lfm2"
    architectures: tuple[str, ...] = ("lfm2", "lfm2moe")

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, SHORT_CONV_KEYS)
        full = attention_layers(keys)
        convolutions = without_kv(keys, full)
        return with_states(full, convolutions, short_conv_gguf_state(keys), CONV) if convolutions else full


FAMILY = Lfm2Gguf()
CONFIG_FAMILY = Lfm2()
