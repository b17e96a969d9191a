"""A recipe as a value of vLLM's --kv-cache-dtype. Source: config/cache.py CacheDType and the layers' checks, 0.32.0."""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.core.recipe import Side
from kvgate.enginefacts.facts import EngineFacts
from kvgate.formats.spec import by_spelling
from kvgate.launch.checkpoint_kv import CheckpointKv
from kvgate.launch.commands import Ask, refuse_auto
from kvgate.launch.scale_origin import origin_notes, refuse_affine

NATIVE_WORDS = ("bfloat16", "float16")
#: A scale for each token and head is a type of its own.
_PER_TOKEN_HEAD = {
    "fp8_e4m3": "fp8_per_token_head",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
}
#: Methods whose checkpoints carry FP8 scales, which vLLM reads as E4M3 only (attention.py).
_E4M3_CHECKPOINTS = ("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4", "modelopt_mixed", "quark", "petit_nvfp4")


def word_of(ask: Ask, facts: EngineFacts, checkpoint: CheckpointKv, native: str, notes: list[str]) -> str:
    """The option's word for the recipe.

    Raises:
        UserError: vLLM has no such type; the message names the nearest that it has.
    """
    recipe = ask.recipe
    refuse_auto(recipe)
    refuse_unloadable(ask, checkpoint)
    if recipe.k is None or recipe.v is None:
        return native
    if recipe.k != recipe.v:
        raise UserError(f"KV recipe {str(recipe)!r}: vLLM has one type for K and V", fix="write one codec for both")
    side = recipe.k
    if side.transforms and side.transforms != ("none",):
        raise UserError(f"KV recipe {str(recipe)!r}: vLLM has no transform to ask for", fix="leave + out")
    codec, side = _codec(side, facts)
    if not ask.model_type.startswith("deepseek_v4"):
        notes += origin_notes(ask, side, codec, checkpoint, "vLLM")
    row = facts.dtype_of(codec)
    if codec == "fp8_e4m3" and ask.model_type.startswith("deepseek_v4"):
        return "fp8"  # the one FP8 word that each of its classes lists
    word = row.spelling if row is not None else codec
    refuse_affine(checkpoint, codec, "vLLM")
    _refuse_checkpoint(word, ask, checkpoint)
    if word in NATIVE_WORDS and word != native and ask.geometry.native_dtype:
        notes.append(f"the model computes in {native}, and its cache is to be {word}")
    return word


def _codec(side: Side, facts: EngineFacts) -> tuple[str, Side]:
    """Canonical id or preset behind a side, and the side without what the id already says."""
    if "token_head" in side.params:
        word = _PER_TOKEN_HEAD.get(side.codec, side.codec if side.codec in _PER_TOKEN_HEAD.values() else "")
        if not word:
            raise UserError(
                f"{side}: vLLM has no scale for each token and head of it", allowed=_PER_TOKEN_HEAD.values()
            )
        return word, Side(word, tuple(p for p in side.params if p != "token_head"), side.origin)
    refused = facts.refusal_of(side.codec)
    presets = {w.spelling for w in facts.word if w.spelling not in ("auto", "fp8_inc")}
    if side.codec in presets:
        return side.codec, side
    try:
        name = by_spelling("vllm", side.codec)
    except UserError:
        if refused is not None:
            raise UserError(f"{side.codec} on vLLM: {refused.why}", fix=refused.fix) from None
        raise
    if facts.dtype_of(name) is None:
        raise UserError(f"vLLM does not store {name}", allowed=[d.codec for d in facts.dtype])
    return name, side


def _refuse_checkpoint(word: str, ask: Ask, checkpoint: CheckpointKv) -> None:
    """Words that vLLM stops at for this checkpoint."""
    method = checkpoint.method
    scaled = method in _E4M3_CHECKPOINTS or (method == "compressed-tensors" and checkpoint.scheme is not None)
    if word == "fp8_e5m2" and scaled:
        raise UserError(
            f"vLLM does not take fp8_e5m2 with a checkpoint of method {method}, whose scales are for E4M3",
            fix="write fp8_e4m3",
        )
    layers = [y for y in ask.geometry.layers if y.kv_heads]
    latent = any(y.is_latent for y in layers)
    if word in ("nvfp4", "nvfp4_4over6"):
        if latent:
            raise UserError(f"{word} on MLA: vLLM stops at it", fix="write fp8_e4m3")
        if any(y.k_dim != y.v_dim for y in layers):
            raise UserError(f"{word} needs heads of one size for K and V", fix="write fp8_e4m3")
    if word.startswith("turboquant") and any(y.window_tokens and not y.chunked for y in layers):
        raise UserError(f"{word}: vLLM rejects TurboQuant on models with sliding windows", fix="write fp8_e4m3")


def refuse_unloadable(ask: Ask, checkpoint: CheckpointKv) -> None:
    """Checkpoints that vLLM does not load, whatever type is asked for.

    compressed-tensors schemes have to be 8-bit symmetric floats of strategy tensor or attn_head; ModelOpt's have to
    quantize more than the cache (quantization/compressed_tensors, quantization/modelopt.py, 0.32.0).

    Raises:
        UserError: with what is wrong in it.
    """
    if ask.calibrated_as:
        return
    if checkpoint.kv_only:
        raise UserError(
            "vLLM loads no ModelOpt checkpoint that quantizes the KV cache alone (quant_algo is null)",
            fix="quantize the weights too, or --calibrate llm-compressor from the 16-bit original",
        )
    scheme = checkpoint.scheme or {}
    if checkpoint.scheme is None or checkpoint.method not in ("compressed-tensors", "compressed_tensors"):
        return
    wrong = [
        f"{key} is {scheme.get(key, 'left out')}"
        for key, good in (
            ("type", ("float",)),
            ("num_bits", (8,)),
            ("symmetric", (True,)),
            ("strategy", ("tensor", "attn_head")),
        )
        if scheme.get(key, "int" if key == "type" else good[0]) not in good
    ]
    if wrong:
        raise UserError(
            f"vLLM does not take this checkpoint's kv_cache_scheme: {', '.join(wrong)}",
            fix="calibrate it anew: --calibrate llm-compressor",
        )
