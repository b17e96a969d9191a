"""falcon_h1: attention and Mamba-2 side by side in every layer, so each one keeps KV rows and a state.

The inner width is `mamba_d_ssm`, else `mamba_expand` times the width. A list of attention layers has no rule: the
published files leave `attn_layer_indices` empty. Sources: transformers FalconH1Config; vLLM 0.32 falcon_h1.py. In GGUF
files (falcon-h1): llama.cpp src/models/falcon-h1.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.config_layers import heads, layer_count
from kvgate.models.gguf_states import GROUPED_SSM_KEYS, grouped_state, without_kv
from kvgate.models.layer_words import layer_words
from kvgate.models.layers import attention_layers, refuse_unknown_keys
from kvgate.models.mamba2_keys import mamba2_of
from kvgate.models.state_parts import NATIVE, state_dtype


@dataclass(frozen=True, slots=True)
class FalconH1:
    name: str = "falcon_h1"
    model_types: tuple[str, ...] = ("falcon_h1",)

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        layer_words(keys, "layer_types", count, ("hybrid",))
        layer_words(keys, "layers_block_type", count, ("hybrid",))
        shape = heads(keys)
        states, notes = mamba2_of(keys, state_dtype(keys, NATIVE))
        return ConfigLayers(tuple(replace(shape.layer(n), state=states) for n in range(count)), count, (), notes)


@dataclass(frozen=True, slots=True)
class FalconH1Gguf:
    name: str = "falcon_h1"
    architectures: tuple[str, ...] = ("falcon-h1",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, GROUPED_SSM_KEYS)
        full, states = attention_layers(keys), grouped_state(keys)
        if missing := without_kv(keys, full):
            raise UserError(f"layer {missing[0]} of this {keys.architecture} file has no KV heads: no rule for it")
        return tuple(replace(layer, state=states) for layer in full)


FAMILY = FalconH1Gguf()
CONFIG_FAMILY = FalconH1()
