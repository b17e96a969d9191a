"""Recipes and engines in the words that people use: `fp8`, `auto`, `llama.cpp`."""

from __future__ import annotations

from dataclasses import replace

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe, Side, parse
from kvgate.formats.spec import by_spelling, codecs, engines
from kvgate.methods.spec import methods

_ALIASES = {
    "llama.cpp": "llama_cpp",
    "llamacpp": "llama_cpp",
    "llama-cpp": "llama_cpp",
    "tensorrt-llm": "trtllm",
    "tensorrt_llm": "trtllm",
    "trt-llm": "trtllm",
}
_AUTO = "auto"
_FLOATS = ("bf16", "f16", "f32")
_GLOBAL_SCALE = ("nvfp4", "nvfp4_4over6")


def engine_id(text: str) -> str:
    """The canonical id of an engine.

    Raises:
        UserError: no engine of that name; the message lists what there is.
    """
    word = text.strip().lower()
    known = tuple(dict.fromkeys((*registry.discover("engine_rule"), *engines())))
    found = _ALIASES.get(word, word)
    if found not in known:
        raise UserError(f"unknown engine {text[:40]!r}", allowed=known)
    return found


def recipe_of(text: str, *, engine: str, geometry: ModelGeometry) -> Recipe:
    """A recipe as typed, in canonical words.

    The engine's own spellings come first (`nvfp4` on llama.cpp is ggml_nvfp4). `auto` is what the engine takes: the
    checkpoint's own scheme if it names one, else native.

    Raises:
        UserError: not a recipe, or a codec or method that is not there.
    """
    recipe = parse(text)
    if recipe.k is None or recipe.v is None:
        return recipe
    if _AUTO in (recipe.k.codec, recipe.v.codec):
        return _auto(recipe, text, geometry)
    found = recipe.with_sides(_side(recipe.k, engine), _side(recipe.v, engine))
    for side in (found.k, found.v):
        if side is not None:
            _check_origin(side)
    return found


def _check_origin(side: Side) -> None:
    """Refuse scales from elsewhere for a type that has none, or that makes its own from the values of a block."""
    spec = next((c for c in codecs() if c.name == side.codec), None)
    if side.origin is None or spec is None:
        return
    if spec.name in _FLOATS:
        raise UserError(f"{side}: {spec.name} has no scales", fix=f"write {spec.name}")
    # NVFP4 has a scale of the whole tensor beside those of its blocks.
    own = (spec.block > 1 or spec.row_extra_bytes > 0) and spec.name not in _GLOBAL_SCALE
    if own and side.origin != "dynamic":
        raise UserError(
            f"{side}: {spec.name} makes its scales from the values that it stores, and takes none from elsewhere",
            fix=f"write {spec.name}",
        )


def _auto(recipe: Recipe, text: str, geometry: ModelGeometry) -> Recipe:
    if recipe.k != recipe.v or recipe.k != Side(_AUTO):
        raise UserError(f"KV recipe {text[:60]!r}: auto stands alone", fix="write auto, or name a codec")
    if geometry.kv_scheme:
        return recipe.with_sides(Side(geometry.kv_scheme), Side(geometry.kv_scheme))
    return replace(recipe, k=None, v=None)


def _side(side: Side, engine: str) -> Side:
    try:
        return replace(side, codec=by_spelling(engine, side.codec))
    except UserError:
        # A codec that the engine does not store still has a size; its own column says what the engine says.
        if any(c.name == side.codec for c in codecs()):
            return side
        # Methods are looked at last: loading them takes time, and none is spelled as a codec is.
        if any(m.name == side.codec for m in methods() if m.role == "storage"):
            return side
        raise
