"""Without a named backend: which kernel vLLM takes for this KV type, and whether that is the baseline's."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.backend_choice import chosen, needs, per_head_scales, why_not
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_VLLM = frozenset({"vllm"})
_SOURCE = Source("spec", "platforms/cuda.py _get_backend_priorities and the backends' attributes", "0.32.0")


def _word(s: Subject) -> str | None:
    """The KV word, where it is quantized and no backend is named."""
    word = s.effective_words[0]
    known = s.facts is not None and word in {w for d in s.facts.dtype for w in (d.spelling, *d.aliases)} | {
        w.spelling for w in s.facts.word
    }
    return word if s.is_quantized and s.backend is None and known else None


def _changes(s: Subject) -> Iterator[Hit]:
    word = _word(s)
    if word is None or word == "fp8_e5m2":
        return
    now, before = chosen(s, word), chosen(s, "bfloat16")
    if now and before and all(now) and all(before) and now != before:
        yield Hit(
            f"{word} runs on {', '.join(now)}, bfloat16 on {', '.join(before)}: the kernel changes too", s.dtype_place
        )


def _e5m2(s: Subject) -> Iterator[Hit]:
    if _word(s) != "fp8_e5m2" or s.vendor in ("amd", "cpu", "intel", "google", "apple"):
        return
    now = chosen(s, "fp8_e5m2")
    kernel = ", ".join(now) if now and all(now) else "FLASHINFER"
    yield Hit(f"fp8_e5m2 is not on FLASH_ATTN: it runs on {kernel}", s.dtype_place)


def _none(s: Subject) -> Iterator[Hit]:
    word = _word(s)
    if word is None or s.facts is None:
        return
    now = chosen(s, word)
    if now is None or all(now):
        return
    reasons = [
        f"{row.name}: {text}"
        for need in needs(s)
        for row in s.facts.backend
        if row.attention == need.attention
        and (word in row.dtypes or per_head_scales(s))
        and row.vendor in ("nvidia", "any")
        for _, text in why_not(row, s, word, need)[:1]
    ]
    yield Hit(f"no attention backend serves {word} here", s.dtype_place, None, "; ".join(dict.fromkeys(reasons)))


def _triton(s: Subject) -> Iterator[Hit]:
    word = _word(s)
    if word in ("fp8", "fp8_e4m3", "fp8_per_token_head") and s.on_capability(("7", "8.0", "8.6", "8.7")):
        now = chosen(s, word) or ()
        kernel = next((n for n in now if n.startswith("TRITON")), "")
        if kernel:
            yield Hit(
                f"{word} falls to {kernel} here, which cannot compile E4M3 below compute capability 8.9", s.dtype_place
            )


RULE = (
    Rule(
        "vllm-kernel-changes",
        _VLLM,
        "warning",
        "the KV type moves attention to another backend than bfloat16 uses",
        "a comparison of the two measures the kernel as well as the type",
        "name --attention-backend on both arms, or record both",
        _SOURCE,
        _changes,
        newest_only=True,
    ),
    Rule(
        "vllm-e5m2-leaves-flash-attention",
        _VLLM,
        "warning",
        "fp8_e5m2 is not available on FlashAttention, so another kernel runs",
        "the server starts, and the difference seen is partly the kernel's",
        "write fp8_e4m3, or name the backend on both arms",
        _SOURCE,
        _e5m2,
        newest_only=True,
    ),
    Rule(
        "vllm-no-backend",
        _VLLM,
        "error",
        "no attention backend serves this KV type on this device and model",
        "the start stops with 'No valid attention backend found'",
        "use fp8_e4m3, or another device",
        _SOURCE,
        _none,
        newest_only=True,
    ),
    Rule(
        "vllm-e4m3-falls-to-triton",
        _VLLM,
        "error",
        "before compute capability 8.9 this head size leaves only Triton for E4M3, which cannot compile it",
        "FlashInfer has head sizes 64, 128, 256 and 512 only",
        "use bfloat16, or fp8_e5m2",
        Source("spec", "vllm issues 26431 (open) and 35720; the state in 0.32 was not verified"),
        _triton,
        newest_only=True,
    ),
)
