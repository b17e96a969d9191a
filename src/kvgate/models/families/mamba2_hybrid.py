"""mamba2_hybrid: Mamba-2 layers with attention in some (Granite 4, Bamba).

Granite names each layer in `layer_types` (mamba, attention), older files in `layers_block_type`; Bamba lists its
attention layers in `attn_layer_indices`. Sources: transformers GraniteMoeHybridConfig and BambaConfig; vLLM 0.32
granitemoehybrid.py, bamba.py. In GGUF files (granitehybrid, also Bamba) a layer with head_count_kv 0 is a Mamba layer:
llama.cpp src/models/granite-hybrid.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.config_layers import heads, layer_count
from kvgate.models.gguf_states import GROUPED_SSM_KEYS, grouped_state, with_states, without_kv
from kvgate.models.layer_words import layer_words
from kvgate.models.layers import attention_layers, refuse_unknown_keys
from kvgate.models.mamba2_keys import SIZE_KEYS, ignore_mamba2, mamba2_of
from kvgate.models.state_parts import NATIVE, state_dtype

KIND = "mamba2"
MAMBA, ATTENTION = "mamba", "attention"


@dataclass(frozen=True, slots=True)
class Mamba2Hybrid:
    name: str = "mamba2_hybrid"
    model_types: tuple[str, ...] = ("granitemoehybrid", "bamba")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        words = _words(keys, count)
        keys.ignore("shared_intermediate_size")
        attention = _attention(keys, words)
        if MAMBA in words:
            states, notes = mamba2_of(keys, state_dtype(keys, NATIVE))
            mamba = {n: LayerGeometry(n, KIND, 0, 0, 0, state=states) for n, word in enumerate(words) if word == MAMBA}
        else:
            # Granite 4's dense members keep the keys of their hybrids.
            ignore_mamba2(keys)
            keys.ignore(*SIZE_KEYS)
            mamba, notes = {}, ()
        return ConfigLayers(tuple(v for _, v in sorted({**attention, **mamba}.items())), count, (), notes)


def _attention(keys: ConfigKeys, words: tuple[str, ...]) -> dict[int, LayerGeometry]:
    if ATTENTION not in words:
        keys.ignore("num_attention_heads", "num_key_value_heads", "head_dim")
        return {}
    shape = heads(keys)
    return {n: shape.layer(n) for n, word in enumerate(words) if word == ATTENTION}


def _words(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    known = (MAMBA, ATTENTION)
    words = layer_words(keys, "layer_types", count, known) or layer_words(keys, "layers_block_type", count, known)
    indices = keys.ints("attn_layer_indices", maximum=count - 1)
    if words is not None:
        return words
    if indices is None:
        raise keys.lacks("layer_types", "layers_block_type", "attn_layer_indices")
    return tuple(ATTENTION if n in indices else MAMBA for n in range(count))


@dataclass(frozen=True, slots=True)
class GraniteHybridGguf:
    name: str = "mamba2_hybrid"
    architectures: tuple[str, ...] = ("granitehybrid",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, GROUPED_SSM_KEYS)
        full = attention_layers(keys)
        mamba = without_kv(keys, full)
        return with_states(full, mamba, grouped_state(keys), KIND) if mamba else full


FAMILY = GraniteHybridGguf()
CONFIG_FAMILY = Mamba2Hybrid()
