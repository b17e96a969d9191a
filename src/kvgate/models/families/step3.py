"""step3: KV heads are `num_attention_groups`; layers with a window may have heads of their own.

`attention_other_setting` gives KV heads and head size of the layers that it names; `layer_types` may list MTP layers at
its end. Source: vLLM 0.32 models/step3p5.py; transformers 5.19 configuration_step3p7.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import (
    FULL,
    Heads,
    attention_stack,
    heads,
    kind_of,
    layer_count,
    listed_kinds,
)


@dataclass(frozen=True, slots=True)
class Step3:
    name: str = "step3"
    model_types: tuple[str, ...] = (
        "step3",
        "step3_text",
        "step3_vl",
        "step3p5",
        "step3p7",
        "step3p7_text",
    )

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        kinds = listed_kinds(keys, count) or (FULL,) * count
        same = heads(keys)
        other = _other_heads(keys, same)
        # Widths of queries, of experts and of RoPE; and the query heads of layers with a window.
        keys.ignore(
            "share_q_dim", "share_expert_dim", "share_expert_dims", "num_sliding_attention_heads", "att_impl_type"
        )
        return attention_stack(keys, kinds, count, lambda kind: other.get(kind, same))


def _other_heads(keys: ConfigKeys, same: Heads) -> dict[str, Heads]:
    """Heads by kind of layer, where the configuration sets one kind apart."""
    other = keys.mapping("attention_other_setting")
    if other is None or not other.values:
        return {}
    word = other.text("attention_type", default="sliding_attention")
    count = other.maybe_int("num_attention_groups", minimum=1, maximum=MAX_HEADS) or same.kv_heads
    dim = other.maybe_int("head_dim", minimum=1, maximum=MAX_DIM) or same.k_dim
    other.ignore("num_attention_heads", "true_head_dim")
    return {
        kind_of(other, "attention_type", word): Heads(count, dim, dim if "head_dim" in other.values else same.v_dim)
    }


CONFIG_FAMILY = Step3()
