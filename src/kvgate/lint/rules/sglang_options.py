"""SGLang's 4-bit and MX caches: which backends and which features go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_SGLANG = frozenset({"sglang"})
_HOOK = Source("spec", "kv_cache_hook.py", "0.5.23")
_FP4_DECODE = ("triton", "torch_native", "flex_attention", "trtllm_mha")
_FP4_MLA = ("flashinfer", "trtllm_mla")
_NVFP4_PREFILL = ("flashinfer", "trtllm_mha")
_FP8 = "write --prefill-kv-cache-dequant-dtype fp8_e4m3"
_SPECULATION = ("EAGLE", "EAGLE3", "NEXTN", "NGRAM")


def _decode(s: Subject) -> str | None:
    return s.get("decode_backend") or s.backend


def _prefill(s: Subject) -> str | None:
    return s.get("prefill_backend") or s.backend


def _nvfp4_backend(s: Subject) -> Iterator[Hit]:
    """A decode backend counts where it is named itself; --attention-backend chooses the prefill of NVFP4 only."""
    if s.k_word != "nvfp4":
        return
    decode, prefill = s.get("decode_backend"), s.get("prefill_backend")
    if (s.get("prefill_dequant") or "auto") == "auto":
        prefill = prefill or s.backend
    if decode is not None and decode != "trtllm_mha":
        yield Hit(f"an NVFP4 cache is decoded by trtllm_mha only, not by {decode}", s.place("decode_backend"))
    if prefill is not None and prefill not in _NVFP4_PREFILL:
        yield Hit(
            f"an NVFP4 cache is filled by flashinfer or trtllm_mha, not by {prefill}",
            s.place("prefill_backend", "backend"),
        )


def _is_native_nvfp4(s: Subject) -> bool:
    """Whether the kernel's own layout may be used: on compute capability 10.x, and where no device is named."""
    return s.k_word == "nvfp4" and (not s.capability or s.on_capability(("10",)))


def _nvfp4_speculation(s: Subject) -> Iterator[Hit]:
    word = (s.get("speculative") or "").upper()
    if not _is_native_nvfp4(s) or not word:
        return
    breadth = s.number("speculative_ngram_max_bfs_breadth")
    if word not in _SPECULATION:
        yield Hit(f"an NVFP4 cache goes with {', '.join(_SPECULATION)}, not with {word}", s.place("speculative"))
    elif word == "NGRAM" and breadth != 1:
        said = "10 by default" if breadth is None else f"{breadth:g}"
        yield Hit(
            f"an NVFP4 cache goes with NGRAM of breadth 1 only, and it is {said}",
            s.place("speculative_ngram_max_bfs_breadth", "speculative"),
            None,
            "",
            "write --speculative-ngram-max-bfs-breadth 1",
        )


def _nvfp4_lmcache(s: Subject) -> Iterator[Hit]:
    if _is_native_nvfp4(s) and s.given("lmcache"):
        yield Hit("an NVFP4 cache does not go with LMCache", s.place("lmcache"))


def _nvfp4_mla(s: Subject) -> Iterator[Hit]:
    if s.k_word == "nvfp4" and s.model is not None and s.model.is_mla:
        yield Hit("NVFP4 is decoded by trtllm_mha, which is no MLA backend", s.dtype_place)


def _mx_backend(s: Subject) -> Iterator[Hit]:
    """Filled and read by one backend it must be of the list; by two different ones SGLang only warns, but for fa4."""
    decode, prefill = _decode(s), _prefill(s)
    if s.k_word != "fp4_mx_block16" or decode is None:
        return
    mla = s.model is not None and s.model.is_mla
    known = s.model is not None and bool(s.model.layers)
    plain = tuple(b for b in _FP4_DECODE if b != "trtllm_mha") if prefill == "fa4" else _FP4_DECODE
    allowed = _FP4_MLA if mla else plain if known else (*plain, *_FP4_MLA)
    if decode not in allowed:
        yield Hit(
            f"fp4_mx_block16 is decoded by {', '.join(allowed)}, not by {decode}",
            s.place("decode_backend", "backend"),
            "warning" if prefill not in (decode, "fa4") else None,
        )


def _mxfp8_backend(s: Subject) -> Iterator[Hit]:
    if s.k_word == "mxfp8" and s.backend not in (None, "fa4"):
        yield Hit(f"mxfp8 is read by fa4 only, not by {s.backend}", s.place("backend"))


def _dequant(s: Subject) -> Iterator[Hit]:
    word = s.get("prefill_dequant")
    place = s.place("prefill_dequant")
    if word is None:
        return
    if word not in ("auto", "nvfp4", "fp8_e4m3"):
        yield Hit(f"{word!r} is none of auto, nvfp4, fp8_e4m3", place)
    elif word != "auto" and s.k_word != "nvfp4":
        yield Hit("--prefill-kv-cache-dequant-dtype is for an NVFP4 cache", place)
    elif word == "nvfp4" and s.capability and not s.on_capability(("10",)):
        yield Hit("an NVFP4 cache is filled in its own format on compute capability 10.x only", place, None, "", _FP8)


def _auto(s: Subject) -> Iterator[Hit]:
    own = s.checkpoint_word
    if s.k_word == "auto" and own:
        yield Hit(f"auto becomes {own} here: the checkpoint asks for it", s.place("kv_dtype"))


def _fp8_mla_trtllm(s: Subject) -> Iterator[Hit]:
    if s.backend in ("trtllm_mha",) and s.model is not None and s.model.is_mla:
        yield Hit("trtllm_mha is no MLA backend", s.place("backend"))


def _rule(
    name: str, title: str, why: str, fix: str, check: Callable[[Subject], Iterator[Hit]], source: Source = _HOOK
) -> Rule:
    return Rule(name, _SGLANG, "error", title, why, fix, source, check, newest_only=True)


_STOP = "SGLang stops with an error"
RULE = (
    _rule(
        "sglang-nvfp4-backend",
        "an NVFP4 cache with a backend that cannot read it",
        _STOP,
        "use trtllm_mha",
        _nvfp4_backend,
    ),
    _rule(
        "sglang-nvfp4-speculation",
        "an NVFP4 cache with speculation that it does not go with",
        _STOP,
        "use EAGLE, EAGLE3, NEXTN or NGRAM of breadth 1",
        _nvfp4_speculation,
    ),
    _rule("sglang-nvfp4-lmcache", "an NVFP4 cache with LMCache", _STOP, "leave LMCache out", _nvfp4_lmcache),
    _rule("sglang-nvfp4-mla", "an NVFP4 cache on an MLA model", _STOP, "use fp8_e4m3", _nvfp4_mla),
    _rule("sglang-mx4-backend", "fp4_mx_block16 with a backend that cannot read it", _STOP, "use triton", _mx_backend),
    _rule("sglang-mxfp8-backend", "mxfp8 with a backend that cannot read it", _STOP, "use fa4 on 10.x", _mxfp8_backend),
    _rule(
        "sglang-prefill-dequant",
        "the dequantization of prefill is set where it means nothing",
        _STOP,
        "leave it out",
        _dequant,
    ),
    Rule(
        "sglang-auto-follows-checkpoint",
        _SGLANG,
        "warning",
        "auto is not 16 bits: the checkpoint turns the KV cache to FP8",
        "as a baseline it is already quantized, and as a rollback it does not roll back",
        "write --kv-cache-dtype bf16 for a baseline or a rollback",
        Source("spec", "mem_cache/kv_cache_dtype.py", "0.5.23"),
        _auto,
    ),
    _rule(
        "sglang-trtllm-mha-on-mla",
        "trtllm_mha on an MLA model",
        _STOP,
        "use trtllm_mla, flashinfer or triton",
        _fp8_mla_trtllm,
        Source("spec", "attention_hook.py", "0.5.23"),
    ),
)
