"""Calibrators and wrappers: ModelOpt's scripts, LMDeploy, Ollama."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_POLICIES = ("0", "4", "8", "fp8", "fp8_e4m3", "fp8_e5m2")
_FORMATS = ("none", "fp8_cast", "fp8", "fp8_affine", "nvfp4_cast", "nvfp4", "nvfp4_affine", "nvfp4_rotate")
_OLLAMA_TYPES = ("f16", "q8_0", "q4_0")
_MODELOPT, _LMDEPLOY, _OLLAMA = frozenset({"modelopt"}), frozenset({"lmdeploy"}), frozenset({"ollama"})
_PTQ = Source("spec", "ModelOpt examples/hf_ptq/hf_ptq.py", "0.47.0dev")


def _format(s: Subject) -> str | None:
    return s.get("kv_cache_qformat") or s.get("kv_cache_quant")


def _cast(s: Subject) -> Iterator[Hit]:
    word = _format(s)
    place = s.place("kv_cache_qformat", "kv_cache_quant")
    if s.given("recipe"):
        return
    if word is None and not s.given("kv_cache_qformat") and not s.given("kv_cache_quant"):
        yield Hit("--kv_cache_qformat is left out: its default fp8_cast calibrates nothing", place)
    elif word is not None and word.endswith("_cast"):
        yield Hit(f"{word} calibrates nothing: every scale becomes 1.0", place)


def _unknown_format(s: Subject) -> Iterator[Hit]:
    word = _format(s)
    if word is not None and word not in _FORMATS:
        yield Hit(f"{word!r} is none of {', '.join(_FORMATS)}", s.place("kv_cache_qformat", "kv_cache_quant"))


def _affine(s: Subject) -> Iterator[Hit]:
    word = _format(s) or ""
    if word.endswith(("_affine", "_rotate")):
        yield Hit(
            f"{word} adds biases or a rotation that the engines' FP8 path does not read", s.place("kv_cache_qformat")
        )


def _kv_only(s: Subject) -> Iterator[Hit]:
    if s.get("qformat") in ("none", "") and _format(s) not in (None, "none"):
        yield Hit("a checkpoint that quantizes the cache alone has quant_algo null", s.place("qformat"))


def _policy(s: Subject) -> Iterator[Hit]:
    word = s.get("quant_policy")
    if word is not None and word not in _POLICIES:
        yield Hit(f"{word!r} is none of {', '.join(_POLICIES)}", s.place("quant_policy"))


def _policy_fp8(s: Subject) -> Iterator[Hit]:
    if (s.get("quant_policy") or "").startswith("fp8") and (s.get("backend") or "pytorch") != "pytorch":
        yield Hit("FP8 caches are of LMDeploy's PyTorch backend only", s.place("quant_policy"))


def _ollama_type(s: Subject) -> Iterator[Hit]:
    word = s.get("k_dtype")
    if word is not None and word not in _OLLAMA_TYPES:
        yield Hit(f"{word!r} is none of {', '.join(_OLLAMA_TYPES)}", s.place("k_dtype"))


def _ollama_flash(s: Subject) -> Iterator[Hit]:
    word = s.get("k_dtype")
    flash = s.command.env.get("OLLAMA_FLASH_ATTENTION", "").lower()
    if word is not None and word != "f16" and flash not in ("1", "true", "on"):
        yield Hit(f"OLLAMA_KV_CACHE_TYPE={word} without OLLAMA_FLASH_ATTENTION=1", s.place("k_dtype"))


RULE = (
    Rule(
        "modelopt-cast",
        _MODELOPT,
        "warning",
        "ModelOpt's *_cast formats calibrate nothing",
        "the largest value is pinned to 448, so the exported scale is exactly 1.0, and fp8_cast is the default",
        "write --kv_cache_qformat fp8",
        _PTQ,
        _cast,
    ),
    Rule(
        "modelopt-format",
        _MODELOPT,
        "error",
        "ModelOpt has no such KV format",
        "the script stops",
        "write fp8 or nvfp4",
        _PTQ,
        _unknown_format,
    ),
    Rule(
        "modelopt-affine",
        _MODELOPT,
        "warning",
        "an affine or rotated KV format",
        "k_bias and v_bias are written beside the scales, and dropped by the loader",
        "write fp8 or nvfp4",
        _PTQ,
        _affine,
    ),
    Rule(
        "modelopt-kv-only",
        _MODELOPT,
        "error",
        "ModelOpt is to quantize the cache alone",
        "vLLM then raises \"Missing 'quant_algo'\"",
        "quantize the weights too, or use llm-compressor",
        Source("spec", "vllm layers/quantization/modelopt.py", "0.32.0"),
        _kv_only,
    ),
    Rule(
        "lmdeploy-quant-policy",
        _LMDEPLOY,
        "error",
        "LMDeploy has no such --quant-policy",
        "0 is off, 4 and 8 are bits, and FP8 words came with pull 4563 (2026-05-29)",
        "write 0, 4, 8 or fp8",
        Source("spec", "lmdeploy pull 4563", "2026-05-29"),
        _policy,
    ),
    Rule(
        "lmdeploy-fp8-backend",
        _LMDEPLOY,
        "error",
        "an FP8 cache on LMDeploy's other backend",
        "FP8 was added to the PyTorch backend alone",
        "write --backend pytorch, or --quant-policy 8",
        Source("spec", "lmdeploy pull 4563", "2026-05-29"),
        _policy_fp8,
    ),
    Rule(
        "ollama-kv-type",
        _OLLAMA,
        "error",
        "Ollama has no such KV type",
        "it takes f16, q8_0 and q4_0",
        "write q8_0",
        Source("spec", "ollama documentation, OLLAMA_KV_CACHE_TYPE; issue 8921"),
        _ollama_type,
    ),
    Rule(
        "ollama-flash-attention",
        _OLLAMA,
        "error",
        "Ollama ignores the KV type without flash attention",
        "the log still shows f16, so a comparison with f16 would find no difference",
        "set OLLAMA_FLASH_ATTENTION=1 where the service sees it, and look at the log",
        Source("spec", "ollama issue 8921", "2025-02-07"),
        _ollama_flash,
    ),
)
