"""mla: multi-head latent attention: one vector of `kv_lora_rank` + `qk_rope_head_dim` elements a token and layer, no V.

The engines cache the latent (vLLM, SGLang, TensorRT-LLM, llama.cpp); transformers' eager code of DeepSeek V2 stores
decompressed heads instead. `num_key_value_heads` and `head_dim` of such a file say nothing about its cache.
Source: vLLM 0.32 transformers_utils/model_arch_config_convertor.py (is_deepseek_mla, get_head_size); LongCat has two
attentions a layer (transformers 5.19 configuration_longcat_flash.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, ConfigKeys
from kvgate.models.config_layers import FULL, attention_stack, heads, layer_count
from kvgate.models.mtp import mtp_count

_OF_HEADS = ("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "v_head_dim")
#: Keys of such files that do not change the latent.
IGNORED = (
    *_OF_HEADS,
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "use_mla",
    "mla_scale_q_lora",
    "mla_scale_kv_lora",
)


def latent(keys: ConfigKeys, index: int) -> LayerGeometry:
    """The latent cache of one layer.

    Raises:
        UserError: `kv_lora_rank` or `qk_rope_head_dim` is missing.
    """
    rank = keys.integer("kv_lora_rank", maximum=MAX_DIM)
    rope = keys.integer("qk_rope_head_dim", maximum=MAX_DIM)
    keys.ignore(*IGNORED)
    return LayerGeometry(index, "mla", 1, rank + rope, 0, rope_dim=rope)


@dataclass(frozen=True, slots=True)
class Mla:
    """All layers keep latents.

    Attributes:
        per_layer: attentions in one layer, each with its own latent.
    """

    name: str
    model_types: tuple[str, ...]
    per_layer: int = 1

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        # LongCat's `num_hidden_layers`, where it is there, counts attentions.
        counted = keys.without("num_hidden_layers") if self.per_layer > 1 and keys.has("num_layers") else keys
        count, extra = layer_count(counted), mtp_count(keys)
        if not keys.flag("use_mla", True):
            # The small DeepSeek-VL2 and DeepSeek-OCR: the same model_type, ordinary heads, these keys 0 or null.
            plain = keys.without("kv_lora_rank", "q_lora_rank", *_OF_HEADS)
            same = heads(plain)
            return attention_stack(plain, (FULL,) * count, count, lambda kind: same)
        made = tuple(latent(keys, i) for i in range(count) for _ in range(self.per_layer))
        return ConfigLayers(made, count, tuple(latent(keys, count + i) for i in range(extra)))


CONFIG_FAMILY = (
    Mla(
        name="mla",
        model_types=(
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_vl_v2",
            "deepseek_mtp",
            "kimi_k2",
            "kimi_k25",
            "kimi_vl",
            "glm4_moe_lite",
            "mistral4",
            "pangu_ultra_moe",
            "axk1",
        ),
    ),
    Mla(name="longcat_flash", model_types=("longcat_flash",), per_layer=2),
)
