"""Shapes that hybrid and sparse families share: grouped-query heads, and the one vector of multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, ConfigKeys

FULL: Final = "full_attention"


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of one attention layer, K and V alike."""

    kv_heads: int
    head_dim: int

    def layer(self, index: int, kind: str = FULL, *, index_bytes_per_token: int = 0) -> LayerGeometry:
        """A layer that caches K and V for all tokens."""
        return LayerGeometry(
            index, kind, self.kv_heads, self.head_dim, self.head_dim, index_bytes_per_token=index_bytes_per_token
        )


def attention_shape(keys: ConfigKeys, *head_dim_keys: str) -> AttentionShape:
    """Heads from `num_attention_heads` and `num_key_value_heads`; the head size from its key, else from the width.

    Args:
        head_dim_keys: further names of the head size, asked before "head_dim".

    Raises:
        UserError: a key is missing, or the width is no multiple of the heads.
    """
    heads = keys.integer("num_attention_heads", maximum=MAX_HEADS)
    kv_heads = keys.maybe_int("num_key_value_heads", minimum=1, maximum=MAX_HEADS) or heads
    if heads % kv_heads:
        raise UserError(
            f"{heads} attention heads cannot share {kv_heads} KV heads ({keys.label('num_key_value_heads')})"
        )
    head_dim = keys.maybe_int(*head_dim_keys, "head_dim", minimum=1, maximum=MAX_DIM)
    if head_dim is None:
        hidden = keys.integer("hidden_size", maximum=MAX_DIM)
        if hidden % heads:
            raise UserError(
                f"the configuration lacks head_dim, and hidden_size {hidden} is no multiple of {heads} heads",
                fix="add head_dim",
            )
        head_dim = hidden // heads
    return AttentionShape(kv_heads, head_dim)


@dataclass(frozen=True, slots=True)
class LatentShape:
    """One latent vector a token: `rank` elements, then `rope` rotated ones."""

    rank: int
    rope: int

    def layer(self, index: int, kind: str, *, index_bytes_per_token: int = 0) -> LayerGeometry:
        """A layer that caches the vector, and no V."""
        return LayerGeometry(
            index,
            kind,
            kv_heads=1,
            k_dim=self.rank + self.rope,
            v_dim=0,
            rope_dim=self.rope,
            index_bytes_per_token=index_bytes_per_token,
        )


def latent_shape(keys: ConfigKeys) -> LatentShape:
    """The vector from `kv_lora_rank` and `qk_rope_head_dim`. Heads and head sizes say nothing of an MLA cache.

    Raises:
        UserError: one of the two is missing.
    """
    keys.ignore(
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "qk_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "q_lora_rank",
    )
    return LatentShape(
        keys.integer("kv_lora_rank", maximum=MAX_DIM), keys.integer("qk_rope_head_dim", minimum=0, maximum=MAX_DIM)
    )
