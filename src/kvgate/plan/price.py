"""Ideal bytes of a recipe on a model: each cache of each layer, from the codecs' and methods' own sizes.

"Ideal" counts what is stored and nothing else: no padding, no paging; what an engine reserves is in
`plan/engine_rules/`. Tensor parallelism is not seen here: `plan/parallel.py` splits the geometry first.

    one token       k slot + v slot + indexer row, over `tokens_per_row`; 0 for a cache that does not grow
    one sequence    min(tokens, window) of those + states + cross attention + what a residual window costs on top
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import Recipe, Side
from kvgate.formats.spec import KVSide, codec, codecs
from kvgate.methods.spec import Window, methods, storage_of
from kvgate.plan.keep import kept, layer_count
from kvgate.plan.terms import LayerPrice, Price

#: What `native` is where neither the file nor the engine says.
DEFAULT_NATIVE = "bf16"
#: Engines whose cache has its own default type, whatever the model computes in.
#: llama.cpp: common/common.h, cache_type_k.
ENGINE_NATIVE: Mapping[str, str] = {"llama_cpp": "f16"}
#: Engines that run a float32 checkpoint in 16 bits. vLLM: config/model.py, _resolve_auto_dtype.
HALVES_F32 = ("vllm", "sglang", "trtllm")
#: Engines that keep recurrent states in their own type. llama.cpp: src/llama-memory-recurrent.cpp, R and S in F32.
ENGINE_STATE: Mapping[str, str] = {"llama_cpp": "f32"}
#: What an engine stores on sparse MLA and compressed rows when it is asked for these codecs. "" is "no engine named".
#: vLLM: FLASHMLA_SPARSE turns fp8 into fp8_ds_mla; SGLang: 656 bytes a row measured in sgl-project/sglang pull 11309.
PACKED_ROWS: Mapping[str, str] = {"fp8_e4m3": "fp8_ds_mla"}
PACKING_ENGINES = ("", "vllm", "sglang")
#: A scale for each token and head lies inline, so it is another layout. vLLM: fp8_per_token_head.
PER_TOKEN_HEAD: Mapping[str, str] = {"fp8_e4m3": "fp8_per_token_head"}
#: Engines whose cross-attention cache stays in the model's dtype. TensorRT-LLM: docs/source/features/kvcache.md.
NATIVE_CROSS = ("trtllm",)


def native_codec(geometry: ModelGeometry, engine: str = "") -> str:
    """Codec id that `native` means for this model on this engine."""
    if engine in ENGINE_NATIVE:
        return ENGINE_NATIVE[engine]
    own = geometry.native_dtype or DEFAULT_NATIVE
    return DEFAULT_NATIVE if own == "f32" and engine in HALVES_F32 else own


def price(geometry: ModelGeometry, recipe: Recipe, *, native: str = "", engine: str = "", mtp: bool = False) -> Price:
    """What a recipe costs on one model, or on one rank of it.

    Args:
        native: codec id of what is kept native; by default what the model, on this engine, computes in.
        engine: canonical engine id, for rows that an engine stores in its own way; "" is no engine in particular.
        mtp: count the layers of multi-token prediction.

    Raises:
        UserError: nothing to cache, a codec or method that is not there or does not fit a head, K and V that differ on
            a model that caches one vector, or a `keep=` that names what the model does not have.
    """
    layers = geometry.layers + (geometry.mtp_layers if mtp else ())
    if not layers:
        raise UserError(f"{geometry.name} has no layers with a KV cache", fix="choose a model with attention layers")
    base = Side(native or native_codec(geometry, engine))
    stays = kept(recipe.keep, geometry, layers)
    own = {kv: _left_native(side, geometry, layers) for kv, side in recipe.sides()}
    priced: list[LayerPrice] = []
    # Most layers of a model are alike; each kind is priced once.
    known: dict[tuple[LayerGeometry, Side, Side], LayerPrice] = {}
    for layer in layers:
        asked = {kv: base if stays.covers(layer) or layer.index in own[kv] else side for kv, side in recipe.sides()}
        asked = asked or {"k": base, "v": base}
        shape = (replace(layer, index=0), asked["k"], asked["v"])
        if shape not in known:
            known[shape] = _layer(layer, asked, base, recipe, engine, geometry.name)
        priced.append(replace(known[shape], layer=layer))
    return Price(str(recipe), tuple(priced))


def sequence_bytes(priced: Price, tokens: int) -> int:
    """Bytes of one sequence of `tokens` tokens; a window keeps at most its own tokens.

    Raises:
        UserError: a negative length.
    """
    if tokens < 0:
        raise UserError(f"a sequence of {tokens} tokens does not exist")
    return sum(layer_sequence_bytes(p, tokens) for p in priced.layers)


def layer_sequence_bytes(p: LayerPrice, tokens: int) -> int:
    """Bytes of one cache of one layer for a sequence of `tokens` tokens."""
    total = p.state_bytes + p.fixed_bytes
    if p.layer.fixed_tokens is not None:
        return total
    rows = _rows(tokens if p.layer.window_tokens is None else min(tokens, p.layer.window_tokens), p.layer)
    total += rows * p.row_bytes
    # `fixed_bytes` counts a whole residual window; a sequence shorter than that is just native.
    return min(total, p.state_bytes + rows * p.short_row_bytes) if p.short_row_bytes else total


@dataclass(frozen=True, slots=True)
class _Cell:
    """One side of one layer: what is stored there and what it costs."""

    word: str
    row_bytes: int = 0
    fixed_bytes: int = 0
    native_row_bytes: int = 0


_NOTHING = _Cell("")


def _layer(
    layer: LayerGeometry, asked: Mapping[str, Side], base: Side, recipe: Recipe, engine: str, model: str
) -> LayerPrice:
    k = v = _NOTHING
    if layer.kv_heads > 0:
        if _one_vector(layer) and asked["k"] != asked["v"]:
            raise UserError(
                f"k={asked['k']},v={asked['v']}: {model} caches one vector for K and V ({layer.kind}), "
                "so both have one type",
                fix=f"write {asked['k']}",
            )
        k = _cell(layer, "k", asked["k"], base, recipe, engine)
        v = _NOTHING if _one_vector(layer) else _cell(layer, "v", asked["v"], base, recipe, engine)
    rows = k.row_bytes + v.row_bytes + layer.index_bytes_per_token
    held_native = k.fixed_bytes + v.fixed_bytes
    short = sum(side.native_row_bytes if side.fixed_bytes else side.row_bytes for side in (k, v))
    return LayerPrice(
        layer=layer,
        k=k.word,
        v=v.word,
        k_row_bytes=k.row_bytes,
        v_row_bytes=v.row_bytes,
        index_row_bytes=layer.index_bytes_per_token,
        state_bytes=_state_bytes(layer, base, engine),
        fixed_bytes=held_native if layer.fixed_tokens is None else _rows(layer.fixed_tokens, layer) * rows,
        short_row_bytes=short + layer.index_bytes_per_token if held_native and layer.fixed_tokens is None else 0,
    )


def _cell(layer: LayerGeometry, kv: KVSide, side: Side, base: Side, recipe: Recipe, engine: str) -> _Cell:
    side = stored_as(layer, base if layer.kind == "cross_attention" and engine in NATIVE_CROSS else side, engine)
    native_row = storage_of(base, kv).slot_bytes(layer, kv)
    if side == base:
        return _Cell(str(side), native_row)
    storage = storage_of(side, kv, _window(recipe, base))
    return _Cell(str(side), storage.slot_bytes(layer, kv), storage.fixed_bytes(layer), native_row)


def _window(recipe: Recipe, base: Side) -> Window | None:
    """Tokens that the recipe keeps native; None is the method's own rule, for native values of 16 bits."""
    native_bytes = codec(base.codec).row_bytes(1)
    if recipe.residual_tokens is None and recipe.sink_tokens is None and native_bytes == 2:
        return None
    return Window(recipe.residual_tokens, recipe.sink_tokens, native_bytes)


def stored_as(layer: LayerGeometry, side: Side, engine: str) -> Side:
    """The side as this engine stores it in this layer: rows that packed kernels read are packed.

    Plain MLA keeps FP8 as plain bytes; sparse MLA and compressed rows (a `rope_dim`, and a kind other than "mla") have
    only packed kernels.
    """
    if "token_head" in side.params and side.codec in PER_TOKEN_HEAD:
        return Side(PER_TOKEN_HEAD[side.codec], origin=side.origin, transforms=side.transforms)
    if engine not in PACKING_ENGINES or not layer.rope_dim or layer.kind == "mla":
        return side
    packed = PACKED_ROWS.get(side.codec)
    return side if packed is None else Side(packed, origin=side.origin)


def _one_vector(layer: LayerGeometry) -> bool:
    return layer.is_latent or layer.v_dim == 0


def _left_native(side: Side, geometry: ModelGeometry, layers: tuple[LayerGeometry, ...]) -> frozenset[int]:
    """Layer numbers that the methods of a side leave native by themselves."""
    plain = {c.name for c in codecs()}
    words = (*(() if side.codec in plain else (side.codec,)), *side.transforms)
    if not words:
        return frozenset()
    known = {m.name: m for m in methods()}
    hybrid = any(layer.state for layer in layers)
    count = layer_count(geometry, geometry.layers)
    return frozenset(n for word in words if word in known for n in known[word].native_layers(count, hybrid=hybrid))


def _state_bytes(layer: LayerGeometry, base: Side, engine: str) -> int:
    def dtype(asked: str) -> str:
        return ENGINE_STATE.get(engine) or (base.codec if asked == "native" else asked)

    return sum(codec(dtype(part.dtype)).row_bytes(part.elements) for part in layer.state)


def _rows(tokens: int, layer: LayerGeometry) -> int:
    """Stored rows of `tokens` tokens; a row that is begun takes its room."""
    return -(-tokens // layer.tokens_per_row)
