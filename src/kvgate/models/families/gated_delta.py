"""gated_delta: Gated DeltaNet layers with full attention in between (Qwen3-Next, Qwen3.5, Qwen3.6).

A linear layer keeps a convolution state and one matrix a value head, and no KV cache. Which layers are full says
`layer_types`, else `full_attention_interval` n: layer i where (i + 1) % n == 0. MTP blocks are full attention.
Sources: transformers Qwen3NextConfig and Qwen3_5TextConfig; vLLM 0.32 qwen3_next.py, qwen3_5.py. In GGUF files
(qwen3next, qwen35, qwen35moe) the interval is 4 where the file is silent, and llama.cpp keeps both states in float32:
src/models/qwen3next.cpp, qwen35.cpp, qwen35moe.cpp, src/llama-hparams.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.arch_keys import ArchKeys
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import FULL, heads, layer_count
from kvgate.models.gguf_states import GROUPED_SSM_KEYS, grouped_state, layer_flags, with_states
from kvgate.models.layer_words import layer_words
from kvgate.models.layers import attention_layers, refuse_unknown_keys
from kvgate.models.mtp import mtp_layers
from kvgate.models.state_parts import StateDtype, delta_net_state, state_dtype

LINEAR = "linear_attention"
INTERVAL, FLAGS = "full_attention_interval", "attention.recurrent_layers"
#: Where the file names neither, llama.cpp takes every fourth layer.
_GGUF_INTERVAL = 4


@dataclass(frozen=True, slots=True)
class GatedDelta:
    name: str = "gated_delta"
    model_types: tuple[str, ...] = (
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
    )

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        words = _words(keys, count)
        shape = heads(keys)
        # The reference implementation's recurrence is float32; a file without the key says nothing.
        ssm = state_dtype(keys, "f32")
        states = delta_net_state(
            keys.integer("linear_num_key_heads", maximum=MAX_HEADS),
            keys.integer("linear_key_head_dim", maximum=MAX_DIM),
            keys.integer("linear_num_value_heads", maximum=MAX_HEADS),
            keys.integer("linear_value_head_dim", maximum=MAX_DIM),
            keys.integer("linear_conv_kernel_dim", maximum=MAX_DIM),
            ssm,
        )
        layers = tuple(
            shape.layer(n) if word == FULL else LayerGeometry(n, LINEAR, 0, 0, 0, state=states)
            for n, word in enumerate(words)
        )
        return ConfigLayers(layers, count, mtp_layers(keys, shape.layer(0), count), _notes(words, ssm))


def _notes(words: tuple[str, ...], ssm: StateDtype) -> tuple[str, ...]:
    return ssm.notes if LINEAR in words else ()


def _words(keys: ConfigKeys, count: int) -> tuple[str, ...]:
    interval = keys.maybe_int(INTERVAL, minimum=1, maximum=MAX_LAYERS)
    words = layer_words(keys, "layer_types", count, (LINEAR, FULL))
    if words is None:
        if interval is None:
            raise keys.lacks("layer_types", INTERVAL)
        words = tuple(FULL if (n + 1) % interval == 0 else LINEAR for n in range(count))
    return words


@dataclass(frozen=True, slots=True)
class GatedDeltaGguf:
    name: str = "gated_delta"
    architectures: tuple[str, ...] = ("qwen3next", "qwen35", "qwen35moe")

    def layers(self, keys: ArchKeys) -> tuple[LayerGeometry, ...]:
        refuse_unknown_keys(keys, (*GROUPED_SSM_KEYS, INTERVAL, FLAGS))
        full = attention_layers(keys)
        flags = layer_flags(keys, FLAGS)
        interval = keys.maybe_int(INTERVAL)
        interval = _GGUF_INTERVAL if interval is None else interval
        if flags is None and interval < 1:
            raise UserError(f"{keys.architecture}.{INTERVAL} is {interval}")
        linear = [n for n in range(_main_layers(keys)) if (flags[n] if flags is not None else (n + 1) % interval != 0)]
        return with_states(full, linear, grouped_state(keys), LINEAR)


def _main_layers(keys: ArchKeys) -> int:
    return keys.integer("block_count") - (keys.maybe_int("nextn_predict_layers") or 0)


FAMILY = GatedDeltaGguf()
CONFIG_FAMILY = GatedDelta()
