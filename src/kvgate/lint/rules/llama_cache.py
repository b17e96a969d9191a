"""llama.cpp: what its cache types ask of flash attention, head sizes, devices and splitting."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.enginefacts.versions import Holds
from kvgate.formats.spec import codec
from kvgate.lint.rule import Hit, Rule, Severity
from kvgate.lint.subject import Subject

_LLAMA = frozenset({"llama_cpp"})
_FLOATS = ("f32", "f16", "bf16")
#: Flash attention is "auto" in builds from here on, and was off in builds before; the exact build was not read.
_FA_AUTO, _FA_OFF = "b6400", "b6300"
#: From this build on -fa takes on, off or auto; it was a switch before.
_FA_VALUE = "b6327"
_FA_WORDS = ("on", "off", "auto")
#: Since this build an uncompiled pair of types is converted to f16 instead of moving to the CPU.
_FA_PAIRS = "b10876"
_DEFAULT_PAIRS = ("f16", "bf16", "q4_0", "q8_0")
_NO_CUDA = ("iq4_nl", "mxfp4", "nvfp4")
_SM = "llama.cpp src/llama-context.cpp, llama-kv-cache.cpp"


def _is_type(s: Subject, word: str | None) -> bool:
    return bool(s.codec(word))


def _quantized(s: Subject, word: str | None) -> bool:
    return word is not None and word not in _FLOATS and _is_type(s, word)


def _flash(s: Subject) -> str:
    """ "on", "off", "auto" or "" for not said."""
    if not s.given("flash_attention"):
        return ""
    word = (s.get("flash_attention") or "").lower()
    return {"1": "on", "true": "on", "enabled": "on", "0": "off", "false": "off", "disabled": "off", "-1": "auto"}.get(
        word, word
    )


def _v_needs_flash(s: Subject) -> Iterator[Hit]:
    if not _quantized(s, s.v_word):
        return
    flash = _flash(s)
    if flash == "off":
        yield Hit(f"V in {s.v_word} with flash attention off: the server ends at its start", s.place("flash_attention"))
    elif flash in ("", "auto") and s.version is not None and s.holds("", _FA_OFF) is Holds.YES:
        yield Hit(f"V in {s.v_word} without -fa, which is off by default in this build", s.place("v_dtype"))
    elif not flash and s.version is None:
        yield Hit(
            f"V in {s.v_word} without -fa: older builds refuse it, newer ones switch it on by themselves",
            s.place("v_dtype"),
            "warning",
        )
    elif not flash and s.holds(_FA_AUTO, "") is not Holds.YES:
        yield Hit(
            f"V in {s.v_word} without -fa, and what this build does by default was not read",
            s.place("v_dtype"),
            "warning",
        )
    elif flash in ("", "auto"):
        yield Hit(
            f"V in {s.v_word} with flash attention auto: a device mismatch can switch it off",
            s.place("v_dtype"),
            "info",
        )


def _flash_value(s: Subject) -> Iterator[Hit]:
    setting = s.command.setting("flash_attention")
    if setting is None or setting.opaque or s.holds(_FA_VALUE, "") is not Holds.YES:
        return
    severity: Severity | None = "warning" if s.version is None else None
    if setting.unset and setting.origin == "argv":
        yield Hit(f"{setting.written} has no value", setting.place, severity)
    elif _flash(s) not in _FA_WORDS:
        yield Hit(f"{setting.value!r} is no value of {setting.written}", setting.place, severity)


def _grok(s: Subject) -> Iterator[Hit]:
    if _quantized(s, s.v_word) and s.model is not None and s.model.is_called(("grok*", "*/grok*")):
        yield Hit("Grok switches flash attention off, so V cannot be quantized", s.place("v_dtype"))


def _heads(s: Subject) -> Iterator[Hit]:
    if s.model is None:
        return
    for key, word, side in (("k_dtype", s.k_word, "k_dim"), ("v_dtype", s.v_word, "v_dim")):
        name = s.codec(word)
        if not name or word in _FLOATS:
            continue
        block = codec(name).block
        bad = sorted({getattr(y, side) for y in s.model.layers if getattr(y, side) % block})
        if bad:
            yield Hit(
                f"{word} stores blocks of {block}, and the model has heads of {', '.join(map(str, bad))}", s.place(key)
            )


def _mla(s: Subject) -> Iterator[Hit]:
    deepseek4 = s.model is not None and s.model.is_called(("*deepseek4*", "*deepseek_v4*", "*deepseek-v4*"))
    if s.model is not None and (s.model.is_mla or deepseek4) and s.k_word != s.v_word:
        yield Hit(
            f"MLA and DeepSeek-V4 need one type for K and V, not {s.k_word} and {s.v_word}",
            s.place("k_dtype", "v_dtype"),
        )


def _split(s: Subject) -> Iterator[Hit]:
    if s.get("split_mode") == "tensor" and (_quantized(s, s.k_word) or _quantized(s, s.v_word)):
        yield Hit("--split-mode tensor does not go with a quantized cache", s.place("split_mode"))


def _pairs(s: Subject) -> Iterator[Hit]:
    k, v = s.k_word, s.v_word
    if s.vendor != "nvidia" or not (_is_type(s, k) and _is_type(s, v)) or (k in _NO_CUDA or v in _NO_CUDA):
        return
    compiled = k == v and k in _DEFAULT_PAIRS
    if compiled or not (_quantized(s, k) or _quantized(s, v) or k != v):
        return
    place = s.place("k_dtype", "v_dtype")
    if s.version is not None and s.holds("", _FA_PAIRS) is Holds.YES:
        yield Hit(
            f"K {k} with V {v} is not compiled by default: attention moves to the CPU, 8 to 45 times slower", place
        )
    else:
        fix = f"build with GGML_CUDA_FA_QUANTS holding {k}-{v}, or use one type of f16, bf16, q8_0, q4_0 for both"
        yield Hit(
            f"K {k} with V {v} is not compiled by default: both are converted to f16 first, which is slow",
            place,
            "warning",
            "",
            fix,
        )


def _no_cuda(s: Subject) -> Iterator[Hit]:
    words = [w for w in (s.k_word, s.v_word) if w in _NO_CUDA]
    if s.vendor == "nvidia" and words:
        yield Hit(
            f"{words[0]} has no flash attention on CUDA: attention moves to the CPU", s.place("k_dtype", "v_dtype")
        )


def _mixed_anywhere(s: Subject) -> Iterator[Hit]:
    if s.vendor != "cpu" or s.k_word == s.v_word or not (_is_type(s, s.k_word) and _is_type(s, s.v_word)):
        return
    yield Hit(
        f"K {s.k_word} with V {s.v_word} takes the slow path of the CPU, which reads V row by row",
        s.place("k_dtype", "v_dtype"),
    )


RULE = (
    Rule(
        "llama-v-needs-flash-attention",
        _LLAMA,
        "error",
        "a quantized V needs flash attention",
        "without it the start ends in 'quantized V cache requires flash_attn': the engine's own option, not the Python "
        "package flash-attn; a quantized K alone needs none",
        "write -fa on (older builds: -fa)",
        Source("spec", _SM + "; issues 10378 and 28524", "b11434"),
        _v_needs_flash,
    ),
    Rule(
        "llama-flash-attention-value",
        _LLAMA,
        "error",
        "flash attention is switched without a word for it",
        "builds from b6327 (2025-08-30) on read the word behind -fa as its value, and end with 'unknown value for "
        "--flash-attn'; before, -fa was a switch",
        "write -fa on, -fa off or -fa auto",
        Source("log", "llama-perplexity -fa -ctk q8_0; llama.cpp pull 15434, ramalama pull 1928", "b11434"),
        _flash_value,
    ),
    Rule(
        "llama-grok-flash-attention",
        _LLAMA,
        "error",
        "Grok runs without flash attention, so its V cannot be quantized",
        "the architecture forces it off",
        "quantize K alone: -ctk q8_0",
        Source("spec", _SM, "b11434"),
        _grok,
    ),
    Rule(
        "llama-head-not-block",
        _LLAMA,
        "error",
        "a head is no multiple of the type's block",
        "'block size does not divide n_embd_head': the server ends at its start",
        "use f16 or bf16 for that side",
        Source("log", "K cache type with block size does not divide n_embd_head_k", "b11549"),
        _heads,
    ),
    Rule(
        "llama-mla-one-type",
        _LLAMA,
        "error",
        "MLA needs one type for K and V",
        "there is one tensor, and the check compares both options",
        "give both options the same type",
        Source("spec", _SM, "b11434"),
        _mla,
    ),
    Rule(
        "llama-split-tensor",
        _LLAMA,
        "error",
        "--split-mode tensor with a quantized cache",
        "the split cuts inside blocks",
        "use --split-mode layer",
        Source("spec", _SM, "b11434"),
        _split,
    ),
    Rule(
        "llama-cuda-pair",
        _LLAMA,
        "error",
        "a pair of K and V types that CUDA builds do not hold by default",
        "before b10876 attention then runs on the CPU, without a message; later both sides are converted to f16",
        "use one of f16, bf16, q8_0, q4_0 for both",
        Source("spec", "llama.cpp pull 28079 (b10876); issues 28455, 24485, 27109 and 28633"),
        _pairs,
    ),
    Rule(
        "llama-no-cuda-kernel",
        _LLAMA,
        "error",
        "iq4_nl, mxfp4 and nvfp4 caches have no CUDA kernel",
        "the best kernel is none, so the CPU does it",
        "use q4_0",
        Source("spec", "ggml-cuda/fattn.cu", "b11434"),
        _no_cuda,
    ),
    Rule(
        "llama-cpu-mixed-types",
        _LLAMA,
        "warning",
        "unequal types of K and V are slow on a CPU",
        "the tiled kernel and the split of decoding need one float type for both",
        "use one type for both",
        Source("spec", "ggml-cpu/ops.cpp flash attention", "b11434"),
        _mixed_anywhere,
    ),
)
