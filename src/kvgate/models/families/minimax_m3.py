"""minimax_m3: grouped-query attention with block-sparse layers (MSA) that keep an index key beside K and V.

`sparse_attention_config` has a number a layer in `sparse_attention_freq`: 0 is plain, anything else sparse. An index
key is one head of `sparse_index_dim` in 16 bits, whole on every rank; `sparse_disable_index_value` says that there is
no index value beside it. Files of the transformers port say the same in `layer_types` and `index_head_dim`.
Sources: the model's configuration file; SGLang 0.5.23's pool for minimax_m3 and vLLM 0.32 minimax_m3.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, ConfigKeys
from kvgate.models.config_layers import FULL, heads, layer_count
from kvgate.models.layer_words import check_length, layer_words
from kvgate.models.mtp import mtp_count

SPARSE = "sparse_attention"
_SPARSE_WORD = "minimax_m3_sparse"
#: Index keys stay in bfloat16 unless the engine runs its FP8 path.
_KEY_BYTES = 2


@dataclass(frozen=True, slots=True)
class MiniMaxM3:
    name: str = "minimax_m3"
    model_types: tuple[str, ...] = ("minimax_m3", "minimax_m3_text", "minimax_m3_vl")

    def layers(self, keys: ConfigKeys) -> ConfigLayers:
        count = layer_count(keys)
        keys.ignore("dense_intermediate_size", "shared_intermediate_size")
        shape = heads(keys)
        sparse, dim = _sparse_layers(keys, count)
        layers = tuple(
            replace(shape.layer(n), kind=SPARSE, index_bytes_per_token=_KEY_BYTES * dim)
            if is_sparse
            else shape.layer(n)
            for n, is_sparse in enumerate(sparse)
        )
        notes: tuple[str, ...] = (
            ("index keys are counted in bfloat16; an engine's FP8 path halves them",) if any(sparse) else ()
        )
        # Its own file gives 1 for num_nextn_predict_layers beside 7 modules; nothing is sized from either.
        counted = keys.without("num_nextn_predict_layers") if keys.has("num_mtp_modules") else keys
        if blocks := mtp_count(counted):
            notes += (f"{blocks} MTP modules are not sized: kvgate has no rule for what they cache",)
        return ConfigLayers(layers, count, (), notes)


def _sparse_layers(keys: ConfigKeys, count: int) -> tuple[tuple[bool, ...], int]:
    """Which layers are sparse, and the elements of an index key."""
    words = layer_words(keys, "layer_types", count, (FULL, _SPARSE_WORD))
    by_word = None if words is None else tuple(word == _SPARSE_WORD for word in words)
    own_dim = keys.maybe_int("index_head_dim", minimum=1, maximum=MAX_DIM)
    keys.ignore("index_n_heads", "index_block_size", "index_topk_blocks", "index_local_blocks")
    config = keys.mapping("sparse_attention_config")
    if config is None:
        if by_word is None:
            raise keys.lacks("sparse_attention_config", "layer_types")
        if any(by_word) and own_dim is None:
            raise keys.lacks("index_head_dim")
        return by_word, own_dim or 0
    sparse = _by_config(config, count, by_word)
    if by_word is not None and by_word != sparse:
        raise UserError(f"{config.label('sparse_attention_freq')} and layer_types disagree on which layers are sparse")
    return sparse, config.integer("sparse_index_dim", maximum=MAX_DIM) if any(sparse) else 0


def _by_config(config: ConfigKeys, count: int, by_word: tuple[bool, ...] | None) -> tuple[bool, ...]:
    config.ignore(
        "sparse_num_index_heads",
        "sparse_topk_blocks",
        "sparse_block_size",
        "sparse_init_block",
        "sparse_local_block",
        "sparse_score_type",
        "sparse_index_dim",
    )
    freq, mute = config.ints("sparse_attention_freq"), config.ints("sparse_disable_index_value")
    if not config.flag("use_sparse_attention", True):
        return (False,) * count
    if freq is None:
        if by_word is None:
            raise config.lacks("sparse_attention_freq")
        sparse = by_word
    else:
        check_length(config, "sparse_attention_freq", len(freq), count)
        sparse = tuple(bool(n) for n in freq)
    if mute is not None:
        check_length(config, "sparse_disable_index_value", len(mute), count)
        for n, (is_sparse, off) in enumerate(zip(sparse, mute, strict=True)):
            if is_sparse and not off:
                raise UserError(
                    f"{config.label('sparse_disable_index_value')} keeps an index value in layer {n}: kvgate has no "
                    "rule for its size"
                )
    return sparse


CONFIG_FAMILY = MiniMaxM3()
