"""Recipe -> vLLM's own words for it: one KV type for K and V of all layers, and layers that are left out.

    native      the compute type spelled out (bfloat16, float16): `auto` follows the checkpoint, which may ask for FP8
    fp8_e4m3    --kv-cache-dtype fp8_e4m3; the scales are the checkpoint's where it has a KV scheme, else 1.0
    keep=       --kv-cache-dtype-skip-layers: layer numbers, or `sliding_window`

Source: vLLM 0.32.0 config/cache.py CacheDType, model_executor/layers/attention/attention.py and mla_attention.py,
v1/attention/backends/cpu_attn.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import Recipe, Side
from kvgate.engines._family_recipe import one_side
from kvgate.engines._vllm_scales import CheckpointScales
from kvgate.formats.spec import by_spelling, codec, storable_codecs
from kvgate.plan.keep import kept
from kvgate.plan.price import PER_TOKEN_HEAD, native_codec

ENGINE: Final = "vllm"
#: Types that are methods of ours, by the words that vLLM has for them too.
METHODS: Final = (
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "ultraquant_4bit",
)
#: v1/attention/backends/cpu_attn.py supported_kv_cache_dtypes, beside the compute type.
ON_CPU: Final = ("fp8_e4m3", "fp8_e5m2")
_WORDS: Final[Mapping[str, str]] = {"bf16": "bfloat16", "f16": "float16"}
_SCALED: Final = ("fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_4over6")
#: For which the scales that a checkpoint brings are read: one number, or one a head.
_LOADED: Final = ("fp8_e4m3",)
#: Made at run time, for each token and head.
_DYNAMIC: Final = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")


@dataclass(frozen=True, slots=True)
class Words:
    """What is said to vLLM, and what it then stores.

    Attributes:
        compute: value of --dtype. dtype: value of --kv-cache-dtype. skip: values of --kv-cache-dtype-skip-layers.
        codec: canonical id of what the layers that are not kept store. native: the same of the kept ones.
        effective: the recipe as it will run, with the origin of its scales.
        priced: the recipe in words that the planner prices.
        scales: the checkpoint's own; None where it has none or they are not for this type.
    """

    compute: str
    dtype: str
    skip: tuple[str, ...]
    codec: str
    native: str
    effective: Recipe
    priced: Recipe
    scales: CheckpointScales | None = None


#: Reads the checkpoint's scales, without those of the layers that are named.
ReadScales = Callable[[Iterable[int]], CheckpointScales]


def words_of(recipe: Recipe, given: str, geometry: ModelGeometry, *, on_cpu: bool, read: ReadScales) -> Words:
    """vLLM's words for a recipe.

    Args:
        given: the recipe as the person wrote it, for messages. on_cpu: the package is a CPU build.
        read: called where the scales of a checkpoint would be in force.

    Raises:
        UserError: vLLM cannot do this; names the part, what is allowed and the fix.
    """
    native = native_codec(geometry, ENGINE)
    if native not in _WORDS:
        raise UserError(
            f"{geometry.name} computes in {native}, which vLLM's KV cache cannot be told to store",
            allowed=_WORDS.values(),
            fix="correct the dtype in its config.json",
        )
    _refuse_options(recipe, given)
    side = one_side(recipe, given, ENGINE)
    allowed = storable(native, on_cpu=on_cpu)
    name = "" if side is None else _stored(side, geometry, given, allowed)
    if side is None or name == native:
        if side is not None and (side.params or side.origin or side.transforms):
            raise UserError(f"KV recipe {given!r}: {native} has no scales and no transform", fix=f"write {native}")
        if recipe.keep:
            raise UserError(f"KV recipe {given!r}: keep= leaves layers native, and all are", fix="leave keep= out")
        plain = Recipe(Side(native), Side(native))
        return Words(_WORDS[native], _WORDS[native], (), native, native, plain, plain)
    _refuse_side(side, given)
    whole = Recipe(Side(name), Side(name), keep=recipe.keep)
    scales = None
    if geometry.kv_scheme and name in _LOADED:
        scales = read(x.index for x in _left(recipe, geometry))
        _refuse_scales(scales, given, on_cpu=on_cpu)
    origin = _origin(side, name, geometry, scales, given)
    return Words(
        compute=_WORDS[native],
        dtype=name if name in METHODS else codec(name).spelling(ENGINE),
        skip=_skip(recipe, geometry, given),
        codec=name,
        native=native,
        effective=replace(whole, k=Side(name, origin=origin), v=Side(name, origin=origin)),
        priced=whole,
        scales=scales,
    )


def _refuse_scales(scales: CheckpointScales, given: str, *, on_cpu: bool) -> None:
    """v1/attention/backends/cpu_attn.py hands its kernel one float a layer, the largest of those a head."""
    if scales.per_head and on_cpu:
        raise UserError(
            f"KV recipe {given!r}: this checkpoint has scales a head, and vllm on the CPU would take the largest",
            fix="check it on a GPU, or calibrate with one scale a layer",
        )


def _refuse_options(recipe: Recipe, given: str) -> None:
    for what, there in (("residual=", recipe.residual_tokens), ("sink=", recipe.sink_tokens)):
        if there is not None:
            raise UserError(
                f"KV recipe {given!r}: vllm cannot do {what}: one type holds all tokens of a layer",
                fix="leave the option out, or keep whole layers native with keep=",
            )


def storable(native: str, *, on_cpu: bool) -> tuple[str, ...]:
    """Codec ids that a model which computes in `native` can have its cache in."""
    if on_cpu:
        return (native, *ON_CPU)
    return (native, *(c for c in storable_codecs(ENGINE) if c not in _WORDS), *METHODS)


def _stored(side: Side, geometry: ModelGeometry, given: str, allowed: tuple[str, ...]) -> str:
    """The canonical codec of a side.

    Raises:
        UserError: `auto`, which says nothing of itself, or what this vLLM does not store.
    """
    word = side.codec
    if word == "auto":
        scheme, native = geometry.kv_scheme, allowed[0]
        why = (
            f"this checkpoint has a KV scheme, so that vLLM starts in {scheme} without a word, which is no baseline"
            if scheme
            else "it follows the checkpoint, and another one may start in FP8 without a word"
        )
        fix = f"write native ({native} spelled out)" + (f", or {scheme}" if scheme else "")
        raise UserError(f"KV recipe {given!r}: auto is refused: {why}", fix=fix)
    try:
        name = word if word in METHODS else by_spelling(ENGINE, word)
    except UserError:
        name = ""
    if "token_head" in side.params:
        name = PER_TOKEN_HEAD.get(name, name)
    if name not in allowed:
        where = " on the CPU" if allowed[1:] == ON_CPU else ""
        said = word if name in ("", word) else f"{word} ({name})"
        raise UserError(f"KV recipe {given!r}: vllm{where} does not store {said}", allowed=allowed)
    return name


def _refuse_side(side: Side, given: str) -> None:
    if side.transforms:
        raise UserError(
            f"KV recipe {given!r}: vllm cannot do +{side.transforms[0]}: its types are stored as they are",
            fix=f"write {side.codec}",
        )
    for param in side.params:
        inline = param == "token_head" and side.codec in (*PER_TOKEN_HEAD, *_DYNAMIC)
        if param == "head":
            raise UserError(
                f"KV recipe {given!r}: vllm takes scales a head from the checkpoint only, never from the command line",
                fix=f"calibrate a checkpoint with them and write {side.codec}@checkpoint",
            )
        if not inline and param != "tensor":
            raise UserError(f"KV recipe {given!r}: vllm takes no {param!r} with {side.codec}", fix="leave it out")


def _origin(side: Side, name: str, geometry: ModelGeometry, scales: CheckpointScales | None, given: str) -> str | None:
    """Where the scales in force come from; refuses an origin that vLLM would not honour."""
    asked = side.origin
    if name == "fp8_e5m2" and geometry.kv_scheme:
        # model_executor/layers/attention/attention.py _init_kv_cache_quant.
        raise UserError(
            f"KV recipe {given!r}: vllm does not start a checkpoint with KV scales in fp8_e5m2", fix="write fp8_e4m3"
        )
    if name in _DYNAMIC:
        if asked not in (None, "dynamic"):
            raise UserError(f"KV recipe {given!r}: {name} makes its scales at run time", fix=f"write {name}")
        return None
    if name not in _SCALED:
        if asked is not None:
            raise UserError(f"KV recipe {given!r}: {name} takes no scales from outside", fix=f"write {name}")
        return None
    placeholders = scales is not None and scales.is_unit
    own = "checkpoint" if geometry.kv_scheme and not placeholders else "unit"
    if asked in (None, own):
        return own
    if placeholders and asked == "checkpoint":
        raise UserError(
            f"KV recipe {given!r}: @checkpoint: all KV scales of this checkpoint are 1.0, which nobody has measured",
            fix=f"calibrate it, or write {name}@unit",
        )
    why = {
        "unit": "this checkpoint brings KV scales, and vLLM loads them whether asked or not",
        "checkpoint": "this checkpoint has no KV scheme, so that vLLM scales by 1.0",
        "dynamic": "vLLM has no such scales any more (--calculate-kv-scales is gone)",
    }.get(str(asked), "vLLM reads scales from the checkpoint, not from a file of ours")
    raise UserError(f"KV recipe {given!r}: @{asked}: {why}", fix=f"write {name}@{own}")


def _skip(recipe: Recipe, geometry: ModelGeometry, given: str) -> tuple[str, ...]:
    """Layers to leave out, as numbers; `sliding_window` where vLLM knows the word for these layers."""
    if not recipe.keep:
        return ()
    left = _left(recipe, geometry)
    if len(left) == sum(layer.has_rows for layer in geometry.layers):
        raise UserError(f"KV recipe {given!r}: keep= leaves no layer to store otherwise", fix="write native")
    words = [word for word in recipe.keep if word == "sliding_window" and not any(x.is_latent for x in left)]
    numbers = sorted({x.index for x in left if not (words and _is_window(x))})
    return (*dict.fromkeys(words), *(str(n) for n in numbers))


def _left(recipe: Recipe, geometry: ModelGeometry) -> list[LayerGeometry]:
    """Layers that `keep=` leaves native."""
    if not recipe.keep:
        return []
    stays = kept(recipe.keep, geometry, geometry.layers)
    return [layer for layer in geometry.layers if layer.has_rows and stays.covers(layer)]


def _is_window(layer: LayerGeometry) -> bool:
    return layer.kind == "sliding_window"
