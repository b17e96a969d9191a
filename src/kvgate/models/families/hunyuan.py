"""hunyuan: with `use_cla`, `cla_share_factor` layers in a row share the KV of the first of them.

Source: Tencent's modeling_hunyuan.py of HunYuan-Large (layers i with i % cla_share_factor == 0 compute K and V). Files
name MLA sizes that `use_mla` false switches off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import FULL, attention_stack, heads, layer_count

_MLA_KEYS = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")


@dataclass(frozen=True, slots=True)
class Hunyuan:
    name: str = "hunyuan"
    model_types: tuple[str, ...] = ("hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        if keys.flag("use_mla"):
            raise UserError(f"kvgate has no verified rule for {keys.model_type!r} with use_mla")
        same = heads(keys.without(*_MLA_KEYS))
        stack = attention_stack(keys, (FULL,) * count, count, lambda kind: same)
        shared = keys.maybe_int("cla_share_factor", minimum=1, maximum=MAX_LAYERS) or 1
        if not keys.flag("use_cla") or shared == 1:
            return stack
        owners = tuple(layer for layer in stack.layers if layer.index % shared == 0)
        note = f"one of {shared} layers owns a KV cache (cla_share_factor)"
        return replace(stack, layers=owners, notes=(*stack.notes, note))


CONFIG_FAMILY = Hunyuan()
