"""Whether an engine can be asked for a recipe at all: a price exists for every recipe, a reservation only for these.

vLLM, SGLang and TensorRT-LLM have one cache type for K and V, no residual window and no transform of their own; only
vLLM keeps layers native, by number or by the one kind that it knows. llama.cpp's rule says itself what it refuses.
Sources: vLLM 0.32 config/cache.py (kv_cache_dtype, kv_cache_dtype_skip_layers), attention.py; SGLang 0.5.23
arg_groups/fields/model.py; TensorRT-LLM llmapi/llm_args.py KvCacheConfig.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe, Side
from kvgate.formats.spec import by_spelling, storable_codecs

#: Storage methods that an engine has as cache types of its own: beginnings of their names.
ENGINE_METHODS: Mapping[str, tuple[str, ...]] = {"vllm": ("turboquant_", "ultraquant_")}
#: Engines with one type for both sides.
ONE_TYPE = ("vllm", "sglang", "trtllm")
#: Layer kinds that `--kv-cache-dtype-skip-layers` knows; numbers are taken too.
SKIPPED_KINDS: Mapping[str, tuple[str, ...]] = {"vllm": ("sliding_window",)}
_NUMBERED = re.compile(r"L\d+(-\d+)?")


def check_storable(recipe: Recipe, engine: str, native: str) -> None:
    """Refuse what the engine has no setting for; engines not named here are not checked.

    Args:
        native: codec of the native cache, which every engine stores under its word for "auto".

    Raises:
        UserError: says what the engine cannot store, and what it can.
    """
    if engine not in ONE_TYPE or recipe.k is None or recipe.v is None:
        return
    if recipe.k != recipe.v:
        raise UserError(f"{engine} has one cache type for K and V, not {recipe}", fix=f"write {recipe.k} for both")
    _check_side(recipe.k, engine, native)
    if recipe.residual_tokens is not None or recipe.sink_tokens is not None:
        raise UserError(f"{engine} keeps no tokens native: {recipe}", fix="leave residual= and sink= away")
    for selector in recipe.keep:
        known = SKIPPED_KINDS.get(engine)
        if known is None:
            raise UserError(f"{engine} keeps no layers native: {recipe}", fix="leave keep= away")
        if selector not in known and not _NUMBERED.fullmatch(selector):
            raise UserError(f"{engine} cannot keep {selector}", allowed=(*known, "layer numbers such as L0-3"))


def _check_side(side: Side, engine: str, native: str) -> None:
    if [t for t in side.transforms if t != "none"]:
        raise UserError(f"{engine} applies no {side.transforms[0]} to its cache", fix=f"write {side.codec}")
    if side.codec == native or side.codec.startswith(ENGINE_METHODS.get(engine, ())):
        return
    try:
        by_spelling(engine, side.codec)
    except UserError:
        stored = dict.fromkeys((native, *storable_codecs(engine)))
        raise UserError(f"{engine} does not store {side.codec}", allowed=stored) from None
