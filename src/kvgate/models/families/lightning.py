"""lightning: MiniMax's lightning attention with softmax attention in some layers (MiniMax-Text-01, MiniMax-M1).

`attn_type_list`, or `decoder_attention_types`, has a 1 for each softmax layer and a 0 for each lightning layer; the
transformers port writes `layer_types`. A lightning layer keeps one square matrix a head. Sources: the models' own
configuration files; transformers MiniMaxConfig; vLLM 0.32 minimax_text_01.py (linear_attention_state_shape).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.config_layers import FULL, attention_heads, heads, layer_count
from kvgate.models.layer_words import layer_numbers, layer_words
from kvgate.models.mtp import mtp_layers
from kvgate.models.state_parts import NATIVE, lightning_state, state_dtype

LINEAR = "linear_attention"
_HARMLESS = (
    "shared_intermediate_size",
    "full_attn_alpha_factor",
    "full_attn_beta_factor",
    "linear_attn_alpha_factor",
    "linear_attn_beta_factor",
)


@dataclass(frozen=True, slots=True)
class Lightning:
    name: str = "lightning"
    model_types: tuple[str, ...] = ("minimax_text_01", "minimax_m1", "minimax")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        words = _words(keys, count)
        keys.ignore(*_HARMLESS)
        shape = heads(keys)
        ssm = state_dtype(keys, NATIVE)
        states = lightning_state(attention_heads(keys) or shape.kv_heads, shape.k_dim, ssm)
        layers = tuple(
            shape.layer(n) if word == FULL else LayerGeometry(n, LINEAR, 0, 0, 0, state=states)
            for n, word in enumerate(words)
        )
        notes = ssm.notes if LINEAR in words else ()
        return ConfigLayers(layers, count, mtp_layers(keys, shape.layer(0), count), notes)


def _words(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    words = layer_words(keys, "layer_types", count, (FULL, LINEAR))
    for name in ("attn_type_list", "decoder_attention_types"):
        numbers = layer_numbers(keys, name, count, (0, 1))
        if words is None and numbers is not None:
            words = tuple(FULL if number else LINEAR for number in numbers)
    if words is None:
        raise keys.lacks("attn_type_list", "decoder_attention_types", "layer_types")
    return words


CONFIG_FAMILY = Lightning()
