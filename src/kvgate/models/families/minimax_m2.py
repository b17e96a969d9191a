"""minimax_m2: plain attention in all layers; `attn_type_list` has a 1 for each (its elder, MiniMax-01, mixes).

Source: MiniMaxAI/MiniMax-M2.5 config.json; vLLM 0.32 models/minimax_m2.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.config_layers import FULL, attention_stack, heads, layer_count


@dataclass(frozen=True, slots=True)
class MiniMaxM2:
    name: str = "minimax_m2"
    model_types: tuple[str, ...] = ("minimax_m2",)

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        if any(kind != 1 for kind in keys.ints("attn_type_list") or ()):
            raise UserError("attn_type_list names layers that are not softmax attention (1), which minimax_m2 has not")
        same = heads(keys)
        keys.ignore("shared_intermediate_size")
        return attention_stack(keys, (FULL,) * count, count, lambda kind: same)


CONFIG_FAMILY = MiniMaxM2()
