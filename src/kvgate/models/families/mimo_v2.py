"""mimo_v2: layers with a window have their own KV heads and head sizes, and V is narrower than K.

`hybrid_layer_pattern` has a 1 where a layer has the window. `swa_*` keys are for those layers; an absent one takes the
value of the others. Source: the configurations of XiaomiMiMo/MiMo-V2-Flash; vLLM 0.32 models/mimo_v2.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import FULL, SLIDING, Heads, attention_stack, heads, layer_count, listed_kinds


@dataclass(frozen=True, slots=True)
class MimoV2:
    name: str = "mimo_v2"
    model_types: tuple[str, ...] = ("mimo_v2_flash", "mimo_v2", "mimo_v2_omni", "mimo_v2_pro")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        kinds = listed_kinds(keys, count) or _from_pattern(keys, count)
        wide, local = heads(keys), _local_heads(keys)
        # The window again, under another engine's name; and query heads.
        keys.ignore("hybrid_layer_pattern", "attention_chunk_size", "swa_num_attention_heads", "attention_value_scale")
        return attention_stack(keys, kinds, count, lambda kind: wide if kind == FULL else local)


def _from_pattern(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    pattern = keys.ints("hybrid_layer_pattern", maximum=1)
    if pattern is None:
        raise keys.lacks("hybrid_layer_pattern", "layer_types")
    if len(pattern) != count:
        raise UserError(f"{keys.label('hybrid_layer_pattern')} has {len(pattern)} entries for {count} layers")
    return tuple(SLIDING if windowed else FULL for windowed in pattern)


def _local_heads(keys: ConfigKeys) -> Heads:
    wide = heads(keys)
    return Heads(
        keys.maybe_int("swa_num_key_value_heads", minimum=1, maximum=MAX_HEADS) or wide.kv_heads,
        keys.maybe_int("swa_head_dim", minimum=1, maximum=MAX_DIM) or wide.k_dim,
        keys.maybe_int("swa_v_head_dim", minimum=1, maximum=MAX_DIM) or wide.v_dim,
    )


CONFIG_FAMILY = MimoV2()
