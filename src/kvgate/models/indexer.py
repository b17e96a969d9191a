"""Index keys of sparse attention: bytes of one token's row, in a format that no recipe changes."""

from __future__ import annotations

from typing import Final

from kvgate.core.errors import UserError
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys

#: Elements that share one float32 scale. vLLM 0.32: indexer cache, head_dim + head_dim // 128 * 4.
SCALE_BLOCK: Final = 128
_SCALE_BYTES: Final = 4


def index_row_bytes(keys: ConfigKeys) -> int:
    """FP8 key of `index_head_dim` elements with its scales: 128 elements take 132 bytes. One head, whole on every rank.

    Raises:
        UserError: the key is missing, or its size has no rule.
    """
    dim = keys.integer("index_head_dim", maximum=MAX_DIM)
    keys.maybe_int("index_n_heads", minimum=1, maximum=MAX_HEADS)
    keys.maybe_int("index_topk", minimum=1)
    if dim % SCALE_BLOCK:
        raise UserError(
            f"{keys.label('index_head_dim')} is {dim}: index keys have one scale per {SCALE_BLOCK} elements, and "
            "kvgate has no rule for a part of that"
        )
    return dim + dim // SCALE_BLOCK * _SCALE_BYTES
