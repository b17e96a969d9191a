"""SGLang: `sglang serve` for a recipe, with the attention backends pinned on both arms.

`auto` follows a ModelOpt checkpoint, and some models by themselves (sparse MLA on Blackwell, DeepSeek-V4, Muse Spark),
so the baseline spells 16 bits out. The word is bf16: trtllm_mla does not take bfloat16. There is no float16. A baseline
is refused where the cache would be FP8 whatever is asked for.
"""

from __future__ import annotations

from typing import NamedTuple

from kvgate.core.errors import UserError
from kvgate.core.recipe import Side
from kvgate.enginefacts.facts import EngineFacts, load
from kvgate.formats.spec import by_spelling
from kvgate.launch.checkpoint_kv import CheckpointKv, checkpoint_kv
from kvgate.launch.commands import (
    Ask,
    Commands,
    Serve,
    Writer,
    refuse_auto,
    refuse_cold_pages,
    refuse_research_options,
)
from kvgate.launch.kept_layers import refuse_kept
from kvgate.launch.known_trouble import refuse_known_trouble
from kvgate.launch.model_default import own_kv_word
from kvgate.launch.read_range import version_notes
from kvgate.launch.scale_origin import origin_notes, refuse_affine
from kvgate.launch.tensor_parallel import check_tp
from kvgate.launch.writers._sglang_backend import NVFP4, pin
from kvgate.launch.writers._sglang_limits import NATIVE_WORDS, refuse_unserved

_MX4 = "fp4_mx_block16"


class Native(NamedTuple):
    """A 16-bit cache: the KV word, further options, and why there is none."""

    word: str
    options: tuple[str, ...] = ()
    why_not: str = ""


def commands(ask: Ask) -> Commands:
    """Candidate, baseline and rollback.

    Raises:
        UserError: the recipe cannot be served by SGLang; one line with what can.
    """
    facts, checkpoint = load("sglang"), checkpoint_kv(ask)
    refuse_research_options(ask.recipe, "sglang")
    refuse_kept(ask, "SGLang")
    refuse_cold_pages(ask)
    notes = [*version_notes(ask.version, facts), *check_tp(ask)]
    native = _native(ask, checkpoint, notes)
    word = _word(ask, facts, checkpoint, native, notes)
    refuse_unserved(ask, word)
    refuse_known_trouble(ask, facts, word)
    if native.why_not and (ask.recipe.is_native or word in NATIVE_WORDS):
        name = "native" if ask.recipe.is_native else str(ask.recipe)
        raise UserError(f"{name}: {native.why_not}", fix="write fp8_e4m3, or take another model or device")
    pins = pin(ask, facts, word)
    notes += [*pins.notes, *_start_notes(ask, facts, checkpoint, native), *_word_notes(ask, word)]
    candidate = Serve(_argv(ask, ask.served, word, (*native.options, *pins.candidate)))
    why = native.why_not
    base = (*native.options, *pins.baseline)
    baseline = None if why else Serve(_argv(ask, ask.served, native.word, base))
    rollback = None if why else Serve(_argv(ask, ask.model, native.word, base))
    return Commands(
        "sglang",
        candidate,
        baseline,
        rollback,
        why and f"no baseline: {why}",
        why and f"no known rollback: {why}",
        pins.names if not why else {k: v for k, v in pins.names.items() if k == "candidate"},
        pins.loud if not why else (),
        tuple(dict.fromkeys(notes)),
    )


def _native(ask: Ask, checkpoint: CheckpointKv, notes: list[str]) -> Native:
    """How 16 bits are asked for, or why they cannot be."""
    if ask.model_type.startswith("deepseek_v4"):
        return Native("bfloat16", why_not="DeepSeek-V4's pages are packed FP8 whatever word is given")
    if _is_m31(ask) and ask.vendor == "nvidia" and ask.capability.split(".")[0] in ("10", "11", "12"):
        return Native("bf16", why_not="MiniMax-M3.1 in NVFP4 takes fp8_e4m3 alone on Blackwell")
    if ask.geometry.native_dtype == "f16":
        if _follows(checkpoint) or ask.calibrated_as:
            return Native("auto", why_not="SGLang has no float16 word, and auto follows the checkpoint into FP8")
        notes.append("the model computes in float16, for which SGLang has no KV word: auto with --dtype float16 is it")
        return Native("auto", ("--dtype", "float16"))
    if not ask.geometry.native_dtype:
        notes.append("the model does not say that its dtype is bfloat16: bf16 is taken for the baseline")
    return Native("bf16")


def _is_m31(ask: Ask) -> bool:
    """MXFP8 projections with NVFP4 experts (model_overrides/minimax_m3.py, 0.5.23)."""
    found = ask.config.get("quantization_config") or ask.text_config.get("quantization_config")
    return (
        ask.model_type.startswith("minimax_m3")
        and isinstance(found, dict)
        and str(found.get("quant_method", "")).lower() == "mxfp8"
        and str(found.get("moe_quant_algo", "")).upper() == "NVFP4"
    )


def _follows(checkpoint: CheckpointKv) -> bool:
    """Whether `auto` becomes FP8 by the checkpoint: kv_cache_quant_algo FP8, or ModelOpt's scheme of 8-bit floats.

    compressed-tensors' scheme is not followed. Source: mem_cache/kv_cache_dtype.py, quantization/modelopt_quant.py.
    """
    if checkpoint.algorithm:
        return checkpoint.algorithm == "FP8"
    scheme = checkpoint.scheme or {}
    ours = checkpoint.method.startswith("modelopt") and (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
    return ours or (checkpoint.scheme is None and checkpoint.name == "fp8_e4m3")


def _word(ask: Ask, facts: EngineFacts, checkpoint: CheckpointKv, native: Native, notes: list[str]) -> str:
    """The option's word for the recipe.

    Raises:
        UserError: SGLang has no such type; the message names the nearest that it has.
    """
    recipe = ask.recipe
    refuse_auto(recipe)
    if checkpoint.per_head and not ask.calibrated_as:
        raise UserError(
            "SGLang loads one KV scale for a layer, and this checkpoint has one for each head (attn_head)",
            fix="calibrate anew from the 16-bit original, with one scale for a layer",
        )
    if recipe.k is None or recipe.v is None:
        return native.word
    if recipe.k != recipe.v:
        raise UserError(f"KV recipe {str(recipe)!r}: SGLang has one type for K and V", fix="write one codec for both")
    side = recipe.k
    if side.transforms and side.transforms != ("none",):
        raise UserError(f"KV recipe {str(recipe)!r}: SGLang has no transform to ask for", fix="leave + out")
    codec = _codec(side, facts, ask)
    refuse_affine(checkpoint, codec, "SGLang")
    if not ask.model_type.startswith("deepseek_v4"):
        notes += origin_notes(ask, side, codec, checkpoint, "SGLang")
    if "head" in side.params:
        raise UserError(f"{side}: SGLang reads one scale for a layer, not for a head", fix=f"write {side.codec}")
    row = facts.dtype_of(codec)
    return native.word if codec == "f16" else row.spelling if row is not None else codec


def _codec(side: Side, facts: EngineFacts, ask: Ask) -> str:
    if side.codec == _MX4:
        return _MX4
    half = side.codec in ("f16", "float16", "fp16", "half")
    if half and ask.geometry.native_dtype == "f16":
        return "f16"
    refused = facts.refusal_of("float16" if half else side.codec)
    try:
        name = by_spelling("sglang", side.codec)
    except UserError:
        if refused is not None:
            raise UserError(f"{side.codec} on SGLang: {refused.why}", fix=refused.fix) from None
        allowed = [*(d.codec for d in facts.dtype), _MX4]
        raise UserError(f"SGLang does not store {side.codec}", allowed=allowed) from None
    if name == "fp8_e4m3" and side.codec == "fp8":
        return name
    if refused is not None and side.codec not in (name, "fp8"):
        raise UserError(f"{side.codec} on SGLang: {refused.why}", fix=refused.fix)
    return name


def _start_notes(ask: Ask, facts: EngineFacts, checkpoint: CheckpointKv, native: Native) -> tuple[str, ...]:
    own = own_kv_word(facts, ask)
    if own and not native.why_not:
        return (f"auto would start this model in {own}: the baseline spells {native.word} out",)
    if checkpoint.asks and not ask.calibrated_as and not native.why_not:
        if _follows(checkpoint):
            return (f"auto would start this checkpoint in fp8_e4m3: the baseline spells {native.word} out",)
        return ("auto does not follow this checkpoint's KV scheme: the candidate spells its type out",)
    return ()


def _word_notes(ask: Ask, word: str) -> tuple[str, ...]:
    if word == NVFP4:
        return ("an NVFP4 cache needs torch 2.8 and CUDA 12.8; its workspace keeps it below 3.56 times the tokens",)
    if word == "fp8_e4m3" and not ask.calibrated_as:
        return ("the log warns 'no scaling factors provided' whenever no JSON file is given, with scales or without",)
    return ()


def _argv(ask: Ask, model: str, word: str, options: tuple[str, ...]) -> tuple[str, ...]:
    argv = ["sglang", "serve", "--model-path", model, "--kv-cache-dtype", word, *options]
    if ask.context_tokens:
        argv += ["--context-length", str(ask.context_tokens)]
    if ask.tp:
        argv += ["--tensor-parallel-size", str(ask.tp)]
    return tuple(argv)


WRITER = Writer("sglang", "SGLang", commands, ("sgl",), calibrator="modelopt")
