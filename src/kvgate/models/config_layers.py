"""Shapes that families of configurations share: head counts under all their names, windows, MTP layers.

Names and defaults: transformers 5.19 (`models/*/configuration_*.py`), vLLM 0.32
(`transformers_utils/model_arch_config_convertor.py`: order of the KV head names, `multi_query`, head size rules).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.text import one_line
from kvgate.models.config_family import ConfigLayers
from kvgate.models.config_keys import MAX_DIM, MAX_HEADS, MAX_LAYERS, ConfigKeys
from kvgate.models.mtp import mtp_count

#: Kinds of layers in geometry's words.
FULL: Final = "full_attention"
SLIDING: Final = "sliding_window"
CHUNKED: Final = "chunked_attention"

_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_KV_HEADS: Final = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
    "num_query_groups",
    "n_kv_heads",
    "kv_n_heads",
)
_HEAD_DIMS: Final = ("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head", "head_size", "d_head")
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "model_dim", "n_embed")
WINDOWS: Final = ("sliding_window", "sliding_window_size")

#: What configurations call a layer that sees all tokens, a window, a chunk.
_WORDS: Final = {
    "full_attention": FULL,
    "attention": FULL,
    "full": FULL,
    "global": FULL,
    "global_attention": FULL,
    "sliding_attention": SLIDING,
    "sliding_window": SLIDING,
    "sliding": SLIDING,
    "local": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": CHUNKED,
}


@dataclass(frozen=True, slots=True)
class Heads:
    """KV heads of a layer and the elements of each."""

    kv_heads: int
    k_dim: int
    v_dim: int

    def layer(self, index: int, kind: str = FULL, window_tokens: int | None = None) -> LayerGeometry:
        """The layer that has these heads."""
        window = None if kind == FULL else window_tokens
        return LayerGeometry(index, kind, self.kv_heads, self.k_dim, self.v_dim, window, chunked=kind == CHUNKED)


def layer_count(keys: ConfigKeys) -> int:
    """Transformer layers in all, without those of MTP."""
    return keys.integer(*_LAYERS, maximum=MAX_LAYERS)


def attention_heads(keys: ConfigKeys) -> int | None:
    """Query heads; None where the configuration gives only KV heads."""
    return keys.maybe_int(*_HEADS, minimum=1, maximum=MAX_HEADS)


def kv_heads(keys: ConfigKeys) -> int:
    """KV heads of a layer.

    `multi_query` without a newer decoder (Falcon-7B, GPT-BigCode) is one head, whatever else is said; without any key
    for KV heads each query head has its own.

    Raises:
        UserError: neither is there, or KV heads do not divide the query heads.
    """
    query = attention_heads(keys)
    newer = keys.flag("new_decoder_architecture")
    one = keys.flag("multi_query")
    # ChatGLM gives a group count that counts only with its own flag.
    grouped = keys.flag("multi_query_attention", True)
    names = _KV_HEADS if grouped else tuple(n for n in _KV_HEADS if n != "multi_query_group_num")
    count = keys.maybe_int(*names, minimum=1, maximum=MAX_HEADS)
    keys.ignore(*_KV_HEADS)
    if one and not newer:
        return 1
    if count is None:
        if query is None:
            raise keys.lacks(_KV_HEADS[2], _HEADS[0])
        return query
    if query is not None and query % count:
        raise UserError(
            f"{query} attention heads do not divide into {count} KV heads",
            fix="give the config.json as the model's authors published it",
        )
    return count


def head_dim(keys: ConfigKeys) -> int:
    """Elements of one K head: the key wins, else hidden size over query heads.

    Raises:
        UserError: what is needed is missing, or the division leaves a rest.
    """
    dim = keys.maybe_int(*_HEAD_DIMS, minimum=1, maximum=MAX_DIM)
    if dim is not None:
        return dim
    query = attention_heads(keys)
    if query is None:
        raise keys.lacks(_HEAD_DIMS[0], *_HEADS[:1])
    hidden = keys.integer(*_HIDDEN, maximum=MAX_DIM * 64)
    if hidden % query:
        raise UserError(
            f"the configuration gives no head_dim, and {hidden} elements do not divide into {query} heads",
            fix="add head_dim",
        )
    return hidden // query


def heads(keys: ConfigKeys) -> Heads:
    """KV heads with their sizes; V is as wide as K unless `v_head_dim` says otherwise."""
    k_dim = head_dim(keys)
    v_dim = keys.maybe_int("v_head_dim", minimum=1, maximum=MAX_DIM)
    return Heads(kv_heads(keys), k_dim, k_dim if v_dim is None else v_dim)


def listed_kinds(keys: ConfigKeys, count: int, name: str = "layer_types") -> tuple[str, ...] | None:
    """The kind of every layer from a list of words, MTP layers at its end included; None where there is no list.

    Raises:
        UserError: a word without a rule, or a list of another length.
    """
    words = keys.words(name)
    if not words:
        return None
    if len(words) < count:
        raise UserError(f"{keys.label(name)} has {len(words)} entries for {count} layers")
    if len(words) > count and len(words) > count + mtp_count(keys):
        raise UserError(f"{keys.label(name)} has {len(words)} entries for {count} layers")
    return tuple(kind_of(keys, name, word) for word in words)


def kind_of(keys: ConfigKeys, name: str, word: str) -> str:
    """Geometry's word for a configuration's word.

    Raises:
        UserError: a word without a rule here.
    """
    if word not in _WORDS:
        model = f" of {keys.model_type!r}" if keys.model_type else ""
        raise UserError(
            f"{keys.label(name)} has the layer word {one_line(word, 40)!r}, for which kvgate has no rule{model}",
            allowed=_WORDS,
            fix="give a GGUF file of the model, or a model of another architecture",
        )
    return _WORDS[word]


def every_nth_full(count: int, period: int) -> tuple[str, ...]:
    """Layer i sees all tokens where (i + 1) is a multiple of `period`; the others have a window."""
    return tuple(FULL if (i + 1) % period == 0 else SLIDING for i in range(count))


def window_tokens(keys: ConfigKeys) -> int:
    """The size of the windows, where there are any.

    Raises:
        UserError: missing, zero or null.
    """
    return keys.integer(*WINDOWS)


def attention_stack(
    keys: ConfigKeys,
    kinds: Sequence[str],
    count: int,
    heads_of: Callable[[str], Heads],
    *,
    chunk_tokens: int | None = None,
    notes: tuple[str, ...] = (),
) -> ConfigLayers:
    """Layers of plain attention with windows; what a list has beyond `count` are the kinds of MTP layers.

    MTP layers without a word of their own are of the kind that sees all tokens.

    Args:
        kinds: FULL, SLIDING or CHUNKED a layer. heads_of: heads by kind. chunk_tokens: size of chunks.
    """
    window = window_tokens(keys) if SLIDING in kinds else None
    if window is None:
        notes = (*notes, *_unused_window(keys))
    sizes = {FULL: None, SLIDING: window, CHUNKED: chunk_tokens}
    extra = mtp_count(keys)
    all_kinds = (*kinds, *(FULL,) * (count + extra - len(kinds)))[: count + extra]
    made = [heads_of(kind).layer(i, kind, sizes[kind]) for i, kind in enumerate(all_kinds)]
    own = overridden(keys, made[:count])
    return ConfigLayers(own, count, tuple(made[count:]), notes)


def overridden(keys: ConfigKeys, layers: Sequence[LayerGeometry]) -> tuple[LayerGeometry, ...]:
    """`layers` with what `per_layer_config` sets apart (transformers 5.1x writes it for heterogeneous models).

    Raises:
        UserError: an override without a rule, or of a layer that is not there.
    """
    every = keys.mapping("per_layer_config")
    made = {layer.index: layer for layer in layers}
    for name in every.names() if every is not None else ():
        own = every.mapping(name) if every is not None else None
        if own is None or not name.isdecimal() or int(name[:9]) not in made:
            raise UserError(f"per_layer_config has an entry {one_line(name, 40)!r}, which is no layer of the model")
        made[int(name)] = _override(own, made[int(name)])
    return tuple(made.values())


def _override(own: ConfigKeys, layer: LayerGeometry) -> LayerGeometry:
    """One layer with its own head sizes, KV heads or window; query heads change nothing."""
    own.ignore("num_attention_heads")
    k_dim = own.maybe_int(*_HEAD_DIMS, minimum=1, maximum=MAX_DIM) or layer.k_dim
    v_dim = own.maybe_int("v_head_dim", minimum=1, maximum=MAX_DIM)
    if v_dim is None:
        v_dim = k_dim if layer.v_dim == layer.k_dim else layer.v_dim
    count = own.maybe_int("num_key_value_heads", minimum=1, maximum=MAX_HEADS) or layer.kv_heads
    layer = replace(layer, kv_heads=count, k_dim=k_dim, v_dim=v_dim)
    if "sliding_window" in own.values:
        window = own.maybe_int("sliding_window", minimum=1)
        layer = replace(layer, kind=FULL if window is None else SLIDING, window_tokens=window, chunked=False)
    return layer


def _unused_window(keys: ConfigKeys) -> tuple[str, ...]:
    """A note where the file names a window that no layer has."""
    window = keys.maybe_int(*WINDOWS)
    keys.ignore("use_sliding_window", "max_window_layers", "sliding_window_pattern", *WINDOWS)
    return (f"sliding_window {window} is in the file, and no layer uses it",) if window else ()
