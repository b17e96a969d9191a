"""mpt: sizes of MPT and DBRX, whose KV heads lie in `attn_config`.

Source: transformers 5.19 configuration_mpt.py, configuration_dbrx.py; llm-foundry's attention types.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_HEADS, ConfigKeys
from kvgate.models.config_layers import FULL, Heads, attention_heads, attention_stack, head_dim, layer_count

_ONE_HEAD, _ALL_HEADS = "multiquery_attention", "multihead_attention"


@dataclass(frozen=True, slots=True)
class Mpt:
    name: str = "mpt"
    model_types: tuple[str, ...] = ("mpt", "dbrx")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count, dim = layer_count(keys), head_dim(keys)
        # Written by newer versions of transformers, which do not read it for these models.
        keys.ignore("num_key_value_heads")
        same = Heads(_kv_heads(keys), dim, dim)
        return attention_stack(keys, (FULL,) * count, count, lambda kind: same)


def _kv_heads(keys: ConfigKeys) -> int:
    query = attention_heads(keys)
    if query is None:
        raise keys.lacks("n_heads")
    inner = keys.mapping("attn_config")
    if inner is None:
        return query
    inner.ignore("attn_impl", "attn_uses_sequence_id", "sliding_window_size")
    window = inner.raw("sliding_window_size")
    if window not in (None, -1, 0):
        raise UserError(f"kvgate has no rule for {inner.label('sliding_window_size')} = {window!r}", allowed=("-1",))
    kind = inner.text("attn_type")
    if kind == _ONE_HEAD:
        return 1
    if kind == _ALL_HEADS:
        return query
    count = inner.maybe_int("kv_n_heads", minimum=1, maximum=MAX_HEADS) or query
    if query % count:
        raise UserError(f"{query} attention heads do not divide into {count} KV heads")
    return count


CONFIG_FAMILY = Mpt()
