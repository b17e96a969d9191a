"""The attention backend that both arms of vLLM are pinned to, or why none is. Source: platforms/cuda.py, 0.32.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvgate.core.errors import UserError
from kvgate.enginefacts.backend_table import NATIVE_WORDS, LayerNeed, Place, choose, layer_needs, why_not
from kvgate.enginefacts.facts import EngineFacts
from kvgate.enginefacts.versions import Holds, holds, version_of
from kvgate.launch.checkpoint_kv import CheckpointKv
from kvgate.launch.commands import Ask

#: Where every KV word, auto too, becomes fp8_ds_mla (FLASHINFER_MLA_SPARSE_SM120).
_ALWAYS_FP8 = ("12",)
#: Triton's E4M3 needs 8.9. vllm issues 26431 (open) and 35720; the state in 0.32 was not verified.
_E4M3, _BEFORE_E4M3 = ("fp8", "fp8_e4m3", "fp8_per_token_head"), ("7", "8.0", "8.6", "8.7")
#: DeepSeek-V4's own layers: the one backend with 16-bit rows, and where (models/deepseek_v4/nvidia, 0.32.0).
_V4_PLAIN, _V4_PLAIN_ON = "FLASHINFER_MLA_SPARSE_DSV4", ("10",)
#: Layers whose backends are in the table; MiniMax's sparse attention and cross attention have classes of their own.
_READ = ("full_attention", "sliding_window", "chunked_attention", "mla", "sparse_mla")
#: FlashAttention 3 with one accumulator loses needles from here on (vllm blog of 2026-04-22).
_LONG_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class Pins:
    """names: backend by arm. loud: what else differs between the arms, or changes against today. notes: the rest."""

    names: Mapping[str, str] = field(default_factory=dict)
    loud: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def is_deepseek_v4(ask: Ask) -> bool:
    return ask.model_type.startswith("deepseek_v4")


def no_native(ask: Ask) -> str:
    """Why the model cannot be served with a 16-bit cache; empty if it can."""
    at = _place(ask)
    if is_deepseek_v4(ask):
        if ask.device is None:
            return (
                f"DeepSeek-V4 packs its cache in FP8 except with {_V4_PLAIN} on compute capability 10.x: name --device"
            )
        if not at.on(_V4_PLAIN_ON):
            return f"DeepSeek-V4 packs its cache in FP8 on {ask.where}, and stops at bfloat16"
        return ""
    sparse = any(y.kind == "sparse_mla" for y in ask.geometry.layers)
    if sparse and at.on(_ALWAYS_FP8):
        return "sparse MLA on compute capability 12.x stores fp8_ds_mla whatever is asked for"
    return ""


def refuse_unserved(ask: Ask, facts: EngineFacts, word: str, skip: tuple[str, ...]) -> None:
    """A type that no backend reads for these layers, on this vendor or at all.

    Raises:
        UserError: with what reads it, where something does.
    """
    if word in NATIVE_WORDS or is_deepseek_v4(ask):
        if is_deepseek_v4(ask) and word not in (*NATIVE_WORDS, "fp8", "fp8_ds_mla"):
            raise UserError(
                f"DeepSeek-V4 on vLLM stores fp8_ds_mla or per-tensor FP8, not {word}", fix="write fp8_e4m3"
            )
        if word in NATIVE_WORDS and no_native(ask) and ask.device is not None:
            raise UserError(f"native: {no_native(ask)}", fix="write fp8_e4m3, or another device")
        return
    known = ask.vendor in ("", "nvidia", "amd", "cpu")
    at = Place(ask.vendor if known else "", "" if ask.vendor != "nvidia" else ask.capability, ask.sinks)
    for need in _quantized_needs(ask, skip):
        if not any(not why_not(row, at, word, need) for row in facts.backend):
            reads = [
                d.spelling for d in facts.dtype if any(not why_not(r, at, d.spelling, need) for r in facts.backend)
            ]
            raise UserError(
                f"no attention backend of vLLM serves {word} on {ask.where}", allowed=reads, fix="choose one of these"
            )


def pin(ask: Ask, facts: EngineFacts, checkpoint: CheckpointKv, word: str, native: str, skip: tuple[str, ...]) -> Pins:
    """One backend for both arms where one serves both; else each its own, loudly."""
    if is_deepseek_v4(ask):
        return _pin_v4(ask)
    if ask.device is None:
        return Pins(loud=("the attention backend is not pinned: name --device, an NVIDIA GPU, to have it chosen",))
    if ask.vendor in ("amd", "cpu"):
        return Pins(
            notes=(f"the attention backend is not pinned: vLLM's order on {ask.vendor} depends on its settings",)
        )
    if ask.vendor != "nvidia":
        return Pins(loud=(f"nothing is known of vLLM on {ask.where}: whether it takes {word} there was not read",))
    _refuse_triton(ask, facts, _place(ask), word, skip)
    unread = sorted({y.kind for y in ask.geometry.layers if y.kv_heads and y.kind not in _READ})
    if unread:
        said = f"vLLM's kernels for {', '.join(unread)} were not read, and a named backend would have to serve them"
        return Pins(loud=(f"the attention backend is not pinned: {said}",))
    needs = layer_needs(tuple(y for y in ask.geometry.layers if y.kv_heads))
    at = _place(ask, per_head=(checkpoint.per_head or _asks_per_head(ask)) and word.startswith("fp8"))
    found = _pinned(ask, facts, at, word, native, needs, skip)
    _refuse_old_accumulation(ask, at, word, found)
    return found


def _pinned(
    ask: Ask,
    facts: EngineFacts,
    at: Place,
    word: str,
    native: str,
    needs: Sequence[LayerNeed],
    skip: tuple[str, ...],
) -> Pins:
    quantized = _quantized_needs(ask, skip)
    new, old = choose(facts, at, word, quantized), choose(facts, at, native, needs)
    if (new is not None and not all(new)) or (new is None and not _serving(facts, at, (word,), quantized)):
        raise UserError(f"no attention backend of vLLM serves {word} on {ask.where}", fix="write fp8_e4m3 or native")
    rows = {b.name: b for b in facts.backend if not (_triton_fails(at, word) and b.name.startswith("TRITON"))}
    order = tuple(dict.fromkeys((*(old or ()), *(new or ())))) or tuple(rows)
    both = [
        name
        for name in order
        if name in rows
        and not rows[name].opt_in
        and all(not why_not(rows[name], at, native, n) for n in needs)
        and all(not why_not(rows[name], at, word, n) for n in quantized)
    ]
    if both:
        return _alike(ask, both[0], word, native, new, old)
    if skip or _keeps_boundary(ask, word):
        return _apart(word, native, new, old)
    if new is None or old is None or len(new) > 1 or len(old) > 1 or not all(old):
        theirs = f"{', '.join(new or ()) or 'not known'}; {native}: {', '.join(old or ()) or 'not known'}"
        return Pins(loud=(f"THE KERNEL MAY CHANGE TOO: no one backend serves both arms ({word}: {theirs})",))
    said = f"THE KERNEL CHANGES TOO: the candidate runs on {new[0]}, the baseline on {old[0]}"
    return Pins({"candidate": new[0], "baseline": old[0]}, (said,))


def _keeps_boundary(ask: Ask, word: str) -> bool:
    """Whether vLLM keeps the first and last two layers native by itself: in dense models (turboquant/config.py)."""
    packed = word.startswith("turboquant_") or word == "ultraquant_4bit"
    return packed and not any(y.state for y in ask.geometry.layers)


def _apart(word: str, native: str, new: tuple[str, ...] | None, old: tuple[str, ...] | None) -> Pins:
    """A backend that is named has to serve the kept layers too, or vLLM stops: so the candidate names none."""
    usual = old[0] if old and len(old) == 1 else ""
    kept = ", and the kept layers on FlashAttention 2" if word.startswith("turboquant_") else ""
    theirs = ", ".join(new or ()) or "a backend that is not known"
    said = (
        f"THE KERNEL CHANGES TOO: the candidate runs {word} on {theirs}{kept}; the "
        f"baseline runs {native} on {usual or 'several'}; a backend named for the candidate would have to serve both"
    )
    return Pins({"baseline": usual} if usual else {}, (said,))


def _alike(
    ask: Ask, name: str, word: str, native: str, new: tuple[str, ...] | None, old: tuple[str, ...] | None
) -> Pins:
    """Both arms on one backend, and what that hides: the kernel that serves 16 bits today."""
    names = {"candidate": name, "baseline": name}
    if new is None or old is None:
        return Pins(names, notes=(f"{name} is pinned because it serves both; vLLM's own choice here depends on heads",))
    if old == (name,) and new == (name,):
        return Pins(names)
    if old == (name,):
        said = f"{name} is pinned on both arms; by itself vLLM would serve {word} with {', '.join(new)}"
        return Pins(names, (said,))
    said = (
        f"THE KERNEL CHANGES WITH THE TYPE: by itself vLLM serves {native} with {', '.join(old)} on {ask.where} and "
        f"{word} with {', '.join(new)}; both arms are pinned to {name}, so compare with what serves today as well"
    )
    return Pins(names, (said,))


def _triton_fails(at: Place, word: str) -> bool:
    return word in _E4M3 and at.on(_BEFORE_E4M3)


def _refuse_triton(ask: Ask, facts: EngineFacts, at: Place, word: str, skip: tuple[str, ...]) -> None:
    """E4M3 below 8.9, where FlashInfer lacks the head size, so that only Triton is left, which cannot compile it.

    Raises:
        UserError: it would.
    """
    if not _triton_fails(at, word):
        return
    quantized = _quantized_needs(ask, skip)
    new = choose(facts, at, word, quantized) or ()
    others = [r for r in facts.backend if not r.name.startswith("TRITON")]
    if any(n.startswith("TRITON") for n in new) or not all(
        any(not why_not(r, at, word, n) for r in others) for n in quantized
    ):
        raise UserError(
            f"{word} would run on Triton here, which cannot compile E4M3 below compute capability 8.9",
            fix="serve bf16, or try fp8_e5m2",
        )


def _serving(facts: EngineFacts, at: Place, words: Sequence[str], needs: Sequence[LayerNeed]) -> bool:
    return all(any(not why_not(r, at, w, n) for r in facts.backend) for w in words for n in needs)


def _quantized_needs(ask: Ask, skip: tuple[str, ...]) -> tuple[LayerNeed, ...]:
    """Kinds of layers that get the quantized type: those that are not skipped."""
    numbers = {int(s) for s in skip if s.isdecimal()}
    left = [
        y
        for y in ask.geometry.layers
        if y.kv_heads and y.index not in numbers and not ("sliding_window" in skip and y.kind == "sliding_window")
    ]
    if not left:
        raise UserError(f"KV recipe {str(ask.recipe)!r} keeps every layer native", fix="keep fewer layers")
    return layer_needs(tuple(left))


def _asks_per_head(ask: Ask) -> bool:
    return any("head" in side.params for _, side in ask.recipe.sides())


def _place(ask: Ask, *, per_head: bool = False) -> Place:
    if ask.device is None:
        return Place(sinks=ask.sinks)
    return Place(ask.device.vendor, ask.device.compute_capability, ask.sinks, per_head)


def _refuse_old_accumulation(ask: Ask, at: Place, word: str, pins: Pins) -> None:
    """FP8 on Hopper before two-level accumulation, at lengths where it was shown to fail.

    Raises:
        UserError: the release is known not to have it.
    """
    if word not in ("fp8", "fp8_e4m3") or not at.on(("9",)) or pins.names.get("candidate") != "FLASH_ATTN":
        return
    tokens = ask.context_tokens or ask.geometry.context_tokens
    if tokens and tokens < _LONG_TOKENS:
        return
    if ask.version and holds(version_of(ask.version, "vllm"), "", "0.10.3", "vllm") is Holds.YES:
        raise UserError(
            f"FlashAttention 3 of vLLM {ask.version} adds FP8 products in one accumulator, which loses needles past "
            f"{_LONG_TOKENS:,} tokens",
            fix=f"use 0.19.1 or later, or --context below {_LONG_TOKENS}",
        )


def _pin_v4(ask: Ask) -> Pins:
    if no_native(ask):
        return Pins(notes=("DeepSeek-V4 chooses its own attention classes: the backend is not pinned",))
    said = (
        f"THE KERNEL CHANGES WITH THE TYPE: by itself vLLM serves DeepSeek-V4 with FlashMLA and packed rows "
        f"(fp8_ds_mla) on {ask.where}; both arms are pinned to {_V4_PLAIN}, whose rows are plain"
    )
    return Pins({"candidate": _V4_PLAIN, "baseline": _V4_PLAIN}, (said,))
