"""llama.cpp: `llama-server` for a recipe. Flash attention is on for both arms, and everything else is equal too."""

from __future__ import annotations

from kvgate.core.errors import UserError
from kvgate.core.recipe import Side
from kvgate.enginefacts.facts import EngineFacts, load
from kvgate.enginefacts.versions import Holds, holds, version_of
from kvgate.formats.spec import by_spelling, codec
from kvgate.launch.commands import Ask, Commands, Serve, Writer, refuse_auto, refuse_cold_pages, refuse_research_options
from kvgate.launch.kept_layers import refuse_kept
from kvgate.launch.read_range import version_notes

_NATIVE = "f16"
_DISABLE, _ROTATES_FROM = "LLAMA_ATTN_ROT_DISABLE", "b8643"
#: Types that the command line does not list, though the library has them. common/arg.cpp, b11434.
_NOT_LISTED = ("ggml_mxfp4", "ggml_nvfp4")
_FLOATS = ("f32", "f16", "bf16")


def commands(ask: Ask) -> Commands:
    """Candidate, baseline and rollback.

    Raises:
        UserError: the recipe cannot be served by llama.cpp; one line with what can.
    """
    facts = load("llama_cpp")
    refuse_auto(ask.recipe)
    refuse_research_options(ask.recipe, "llama.cpp")
    refuse_kept(ask, "llama.cpp")
    if ask.tp > 1:
        raise UserError("llama-server has no tensor-parallel ranks", fix="leave --tp out; it has --tensor-split")
    refuse_cold_pages(ask)
    sides = dict(ask.recipe.sides()) or {"k": Side(_NATIVE), "v": Side(_NATIVE)}
    k, v = (_word(ask, facts, sides[side], side) for side in "kv")
    if any(y.is_latent for y in ask.geometry.layers) and k != v:
        raise UserError("MLA needs one type for K and V", fix="write one codec")
    env = {_DISABLE: "1"} if any("none" in s.transforms for s in sides.values()) else {}
    notes = ["give both arms the same batch, ubatch, slots and context checkpoints: they change f16 answers too"]
    if ask.version:
        notes += version_notes(ask.version, facts)
    notes += _rotation(ask, k, v, sides, bool(env))
    native = Serve(_argv(ask, _NATIVE, _NATIVE))
    return Commands("llama_cpp", Serve(_argv(ask, k, v), env), native, native, notes=tuple(notes))


def _rotation(ask: Ask, k: str, v: str, sides: dict[str, Side], disabled: bool) -> tuple[str, ...]:
    """A build rotates quantized K and V by itself, or cannot.

    Raises:
        UserError: a rotation is asked of a build that has none.
    """
    old = bool(ask.version) and holds(version_of(ask.version, "llama_cpp"), "", _ROTATES_FROM, "llama_cpp") is Holds.YES
    if old and any("hadamard" in s.transforms for s in sides.values()):
        raise UserError(
            f"+hadamard: llama.cpp rotates from {_ROTATES_FROM} on, not in {ask.version}", fix="leave + out"
        )
    if (k in _FLOATS and v in _FLOATS) or disabled or old:
        return ()
    return (f"a build from {_ROTATES_FROM} on rotates quantized K and V by itself; results do not compare across it",)


def _word(ask: Ask, facts: EngineFacts, side: Side, which: str) -> str:
    refused = facts.refusal_of(side.codec)
    if refused is not None:
        raise UserError(f"{side.codec} on llama.cpp: {refused.why}", fix=refused.fix)
    name = by_spelling("llama_cpp", side.codec)
    if name in _NOT_LISTED:
        raise UserError(f"llama-server's options do not list {side.codec}", fix="check it with kvgate check instead")
    if side.origin is not None or side.params:
        raise UserError(f"{side}: llama.cpp's types have no scales to choose", fix=f"write {side.codec}")
    if set(side.transforms) - {"none", "hadamard"}:
        raise UserError(f"{side}: llama.cpp has its own rotation only", fix="write +none, or leave + out")
    for layer in ask.geometry.layers:
        dim = layer.k_dim if which == "k" else layer.v_dim
        if dim:
            codec(name).row_bytes(dim)
    return codec(name).spelling("llama_cpp")


def _argv(ask: Ask, k: str, v: str) -> tuple[str, ...]:
    argv = ["llama-server", "-m", ask.model, "-ctk", k, "-ctv", v, "-fa", "on"]
    if ask.context_tokens:
        argv += ["-c", str(ask.context_tokens)]
    return tuple(argv)


WRITER = Writer("llama_cpp", "llama.cpp", commands, ("llama.cpp", "llamacpp", "llama-cpp"), model="gguf")
