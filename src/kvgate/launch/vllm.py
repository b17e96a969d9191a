"""vLLM: `vllm serve` for a recipe, with the attention backend pinned on both arms.

A checkpoint with a KV scheme, and DeepSeek-V3.2 and GLM-DSA by their own configuration, start in FP8 with `auto`: the
baseline therefore always spells the model's dtype, and so does the rollback.
"""

from __future__ import annotations

import re

from kvgate.core.errors import UserError
from kvgate.core.recipe import Side
from kvgate.enginefacts.backend_table import Place, choose, layer_needs, why_not
from kvgate.enginefacts.facts import EngineFacts, load
from kvgate.enginefacts.versions import Holds, holds, range_words, version_of
from kvgate.formats.spec import by_spelling
from kvgate.launch.commands import Ask, Commands, Serve, refuse_research_options

_NATIVE = {"bf16": "bfloat16", "f16": "float16"}
_LAYERS = re.compile(r"L(\d+)(?:-(\d+))?")
#: Where every KV word, auto too, becomes fp8_ds_mla (FLASHINFER_MLA_SPARSE_SM120).
_ALWAYS_FP8 = ("12",)
#: Triton's E4M3 needs 8.9. vllm issues 26431 (open) and 35720; the state in 0.32 was not verified.
_E4M3, _BEFORE_E4M3 = ("fp8", "fp8_e4m3", "fp8_per_token_head"), ("7", "8.0", "8.6", "8.7")
_MAX_LAYER = 10_000


def commands(ask: Ask) -> Commands:
    """Candidate, baseline and rollback.

    Raises:
        UserError: the recipe cannot be served by vLLM; one line with what can.
    """
    facts = load("vllm")
    notes = list(_version_notes(ask, facts))
    word = _word(ask, facts, notes)
    native = _native(ask, notes)
    skip = _skipped(ask)
    why = _no_native(ask)
    pins, loud = _pins(ask, facts, word, native)
    candidate = Serve(_argv(ask, word, pins.get("candidate", ""), skip if word not in ("bfloat16", "float16") else ()))
    baseline = None if why else Serve(_argv(ask, native, pins.get("baseline", ""), ()))
    if ask.geometry.kv_scheme and not why:
        notes.append(f"auto would start this checkpoint in {ask.geometry.kv_scheme}: the baseline spells {native} out")
    return Commands(
        "vllm", candidate, baseline, baseline, why, why and f"no known rollback: {why}", pins, loud, tuple(notes)
    )


def _version_notes(ask: Ask, facts: EngineFacts) -> tuple[str, ...]:
    if not ask.version:
        return (f"no --engine-version: written for {facts.newest}",)
    inside = holds(version_of(ask.version, "vllm"), facts.known_since, facts.known_until, "vllm")
    if inside is Holds.YES:
        return ()
    return (f"vllm {ask.version} has not been read ({range_words(facts.known_since, facts.known_until)} has)",)


def _word(ask: Ask, facts: EngineFacts, notes: list[str]) -> str:
    """The option's word for the recipe."""
    recipe = ask.recipe
    refuse_research_options(recipe, "vllm")
    if recipe.k is None or recipe.v is None:
        return _native(ask, [])
    if recipe.k != recipe.v:
        raise UserError(f"KV recipe {str(recipe)!r}: vLLM has one type for K and V", fix="write one codec for both")
    _check_scales(ask, recipe.k, notes)
    if recipe.k.transforms and recipe.k.transforms != ("none",):
        raise UserError(f"KV recipe {str(recipe)!r}: vLLM has no transform to ask for", fix="leave + out")
    presets = {w.spelling for w in facts.word if w.spelling not in ("auto", "fp8_inc")}
    if recipe.k.codec in presets:
        return recipe.k.codec
    name = by_spelling("vllm", recipe.k.codec)
    row = facts.dtype_of(name)
    if row is None:
        raise UserError(f"vLLM does not store {name}", allowed=[d.codec for d in facts.dtype])
    return row.spelling


def _check_scales(ask: Ask, side: Side, notes: list[str]) -> None:
    origin, scheme = side.origin, ask.geometry.kv_scheme
    if origin == "checkpoint" and not scheme:
        raise UserError(
            "the checkpoint has no KV scheme, so @checkpoint has no scales", fix="calibrate it, or write @unit"
        )
    if origin == "unit" and scheme:
        raise UserError(
            "the checkpoint carries KV scales, and vLLM has no option to leave them out", fix="leave @unit out"
        )
    if origin is not None and origin.startswith("calibrated"):
        notes.append("the scales have to be in the checkpoint that is served: vLLM takes them from nowhere else")
    if side.codec.startswith("fp8") and not scheme and origin is None:
        notes.append("the checkpoint names no KV scheme: scales are 1.0")


def _skipped(ask: Ask) -> tuple[str, ...]:
    """Words of --kv-cache-dtype-skip-layers."""
    found: list[str] = []
    kinds = {y.kind for y in ask.geometry.layers}
    mla = any(y.is_latent for y in ask.geometry.layers)
    for sel in ask.recipe.keep:
        match = _LAYERS.fullmatch(sel)
        if match:
            first, last = int(match[1][:9]), int((match[2] or match[1])[:9])
            count = ask.geometry.layer_count or _MAX_LAYER
            if last >= count:
                raise UserError(f"keep={sel}: the model has layers 0 to {count - 1}", fix="count from 0")
            found += [str(i) for i in range(first, last + 1)]
        elif sel != "sliding_window":
            raise UserError(f"keep={sel}: vLLM skips layers by number and sliding_window", fix="write keep=L0-3")
        elif mla or "sliding_window" not in kinds:
            raise UserError("keep=sliding_window: the model has no layers that it would skip", fix="leave it out")
        else:
            found.append(sel)
    return tuple(dict.fromkeys(found))


def _native(ask: Ask, notes: list[str]) -> str:
    """The word of a 16-bit cache: the model's own dtype, spelled out."""
    found = _NATIVE.get(ask.geometry.native_dtype, "")
    if not found:
        notes.append("the model does not say that its dtype is bfloat16 or float16: bfloat16 is taken for the baseline")
    return found or "bfloat16"


def _no_native(ask: Ask) -> str:
    """Why the model cannot be served with a 16-bit cache; empty if it can."""
    sparse = any(y.kind == "sparse_mla" for y in ask.geometry.layers)
    if sparse and ask.device is not None and _place(ask).on(_ALWAYS_FP8):
        return "sparse MLA on compute capability 12.x stores fp8_ds_mla whatever is asked for"
    return ""


def _place(ask: Ask) -> Place:
    if ask.device is None:
        return Place(sinks=ask.sinks)
    return Place(ask.device.vendor, ask.device.compute_capability, ask.sinks)


def _pins(ask: Ask, facts: EngineFacts, word: str, native: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """One backend for both arms where one serves both; else each its own, loudly."""
    needs, at = layer_needs(ask.geometry.layers), _place(ask)
    new, old = choose(facts, at, word, needs), choose(facts, at, native, needs)
    if new is None or old is None:
        return {}, ("the attention backend is not pinned: name --device, an NVIDIA GPU, to have it chosen",)
    if not all(new):
        raise UserError(
            f"no attention backend of vLLM serves {word} on {ask.device.id if ask.device else 'this device'}"
        )
    if word in _E4M3 and at.on(_BEFORE_E4M3) and any(name.startswith("TRITON") for name in new):
        raise UserError(
            f"{word} would run on Triton here, which cannot compile E4M3 below compute capability 8.9",
            fix="serve bf16, or try fp8_e5m2",
        )
    if len(new) > 1 or not all(old):
        return {}, (
            f"the attention backend is not pinned: layers need several ({', '.join(new)}; native {', '.join(old)})",
        )
    rows = {b.name: b for b in facts.backend}
    for name in dict.fromkeys((*old, *new)):
        if all(not why_not(rows[name], at, w, n) for w in (word, native) for n in needs):
            return {"candidate": name, "baseline": name}, ()
    said = f"THE KERNEL CHANGES TOO: the candidate runs on {new[0]}, the baseline on {old[0]}"
    return {"candidate": new[0], "baseline": old[0]}, (said,)


def _argv(ask: Ask, word: str, backend: str, skip: tuple[str, ...]) -> tuple[str, ...]:
    argv = ["vllm", "serve", ask.model, "--kv-cache-dtype", word]
    if skip:
        argv += ["--kv-cache-dtype-skip-layers", *skip]
    if backend:
        argv += ["--attention-backend", backend]
    if ask.context_tokens:
        argv += ["--max-model-len", str(ask.context_tokens)]
    if ask.tp:
        argv += ["--tensor-parallel-size", str(ask.tp)]
    return tuple(argv)
