"""jamba: Mamba-1 layers with attention in every `attn_layer_period`-th, from `attn_layer_offset` on.

The inner width is `mamba_expand` times the width. Files that name layers in `layers_block_type` are read by it.
Sources: transformers JambaConfig (layers_block_type); vLLM 0.32 jamba.py. In GGUF files (jamba) a layer with
head_count_kv 0 is a Mamba layer: llama.cpp src/models/jamba.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import heads, layer_count
from kvgate.models.gguf_states import SSM_KEYS, plain_state, with_states, without_kv
from kvgate.models.layer_words import layer_words
from kvgate.models.layers import attention_layers, refuse_unknown_keys
from kvgate.models.state_parts import NATIVE, mamba1_state, state_dtype

KIND = "mamba"
MAMBA, ATTENTION = "mamba", "attention"


@dataclass(frozen=True, slots=True)
class Jamba:
    name: str = "jamba"
    model_types: tuple[str, ...] = ("jamba",)

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        words = _words(keys, count)
        keys.ignore("mamba_dt_rank", "use_mamba_kernels", "mamba_inner_layernorms")
        shape = heads(keys)
        ssm = state_dtype(keys, NATIVE)
        inner = keys.integer("mamba_expand", maximum=MAX_HEADS) * keys.integer("hidden_size", maximum=MAX_DIM)
        states = mamba1_state(
            inner,
            keys.integer("mamba_d_state", maximum=MAX_DIM),
            keys.integer("mamba_d_conv", maximum=MAX_DIM),
            ssm,
        )
        layers = tuple(
            shape.layer(n) if word == ATTENTION else LayerGeometry(n, KIND, 0, 0, 0, state=states)
            for n, word in enumerate(words)
        )
        return ConfigLayers(layers, count, (), ssm.notes if MAMBA in words else ())


def _words(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    period = keys.maybe_int("attn_layer_period", minimum=1, maximum=MAX_LAYERS)
    offset = keys.maybe_int("attn_layer_offset", maximum=MAX_LAYERS)
    words = layer_words(keys, "layers_block_type", count, (MAMBA, ATTENTION))
    if words is not None:
        return words
    if period is None or offset is None:
        raise keys.lacks("attn_layer_period" if period is None else "attn_layer_offset")
    if offset >= period:
        raise UserError(
            f"{keys.label('attn_layer_offset')} is {offset}, and attn_layer_period {period}: no layer attends"
        )
    return tuple(ATTENTION if n % period == offset else MAMBA for n in range(count))


@dataclass(frozen=True, slots=True)
class JambaGguf:
    name: str = "jamba"
    architectures: tuple[str, ...] = ("jamba",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, SSM_KEYS)
        full = attention_layers(keys)
        return with_states(full, without_kv(keys, full), plain_state(keys), KIND)


FAMILY = JambaGguf()
CONFIG_FAMILY = Jamba()
