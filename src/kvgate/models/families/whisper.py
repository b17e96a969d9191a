"""whisper: the decoder's own KV grows; cross attention keeps K and V of all encoder positions for each sequence.

Source: transformers 5.19 configuration_whisper.py; vLLM 0.32 counts `max_source_positions` encoder tokens a request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import Heads

CROSS = "cross_attention"


@dataclass(frozen=True, slots=True)
class Whisper:
    name: str = "whisper"
    model_types: tuple[str, ...] = ("whisper",)

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = keys.integer("decoder_layers", maximum=MAX_LAYERS)
        heads = keys.integer("decoder_attention_heads", maximum=MAX_HEADS)
        width = keys.integer("d_model", maximum=MAX_DIM)
        source = keys.integer("max_source_positions")
        # `num_hidden_layers` is the encoder's in such files.
        keys.ignore("num_hidden_layers", "encoder_attention_heads", "encoder_layers", "is_encoder_decoder")
        if width % heads:
            raise UserError(f"d_model {width} does not divide into {heads} decoder_attention_heads")
        own = [Heads(heads, width // heads, width // heads).layer(i) for i in range(count)]
        both = [x for layer in own for x in (layer, replace(layer, kind=CROSS, fixed_tokens=source))]
        return ConfigLayers(tuple(both), count, notes=(f"cross attention holds {source:,} encoder tokens a sequence",))


CONFIG_FAMILY = Whisper()
