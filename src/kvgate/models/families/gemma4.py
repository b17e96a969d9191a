"""gemma4: layers that see all tokens have wider heads and fewer of them than layers with a window; KV may be shared.

`global_head_dim` and `num_global_key_value_heads` are for layers that see all tokens (absent: 512, and the KV heads of
the others). `attention_k_eq_v` shares a projection; K and V are both stored. `num_kv_shared_layers` layers at the end
own no cache (absent: 0). Without `layer_types` the interval is that of the published models, whose last layer sees all
tokens: 6, or 5 where only 5 divides the layers.
Source: transformers 5.19 configuration_gemma4.py, vLLM 0.32 models/gemma4.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import FULL, Heads, attention_stack, every_nth_full, heads, layer_count, listed_kinds
from kvgate.models.config_sharing import owning_layers

_GLOBAL_HEAD_DIM = 512


@dataclass(frozen=True, slots=True)
class Gemma4:
    name: str = "gemma4"
    model_types: tuple[str, ...] = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        listed = listed_kinds(keys, count)
        notes: tuple[str, ...] = ()
        if listed is None:
            listed = every_nth_full(count, _interval(count))
            notes = (f"no layer_types: every {_interval(count)}th layer sees all tokens, as in the published models",)
        # The family's code forces the last layer.
        kinds = (*listed[: count - 1], FULL, *listed[count:])
        local, wide = heads(keys), _global_heads(keys)
        keys.ignore("hidden_size_per_layer_input", "vocab_size_per_layer_input")
        stack = attention_stack(keys, kinds, count, lambda kind: wide if kind == FULL else local, notes=notes)
        return owning_layers(keys, stack, absent=0)


def _global_heads(keys: ConfigKeys) -> Heads:
    local = heads(keys)
    dim = keys.maybe_int("global_head_dim", minimum=1, maximum=MAX_DIM) or _GLOBAL_HEAD_DIM
    count = keys.maybe_int("num_global_key_value_heads", minimum=1, maximum=MAX_HEADS)
    # A model that says that K and V do not share a projection keeps its KV heads everywhere.
    if count is None or not keys.flag("attention_k_eq_v", True):
        count = local.kv_heads
    return Heads(count, dim, dim)


def _interval(count: int) -> int:
    for interval in (6, 5):
        if count % interval == 0:
            return interval
    raise UserError(
        f"the configuration has no layer_types, and {count} layers fit neither interval of the published models",
        allowed=("multiples of 6", "multiples of 5"),
        fix="add layer_types",
    )


CONFIG_FAMILY = Gemma4()
