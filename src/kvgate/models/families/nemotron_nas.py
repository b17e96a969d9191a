"""nemotron_nas: each block has its own attention, found by a search: `block_configs[i].attention`.

KV heads are `num_attention_heads` / `n_heads_in_group`; a block with `no_op` or `replace_with_linear` keeps no KV.
Blocks with a window, sinks or another stand-in are refused. Source: configuration_decilm.py and block_config.py of
nvidia/Llama-3_3-Nemotron-Super-49B-v1; vLLM 0.32 models/nemotron_nas.py. The first DeciLM has no blocks, but KV heads
a layer in `num_key_value_heads_per_layer`: configuration_decilm.py of Deci/DeciLM-7B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import Heads, attention_heads, head_dim, layer_count
from kvgate.models.layer_words import check_length

_PER_LAYER = "num_key_value_heads_per_layer"
_KNOWN = frozenset({"n_heads_in_group", "no_op", "replace_with_linear"})


@dataclass(frozen=True, slots=True)
class NemotronNas:
    name: str = "nemotron_nas"
    model_types: tuple[str, ...] = ("nemotron-nas", "deci")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count, dim, query = layer_count(keys), head_dim(keys), attention_heads(keys)
        if query is None:
            raise keys.lacks("num_attention_heads")
        keys.ignore("num_key_value_heads")
        listed = keys.ints(_PER_LAYER, minimum=1, maximum=MAX_HEADS)
        if listed is not None and not keys.has("block_configs"):
            return ConfigLayers(_per_layer(keys, listed, count, query, dim), count)
        groups = _groups(keys, count)
        made: list[LayerGeometry] = []
        for index, group in enumerate(groups):
            if group is None:
                continue
            if query % group:
                raise UserError(f"block {index}: {query} attention heads do not divide into groups of {group}")
            made.append(Heads(query // group, dim, dim).layer(index))
        return ConfigLayers(tuple(made), count)


def _per_layer(
    keys: ConfigKeys, listed: tuple[int, ...], count: int, query: int, dim: int
) -> tuple[LayerGeometry, ...]:
    check_length(keys, _PER_LAYER, len(listed), count)
    for index, heads in enumerate(listed):
        if query % heads:
            raise UserError(f"layer {index}: {query} attention heads do not divide into {heads} KV heads")
    return tuple(Heads(heads, dim, dim).layer(index) for index, heads in enumerate(listed))


def _groups(keys: ConfigKeys, count: int) -> tuple[int | None, ...]:
    """Query heads in a group, a block; None for a block without KV."""
    blocks = keys.raw("block_configs")
    if not isinstance(blocks, (list, tuple)) or len(blocks) != count:
        raise UserError(f"{keys.label('block_configs')} is no list of {count} blocks")
    return tuple(_group(keys, index, block) for index, block in enumerate(blocks))


def _group(keys: ConfigKeys, index: int, block: object) -> int | None:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping):
        raise UserError(f"block_configs[{index}] has no object 'attention'")
    place = ConfigKeys(attention, where=f"block_configs[{index}].attention", model_types=keys.model_types)
    for name in place.names():
        if name not in _KNOWN and attention[name]:
            raise UserError(f"kvgate has no rule for {place.label(name)[:80]!r}: it may change what is cached")
    if place.flag("no_op") or place.flag("replace_with_linear"):
        return None
    return place.integer("n_heads_in_group", maximum=MAX_HEADS)


CONFIG_FAMILY = NemotronNas()
