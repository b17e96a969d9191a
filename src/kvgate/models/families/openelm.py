"""openelm: the number of KV heads grows with depth; `num_kv_heads` is a list, one entry a layer.

Source: Apple's configuration_openelm.py of the OpenELM models.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import Heads, layer_count


@dataclass(frozen=True, slots=True)
class OpenElm:
    name: str = "openelm"
    model_types: tuple[str, ...] = ("openelm",)

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        listed = keys.ints("num_kv_heads", minimum=1, maximum=MAX_HEADS)
        if listed is None:
            raise keys.lacks("num_kv_heads")
        if len(listed) != count:
            raise UserError(f"{keys.label('num_kv_heads')} has {len(listed)} entries for {count} layers")
        dim = keys.integer("head_dim", maximum=MAX_DIM)
        keys.ignore("num_query_heads", "num_gqa_groups", "share_input_output_layers")
        return ConfigLayers(tuple(Heads(n, dim, dim).layer(i) for i, n in enumerate(listed)), count)


CONFIG_FAMILY = OpenElm()
