"""A backend that is named, held against vLLM's table: KV word, device, heads, windows, sinks, MLA, scales, block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from kvgate.core.source import Source
from kvgate.enginefacts.facts import BackendRow
from kvgate.lint.backend_choice import blocks_fit, chosen, needs, why_not
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_VLLM = frozenset({"vllm"})
_SOURCE = Source("spec", "v1/attention/backends/, class attributes of each backend", "0.32.0")
#: Backends of the registry that are for other layers, or that lint has no row for.
OTHERS = (
    "CUSTOM",
    "CUTLASS_MSA",
    "FLASHINFER_MLA_SPARSE_DSV4",
    "FLASHINFER_MLA_SPARSE_DSV41",
    "FLASHMLA_MEGA_ATTN_DSV41",
    "FLASHMLA_SPARSE_DSV4",
    "FLASHMLA_SPARSE_DSV41",
    "FLASH_ATTN_DIFFKV",
    "MINIMAX_M3_SPARSE",
    "NO_ATTENTION",
    "ROCM_AITER_MLA_SPARSE",
    "ROCM_AITER_TRITON_MLA",
    "ROCM_FLASHMLA_SPARSE_DSV4",
    "TORCH_SDPA",
    "TRITON_ATTN_DIFFKV",
    "TRITON_FLASHINFER",
    "TRITON_FLASH_ATTN",
    "TRITON_MSA",
    "XPU_MLA_SPARSE",
)


def _named(s: Subject) -> BackendRow | None:
    return next((b for b in s.facts.backend if b.name == s.backend), None) if s.facts else None


def _unknown(s: Subject) -> Iterator[Hit]:
    if s.backend is None or s.facts is None or _named(s) is not None or s.backend in OTHERS:
        return
    names = [b.name for b in s.facts.backend]
    close = get_close_matches(s.backend, names, n=1, cutoff=0.6)
    fix = f"write {close[0]}" if close else "write one of " + ", ".join(names)
    yield Hit(f"{s.backend} is no attention backend of vLLM", s.place("backend", "attention_config"), None, "", fix)


def _for(kind: str) -> Callable[[Subject], Iterator[Hit]]:
    def check(s: Subject) -> Iterator[Hit]:
        row, word = _named(s), s.effective_words[0]
        if row is None or word is None:
            return
        reasons = dict.fromkeys(text for need in needs(s) for k, text in why_not(row, s, word, need) if k == kind)
        # With other layers kept, a kind that only some layers lack may be served by them.
        if not reasons or (kind in ("windows", "heads") and len(needs(s)) > 1 and s.given("skip_layers")):
            return
        other = chosen(s, word)
        fix = f"leave the option out: {', '.join(n for n in other if n)} would be taken" if other and all(other) else ""
        yield Hit(
            f"{row.name} cannot serve this: {'; '.join(reasons)}", s.place("backend", "attention_config"), None, "", fix
        )

    return check


def _block(s: Subject) -> Iterator[Hit]:
    block, row = s.number("block_tokens"), _named(s)
    if block is None or s.facts is None:
        return
    if row is not None:
        if not blocks_fit(row, int(block)):
            takes = ", ".join(map(str, row.blocks)) if row.blocks else f"multiples of {row.blocks_multiple_of}"
            yield Hit(f"{row.name} takes blocks of {takes}, not {int(block)}", s.place("block_tokens"))
        return
    if chosen(s, s.effective_words[0] or "auto") == ("",):
        yield Hit(f"no backend takes blocks of {int(block)} here", s.place("block_tokens"))


def _rule(name: str, kind: str, title: str, why: str, fix: str) -> Rule:
    return Rule(name, _VLLM, "error", title, why, fix, _SOURCE, _for(kind), newest_only=True)


_STOP = "a backend that is named and cannot serve stops the start with the reasons"
RULE = (
    Rule(
        "vllm-backend-unknown",
        _VLLM,
        "error",
        "the attention backend has a name that vLLM does not have",
        _STOP,
        "write one of the engine's names",
        Source("spec", "v1/attention/backends/registry.py", "0.32.0"),
        _unknown,
        newest_only=True,
    ),
    _rule(
        "vllm-backend-dtype",
        "dtype",
        "the named backend does not read this KV type; the exact word counts (HPC_ATTN lists fp8_e4m3, not fp8)",
        _STOP,
        "write another KV type, or leave the backend out",
    ),
    _rule(
        "vllm-backend-device", "device", "the named backend does not run on this device", _STOP, "leave the backend out"
    ),
    _rule(
        "vllm-backend-head-size",
        "heads",
        "the named backend lacks a head size of the model",
        _STOP,
        "leave the backend out",
    ),
    _rule("vllm-backend-sinks", "sinks", "the named backend has no attention sinks", _STOP, "leave the backend out"),
    _rule(
        "vllm-backend-windows", "windows", "the named backend has no sliding windows", _STOP, "leave the backend out"
    ),
    _rule(
        "vllm-backend-mla",
        "attention",
        "the named backend is for another kind of attention",
        _STOP,
        "leave the backend out",
    ),
    _rule(
        "vllm-backend-per-head-scales",
        "per_head",
        "the named backend takes no scale for each head",
        _STOP,
        "use FLASH_ATTN with FlashAttention 3 or 4, or calibrate with strategy tensor",
    ),
    Rule(
        "vllm-block-size",
        _VLLM,
        "warning",
        "the block size is none that the backend's kernel takes",
        "vLLM raises the block to what every backend accepts, or takes another backend",
        "leave --block-size out",
        _SOURCE,
        _block,
        newest_only=True,
    ),
)
