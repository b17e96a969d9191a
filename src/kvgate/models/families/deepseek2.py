"""deepseek2: multi-head latent attention (DeepSeek V2 and V3, Kimi K2): one latent vector a token and layer, no V.

Files converted before llama.cpp absorbed the projections lack the *_mla keys, and cache decompressed heads; they are
refused, because engines treat them differently. Source: llama.cpp src/models/deepseek2.cpp, src/llama-kv-cache.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.layers import attention_layers, refuse_unknown_keys

_RANK, _MLA = "attention.kv_lora_rank", ("attention.key_length_mla", "attention.value_length_mla")


@dataclass(frozen=True, slots=True)
class DeepSeek2:
    name: str = "deepseek2"
    architectures: tuple[str, ...] = ("deepseek2",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, (_RANK, "attention.q_lora_rank", *_MLA))
        if not all(keys.has(name) for name in _MLA):
            raise UserError(
                f"this {keys.architecture} file has no {_MLA[0]}: it was converted before llama.cpp cached latents",
                fix="take a newer conversion of the model",
            )
        latent = keys.integer(_RANK) + keys.integer("rope.dimension_count")
        found = attention_layers(keys)
        if any(layer.kv_heads != 1 or layer.k_dim != latent for layer in found):
            raise UserError(
                f"this {keys.architecture} file does not cache one latent of {latent} elements a layer: no rule for it"
            )
        return tuple(replace(layer, kind="mla", v_dim=0) for layer in found)


FAMILY = DeepSeek2()
