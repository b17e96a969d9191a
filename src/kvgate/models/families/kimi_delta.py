"""kimi_delta: Kimi Delta Attention with latent attention in between (Kimi Linear, Kimi K3).

`linear_attn_config` numbers its layers from 1: `full_attn_layers` keep an MLA latent, `kda_layers` three convolutions
and one square matrix a head, which is float32 whatever is asked for. The lists must share out all layers.
Sources: vLLM 0.32 kimi_linear.py, transformers_utils/configs/kimi_linear.py. In GGUF files (kimi-linear) a layer with
head_count_kv 0 is a KDA layer: llama.cpp src/models/kimi-linear.cpp; files that cache decompressed heads are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import layer_count
from kvgate.models.families.mla import latent
from kvgate.models.gguf_states import KDA_KEYS, kda_gguf_state, with_states, without_kv
from kvgate.models.layers import attention_layers, refuse_unknown_keys
from kvgate.models.mtp import mtp_layers
from kvgate.models.state_parts import kda_state

KIND, LATENT = "kda", "mla"
_FULL, _KDA = "full_attn_layers", "kda_layers"
_RANK, _MLA = "attention.kv_lora_rank", ("attention.key_length_mla", "attention.value_length_mla")


@dataclass(frozen=True, slots=True)
class KimiDelta:
    name: str = "kimi_delta"
    model_types: tuple[str, ...] = ("kimi_linear", "kimi_k3")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        linear = keys.mapping("linear_attn_config")
        if linear is None:
            raise keys.lacks("linear_attn_config")
        # Blocks of residuals between layers, not of a cache.
        keys.ignore("attn_res_block_size", "mla_use_nope", "mla_use_output_gate")
        linear.ignore("gate_lower_bound", "use_full_rank_gate")
        states = kda_state(
            linear.integer("num_heads", maximum=MAX_HEADS),
            linear.integer("head_dim", maximum=MAX_DIM),
            linear.integer("short_conv_kernel_size", maximum=MAX_DIM),
        )
        full, notes = _full_layers(linear, count)
        layers = tuple(
            latent(keys, n) if n in full else LayerGeometry(n, KIND, 0, 0, 0, state=states) for n in range(count)
        )
        return ConfigLayers(layers, count, mtp_layers(keys, latent(keys, 0), count), notes)


def _full_layers(linear: ConfigKeys, count: int) -> tuple[frozenset[int], tuple[str, ...]]:
    """Layers with a latent, numbered from 0; one of the two lists alone says what the other would."""
    every = range(1, count + 1)
    full, kda = (linear.ints(name, minimum=1, maximum=count) for name in (_FULL, _KDA))
    if full is None and kda is None:
        raise linear.lacks(_FULL, _KDA)
    notes: tuple[str, ...] = ()
    if full is None or kda is None:
        notes = (f"no {_FULL if full is None else _KDA} in {linear.where}: all layers that the other list leaves",)
        full = full if full is not None else tuple(n for n in every if n not in (kda or ()))
        kda = kda if kda is not None else tuple(n for n in every if n not in full)
    if sorted(full + kda) != list(every):
        raise UserError(
            f"{linear.label(_FULL)} and {_KDA} do not name each of the layers 1 to {count} once",
            fix="give the config.json as the model's authors published it",
        )
    return frozenset(n - 1 for n in full), notes


@dataclass(frozen=True, slots=True)
class KimiDeltaGguf:
    name: str = "kimi_delta"
    architectures: tuple[str, ...] = ("kimi-linear",)

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, (*KDA_KEYS, _RANK, "attention.q_lora_rank", *_MLA))
        full = attention_layers(keys)
        rank = keys.integer(_RANK)
        if not all(keys.has(name) for name in _MLA) or any(
            layer.kv_heads != 1 or layer.k_dim <= rank for layer in full
        ):
            raise UserError(
                f"this {keys.architecture} file does not cache one latent a layer: kvgate has no rule for it",
                fix="take a newer conversion of the model",
            )
        latents = tuple(replace(x, kind=LATENT, v_dim=0, rope_dim=x.k_dim - rank) for x in full)
        return with_states(latents, without_kv(keys, full), kda_gguf_state(keys), KIND)


FAMILY = KimiDeltaGguf()
CONFIG_FAMILY = KimiDelta()
