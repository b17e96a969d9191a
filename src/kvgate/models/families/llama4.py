"""llama4: three layers that attend inside chunks of 8,192 tokens, then one that sees all tokens.

llama.cpp has the chunk size in its code and keeps such layers in its sliding cache; a window of 0 in the file turns
chunks off. Source: llama.cpp src/models/llama4.cpp.

A `config.json` says it with `layer_types`, or with `no_rope_layers` (1 is a layer with RoPE and chunks), or with
`no_rope_layer_interval` (4 where absent); `attention_chunk_size` null turns chunks off, absent it is 8,192.
Source: transformers 5.19 configuration_llama4.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_LAYERS, ConfigKeys
from kvgate.models.config_layers import CHUNKED, FULL, attention_stack, heads, layer_count, listed_kinds
from kvgate.models.layers import EveryNthFull

_CHUNK_TOKENS = 8192

FAMILY = EveryNthFull(
    name="llama4",
    architectures=("llama4",),
    period=4,
    window_tokens=8192,
    kind="chunked_attention",
    fixed_window=True,
)


@dataclass(frozen=True, slots=True)
class Llama4Config:
    """Layers with RoPE attend inside a chunk that starts anew; the others see all tokens."""

    name: str = "llama4"
    model_types: tuple[str, ...] = ("llama4", "llama4_text")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        chunk = self._chunk(keys)
        listed = listed_kinds(keys, count)
        kinds = self._kinds(keys, count) if listed is None else listed
        keys.ignore("no_rope_layers", "no_rope_layer_interval")
        if chunk is None:
            kinds = tuple(FULL if kind == CHUNKED else kind for kind in kinds)
        same = heads(keys)
        return attention_stack(keys, kinds, count, lambda kind: same, chunk_tokens=chunk)

    def _chunk(self, keys: ConfigKeys) -> int | None:
        name = "attention_chunk_size"
        if name in keys.values and not keys.has(name):
            keys.ignore(name)
            return None
        return keys.maybe_int(name, minimum=1) or _CHUNK_TOKENS

    def _kinds(self, keys: ConfigKeys, count: int) -> tuple[str, ...]:
        with_rope = keys.ints("no_rope_layers", maximum=1)
        if not with_rope:
            interval = keys.maybe_int("no_rope_layer_interval", minimum=1, maximum=MAX_LAYERS) or 4
            with_rope = tuple(int((i + 1) % interval != 0) for i in range(count))
        if len(with_rope) != count:
            raise UserError(f"{keys.label('no_rope_layers')} has {len(with_rope)} entries for {count} layers")
        return tuple(CHUNKED if rope else FULL for rope in with_rope)


CONFIG_FAMILY = Llama4Config()
