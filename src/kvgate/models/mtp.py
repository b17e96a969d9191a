"""Layers of multi-token prediction that a configuration announces: cached only while speculation is on.

A family gives the layer that its MTP block is made of; here it is counted and numbered. Sources: DeepSeek-V3's
modeling code (`num_nextn_predict_layers`), Qwen3.5's (`mtp_num_hidden_layers`), MiniMax-M2's (`num_mtp_modules` of
`mtp_transformer_layers` each). In GGUF files these blocks stand inside `block_count`, see `models/layers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_keys import ConfigKeys

#: Names under which configurations announce how many there are.
COUNT_KEYS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules")
#: The largest known is 7 (MiniMax-M3); a bound on what a file may announce.
MAX_MODULES: Final = 64


def mtp_count(keys: ConfigKeys) -> int:
    """Blocks of multi-token prediction; 0 where the configuration has none or switches them off.

    Raises:
        UserError: senseless counts, or two keys that disagree.
    """
    keys.ignore("mtp_use_dedicated_embeddings")
    counts = {name: keys.maybe_int(name, maximum=MAX_MODULES) for name in COUNT_KEYS}
    given = {name: count for name, count in counts.items() if count is not None}
    each = keys.maybe_int("mtp_transformer_layers", minimum=1, maximum=MAX_MODULES) or 1
    if len(set(given.values())) > 1:
        raise UserError(
            "the configuration counts its MTP layers twice: "
            + ", ".join(f"{keys.label(name)} is {count}" for name, count in given.items()),
            fix="leave one of them",
        )
    if not keys.flag("use_mtp", True):
        return 0
    return next(iter(given.values()), 0) * each


def mtp_layers(
    keys: ConfigKeys, block: LayerGeometry | Sequence[LayerGeometry], layer_count: int
) -> tuple[LayerGeometry, ...]:
    """The announced blocks, numbered on from `layer_count`.

    Args:
        block: the cache of one block, or its caches where it has several; their own index is not used.

    Raises:
        UserError: senseless counts.
    """
    caches = (block,) if isinstance(block, LayerGeometry) else tuple(block)
    return tuple(replace(cache, index=layer_count + n) for n in range(mtp_count(keys)) for cache in caches)
