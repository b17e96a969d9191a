"""SGLang: words of the KV option that single models or backends take, and the two spellings of 16 bits that differ.

`bf16` and `bfloat16` mean one type, but the checks compare texts: DeepSeek-V4 takes only the long one, trtllm_mla only
the short one (SGLang 0.5.23 arg_groups/overrides.py _deepseek_v4_kv_cache_dtype, _mla_kv_cache_dtype_checks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule, Severity
from kvgate.lint.subject import Subject

_SGLANG = frozenset({"sglang"})
_V4 = ("*deepseek-v4*", "*deepseek_v4*", "*deepseekv4*")
#: Families whose sparse attention has a default of its own, with the names of their models where no config is here.
_SPARSE = ("*deepseek-v3.2*", "*deepseek_v32*", "*glm_moe_dsa*")
#: Sparse MLA starts in FP8 from this generation on.
_FP8_BY_DEFAULT = ("10", "11", "12")


def _is_v4(s: Subject) -> bool:
    return s.model is not None and s.model.is_called(_V4)


def _is_sparse(s: Subject) -> bool:
    return s.model is not None and not _is_v4(s) and (s.model.is_sparse_mla or s.model.is_called(_SPARSE))


def _known(s: Subject) -> bool:
    """Whether the word is one of SGLang's at all; another rule tells the rest."""
    return s.k_word in ("auto", "fp4_mx_block16") or bool(s.codec(s.k_word))


def _v4_word(s: Subject) -> Iterator[Hit]:
    if not _is_v4(s) or not _known(s) or s.k_word in ("auto", "fp8_e4m3", "bfloat16"):
        return
    said = "bf16 is spelled bfloat16 for DeepSeek-V4" if s.k_word == "bf16" else f"DeepSeek-V4 does not take {s.k_word}"
    fix = "write bfloat16" if s.k_word == "bf16" else "write fp8_e4m3"
    yield Hit(said, s.dtype_place, None, "", fix)


def _v4_packed(s: Subject) -> Iterator[Hit]:
    if _is_v4(s) and s.k_word in ("auto", "bfloat16"):
        said = "no --kv-cache-dtype" if not s.given("kv_dtype") else s.k_word
        yield Hit(f"{said} gives DeepSeek-V4 no 16-bit cache: its pages are packed FP8", s.dtype_place)


def _sparse_word(s: Subject) -> Iterator[Hit]:
    if _is_sparse(s) and _known(s) and s.k_word not in ("auto", "fp8_e4m3", "bf16", "bfloat16"):
        yield Hit(f"sparse MLA does not take {s.k_word}", s.dtype_place)


def _sparse_sinks(s: Subject) -> Iterator[Hit]:
    learned = s.model is not None and any(
        c.get("learnable_sink") is True for c in (s.model.config, s.model.text_config)
    )
    if learned and _is_sparse(s) and s.is_quantized:
        yield Hit(f"learned sinks of sparse attention need a 16-bit cache, not {s.k_word}", s.dtype_place)


def _sparse_auto(s: Subject) -> Iterator[Hit]:
    if not _is_sparse(s) or s.k_word != "auto" or (s.vendor and s.vendor != "nvidia"):
        return
    if s.on_capability(_FP8_BY_DEFAULT):
        yield Hit("auto is fp8_e4m3 for sparse MLA on this device", s.dtype_place)
    elif not s.capability:
        yield Hit("auto is fp8_e4m3 for sparse MLA from compute capability 10.0 on, and bfloat16 below", s.dtype_place)


def _mla_word(s: Subject) -> Iterator[Hit]:
    if s.k_word == "bfloat16" and "trtllm_mla" in (s.backend, s.get("decode_backend")):
        yield Hit("bfloat16 is spelled bf16 for trtllm_mla", s.dtype_place)


def _rule(
    name: str,
    severity: Severity,
    title: str,
    why: str,
    fix: str,
    where: str,
    check: Callable[[Subject], Iterator[Hit]],
) -> Rule:
    source = Source("spec", where, "0.5.23")
    return Rule(name, _SGLANG, severity, title, why, fix, source, check, newest_only=True)


_V4_WHERE = "arg_groups/overrides.py _deepseek_v4_kv_cache_dtype"
_DSA_WHERE = "arg_groups/overrides.py _dsa_kv_cache_dtype_default"
RULE = (
    _rule(
        "sglang-deepseek-v4-word",
        "error",
        "DeepSeek-V4 takes fp8_e4m3 and bfloat16 only; bf16 stops it",
        "SGLang asserts on the word itself, before anything is loaded",
        "write fp8_e4m3 or bfloat16",
        _V4_WHERE,
        _v4_word,
    ),
    _rule(
        "sglang-deepseek-v4-packed",
        "warning",
        "DeepSeek-V4 has no 16-bit cache in SGLang",
        "pages are packed FP8 whatever word is given, so this is neither a 16-bit baseline nor a rollback",
        "compare with another engine's 16 bits, or say that both arms are FP8",
        "model_overrides/deepseek_v4.py; mem_cache/deepseek_v4_memory_pool.py",
        _v4_packed,
    ),
    _rule(
        "sglang-sparse-mla-word",
        "error",
        "sparse MLA (DeepSeek-V3.2, GLM-DSA) takes bf16, bfloat16 and fp8_e4m3 only",
        "SGLang asserts on the word",
        "write fp8_e4m3 or bf16",
        _DSA_WHERE,
        _sparse_word,
    ),
    _rule(
        "sglang-sparse-mla-sinks",
        "error",
        "sparse attention with learned sinks needs a 16-bit cache",
        "SGLang stops with an error",
        "write bf16",
        _DSA_WHERE,
        _sparse_sinks,
    ),
    _rule(
        "sglang-sparse-mla-auto",
        "warning",
        "auto is FP8 for sparse MLA from compute capability 10.0 on",
        "there auto is no 16-bit baseline, and below it is one",
        "write --kv-cache-dtype bf16 for a baseline",
        _DSA_WHERE,
        _sparse_auto,
    ),
    _rule(
        "sglang-trtllm-mla-word",
        "error",
        "trtllm_mla takes bf16, not bfloat16",
        "SGLang compares the texts, and stops with an error",
        "write bf16",
        "arg_groups/overrides.py _mla_kv_cache_dtype_checks",
        _mla_word,
    ),
)
