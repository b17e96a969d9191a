"""vLLM: `vllm serve` for a recipe, with the attention backend pinned on both arms.

A checkpoint with a KV scheme, and DeepSeek-V3.2 and GLM-DSA by their own configuration, start in FP8 with `auto`: the
baseline therefore always spells the model's dtype, and so does the rollback. DeepSeek-V4 packs its cache in FP8 unless
one backend is named, and has no 16-bit cache anywhere else.
"""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import EngineFacts, load
from kvgate.launch.checkpoint_kv import CheckpointKv, checkpoint_kv
from kvgate.launch.commands import Ask, Commands, Serve, Writer, refuse_cold_pages, refuse_research_options
from kvgate.launch.kept_layers import kept
from kvgate.launch.known_trouble import refuse_known_trouble
from kvgate.launch.model_default import own_kv_word
from kvgate.launch.read_range import version_notes
from kvgate.launch.tensor_parallel import check_tp
from kvgate.launch.writers._vllm_backend import no_native, pin, refuse_unserved
from kvgate.launch.writers._vllm_word import NATIVE_WORDS, word_of

_NATIVE = {"bf16": "bfloat16", "f16": "float16"}


def commands(ask: Ask) -> Commands:
    """Candidate, baseline and rollback.

    Raises:
        UserError: the recipe cannot be served by vLLM; one line with what can.
    """
    facts, checkpoint = load("vllm"), checkpoint_kv(ask)
    refuse_research_options(ask.recipe, "vllm")
    refuse_cold_pages(ask)
    notes = [*version_notes(ask.version, facts), *check_tp(ask)]
    native, said = native_word(ask)
    notes += said
    word = word_of(ask, facts, checkpoint, native, notes)
    skip = _skipped(ask, word, notes)
    refuse_unserved(ask, facts, word, skip)
    refuse_known_trouble(ask, facts, word)
    why = no_native(ask)
    pins = pin(ask, facts, checkpoint, word, native, skip)
    if word.startswith("turboquant_") or word == "ultraquant_4bit":
        notes.append(f"{word} keeps the first two and the last two layers of a dense model native by itself")
    notes += [*pins.notes, *_start_notes(ask, facts, checkpoint, native)]
    candidate = Serve(_argv(ask, ask.served, word, pins.names.get("candidate", ""), skip))
    baseline = None if why else Serve(_argv(ask, ask.served, native, pins.names.get("baseline", ""), ()))
    rollback = None if why else Serve(_argv(ask, ask.model, native, pins.names.get("baseline", ""), ()))
    return Commands(
        "vllm",
        candidate,
        baseline,
        rollback,
        why and f"no baseline: {why}",
        why and f"no known rollback: {why}",
        pins.names,
        pins.loud,
        tuple(dict.fromkeys(notes)),
    )


def native_word(ask: Ask) -> tuple[str, tuple[str, ...]]:
    """The word of a 16-bit cache: the model's own dtype, spelled out; with a note where it is assumed."""
    found = _NATIVE.get(ask.geometry.native_dtype, "")
    if found:
        return found, ()
    return "bfloat16", (
        "the model does not say that its dtype is bfloat16 or float16: bfloat16 is taken for the baseline",
    )


def _start_notes(ask: Ask, facts: EngineFacts, checkpoint: CheckpointKv, native: str) -> tuple[str, ...]:
    """What `auto` would have become: the reason why no command says it."""
    own = own_kv_word(facts, ask)
    if own:
        return (
            (f"auto would start this model in {own}: the baseline spells {native} out",) if not no_native(ask) else ()
        )
    if checkpoint.asks and not ask.calibrated_as:
        said = checkpoint.name or checkpoint.algorithm or "the checkpoint's own scheme"
        return (f"auto would start this checkpoint in {said}: the baseline spells {native} out",)
    return ()


def _skipped(ask: Ask, word: str, notes: list[str]) -> tuple[str, ...]:
    """Words of --kv-cache-dtype-skip-layers; MLA layers go by number only (mla_attention.py, 0.32.0)."""
    numbers, kinds = kept(ask)
    if not ask.recipe.keep:
        return ()
    if word in NATIVE_WORDS:
        raise UserError(f"KV recipe {str(ask.recipe)!r}: {word} is what kept layers have too", fix="leave keep= out")
    layers = ask.geometry.layers
    mla = any(y.is_latent for y in layers)
    there = any(y.kind == "sliding_window" for y in layers)
    for kind in kinds:
        if kind != "sliding_window":
            raise UserError(f"keep={kind}: vLLM skips layers by number and sliding_window", fix="write keep=L0-3")
        if mla or not there:
            raise UserError("keep=sliding_window: the model has no layers that it would skip", fix="leave it out")
    stateless = sorted(n for n in numbers if n not in {y.index for y in layers if y.kv_heads})
    if stateless and layers:
        notes.append(f"layers {', '.join(map(str, stateless[:8]))} have no KV cache: skipping them changes nothing")
    return (*map(str, numbers), *kinds)


def _argv(ask: Ask, model: str, word: str, backend: str, skip: tuple[str, ...]) -> tuple[str, ...]:
    argv = ["vllm", "serve", model, "--kv-cache-dtype", word]
    if skip:
        argv += ["--kv-cache-dtype-skip-layers", *skip]
    if backend:
        argv += ["--attention-backend", backend]
    if ask.context_tokens:
        argv += ["--max-model-len", str(ask.context_tokens)]
    if ask.tp:
        argv += ["--tensor-parallel-size", str(ask.tp)]
    return tuple(argv)


WRITER = Writer("vllm", "vLLM", commands, calibrator="llm-compressor")
