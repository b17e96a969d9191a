"""What a checkpoint's own quantization does to vLLM's KV option."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_VLLM = frozenset({"vllm"})
_ATTENTION = Source("spec", "model_executor/layers/attention/attention.py", "0.32.0")
#: Methods whose layers carry KV scales, so that their FP8 is E4M3. compressed-tensors counts only with a KV scheme.
_FP8_METHODS = ("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4", "modelopt_mixed", "quark", "petit_nvfp4")


def _e5m2(s: Subject) -> Iterator[Hit]:
    if s.k_word != "fp8_e5m2":
        return
    method = s.model.quant_method if s.model is not None else ""
    asked = (s.get("quantization") or "").lower()
    if method in _FP8_METHODS or (method == "compressed-tensors" and s.model and s.model.kv_scheme is not None):
        yield Hit(f"fp8_e5m2 with a checkpoint of method {method}", s.dtype_place)
    elif asked in _FP8_METHODS and not method:
        yield Hit(f"fp8_e5m2 with --quantization {asked}", s.dtype_place)
    elif not method and s.model is not None and not s.model.config and _says_fp8(s.model.name):
        yield Hit(f"fp8_e5m2 with a checkpoint that its name calls FP8 ({s.model.name})", s.dtype_place, "warning")


def _says_fp8(name: str) -> bool:
    return "fp8" in name.lower().replace("_", "-").split("/")[-1].split("-")


def _auto(s: Subject) -> Iterator[Hit]:
    own = s.checkpoint_word
    if s.k_word == "auto" and own:
        said = "auto" if s.given("kv_dtype") else "no --kv-cache-dtype"
        yield Hit(f"{said} becomes {own} here: the checkpoint asks for it", s.place("kv_dtype"))


def _scheme(s: Subject) -> Iterator[Hit]:
    if s.model is None or s.model.quant_method not in ("compressed-tensors", "compressed_tensors"):
        return
    scheme = s.model.kv_scheme
    if scheme is None:
        return
    wrong = []
    if scheme.get("type", "int") != "float":
        wrong.append("type is left out, which means int" if "type" not in scheme else f"type is {scheme.get('type')}")
    # The file is read as it is: what is left out is None there, not compressed-tensors' default.
    if scheme.get("num_bits") != 8:
        wrong.append(f"num_bits is {scheme['num_bits']}" if "num_bits" in scheme else "num_bits is left out")
    if not scheme.get("symmetric"):
        wrong.append("symmetric is false" if "symmetric" in scheme else "symmetric is left out")
    if scheme.get("strategy") not in ("tensor", "attn_head"):
        wrong.append(f"strategy is {scheme['strategy']}" if "strategy" in scheme else "strategy is left out")
    if wrong:
        yield Hit(f"vLLM does not take this kv_cache_scheme: {', '.join(wrong)}", s.place("model"))


def _kv_only(s: Subject) -> Iterator[Hit]:
    if s.model is None or s.model.quant_method != "modelopt" or not s.model.kv_algorithm:
        return
    quantization = s.model.quantization
    inner = quantization.get("quantization")
    place = inner if isinstance(inner, dict) else quantization
    if "quant_algo" not in place or place.get("quant_algo") is None:
        yield Hit("the checkpoint quantizes the KV cache only (quant_algo is null)", s.place("model"))


def _warning_word(s: Subject) -> Iterator[Hit]:
    if s.k_word == "fp8_e4m3" and s.on_capability(("9", "10")):
        yield Hit("with the word fp8_e4m3 vLLM does not warn of uncalibrated query and softmax scales", s.dtype_place)


def _sparse_word(s: Subject) -> Iterator[Hit]:
    if s.k_word == "fp8_e4m3" and s.backend is None and s.model and s.model.is_sparse_mla and s.on_capability(("9",)):
        yield Hit(
            "sparse MLA takes FLASHMLA_SPARSE for fp8, and FLASHINFER_MLA_SPARSE_SM90 for fp8_e4m3", s.dtype_place
        )


def _fp4_mla(s: Subject) -> Iterator[Hit]:
    word = s.effective_words[0] or ""
    if word.startswith("nvfp4") and word != "nvfp4_ds_mla" and s.model is not None and s.model.is_mla:
        yield Hit(f"{word} with an MLA model", s.dtype_place)


def _fp4_uneven(s: Subject) -> Iterator[Hit]:
    word = s.effective_words[0] or ""
    if word.startswith("nvfp4") and s.model is not None and not s.model.is_mla:
        uneven = [y for y in s.model.layers if y.v_dim and y.k_dim != y.v_dim]
        if uneven:
            yield Hit(
                f"{word} needs K and V heads of one size, not {uneven[0].k_dim} and {uneven[0].v_dim}", s.dtype_place
            )


def _ds_mla_model(s: Subject) -> Iterator[Hit]:
    word = s.k_word or ""
    if word.endswith("_ds_mla") and s.model is not None and s.model.layers and not s.model.is_sparse_mla:
        yield Hit(f"{word} is the row of DeepSeek's sparse MLA, which this model does not have", s.dtype_place)


def _fnuz(s: Subject) -> Iterator[Hit]:
    method = s.model.quant_method if s.model is not None else ""
    if (
        s.is_fp8
        and s.capability.startswith("gfx94")
        and method == "compressed-tensors"
        and s.model
        and s.model.kv_scheme
    ):
        yield Hit("compressed-tensors scales are not doubled for E4M3FNUZ", s.dtype_place)


RULE = (
    Rule(
        "vllm-e5m2-fp8-checkpoint",
        _VLLM,
        "error",
        "fp8_e5m2 with a checkpoint whose FP8 has KV scales",
        "'fp8_e5m2 kv-cache is not supported with fp8 checkpoints': the scales are for E4M3",
        "write fp8_e4m3, or use a checkpoint of another method",
        Source("spec", "model_executor/layers/attention/attention.py; vllm issue 8409", "0.6 to 0.32.0"),
        _e5m2,
    ),
    Rule(
        "vllm-auto-follows-checkpoint",
        _VLLM,
        "warning",
        "auto is not 16 bits: the checkpoint turns the KV cache to FP8 or NVFP4",
        "as a baseline it is already quantized, and as a rollback it does not roll back",
        "write --kv-cache-dtype bfloat16 for a baseline or a rollback",
        Source("spec", "utils/torch_utils.resolve_kv_cache_dtype_string; attention.py", "0.32.0"),
        _auto,
    ),
    Rule(
        "vllm-kv-scheme-not-taken",
        _VLLM,
        "error",
        "the checkpoint's kv_cache_scheme is none that vLLM takes",
        "only 8 bits, type float, symmetric, strategy tensor or attn_head are implemented",
        "calibrate again with num_bits 8, type float, symmetric true, strategy tensor",
        Source(
            "spec",
            "layers/quantization/compressed_tensors; compressed-tensors QuantizationArgs: type defaults to int",
            "0.32.0",
        ),
        _scheme,
    ),
    Rule(
        "vllm-modelopt-kv-only",
        _VLLM,
        "error",
        "vLLM does not load a ModelOpt checkpoint that quantizes the KV cache alone",
        "it raises \"Missing 'quant_algo'\"",
        "quantize the weights too, or write the scales with llm-compressor",
        Source("spec", "layers/quantization/modelopt.py", "0.32.0"),
        _kv_only,
    ),
    Rule(
        "vllm-scale-warning-word",
        _VLLM,
        "info",
        "the warning about uncalibrated query and softmax scales comes for the word fp8 alone",
        "the two words mean one format, and one of them is silent",
        "do not take the missing warning for calibrated scales",
        Source("spec", "layers/quantization/kv_cache.py", "0.32.0"),
        _warning_word,
        newest_only=True,
    ),
    Rule(
        "vllm-sparse-mla-word",
        _VLLM,
        "warning",
        "on 9.0 the words fp8 and fp8_e4m3 take two different kernels of sparse MLA",
        "FLASHMLA_SPARSE lists fp8 and not fp8_e4m3 (derived from the lists)",
        "write fp8 for FLASHMLA_SPARSE's own row, or name the backend",
        Source("spec", "v1/attention/backends/mla/flashmla_sparse.py", "0.32.0"),
        _sparse_word,
        newest_only=True,
    ),
    Rule(
        "vllm-nvfp4-mla",
        _VLLM,
        "error",
        "NVFP4 does not go with MLA",
        "vLLM raises an error; only nvfp4_ds_mla is for MLA",
        "write fp8, or nvfp4_ds_mla for sparse MLA on 10.x",
        Source("spec", "config/vllm.py validate_nvfp4_kv_cache_with_mla", "0.32.0"),
        _fp4_mla,
    ),
    Rule(
        "vllm-nvfp4-uneven-heads",
        _VLLM,
        "error",
        "NVFP4 needs K and V heads of one size",
        "one page holds both with one layout",
        "write fp8_e4m3",
        Source("spec", "utils/torch_utils.nvfp4_kv_cache_full_dim", "0.32.0"),
        _fp4_uneven,
    ),
    Rule(
        "vllm-ds-mla-model",
        _VLLM,
        "error",
        "a KV type of DeepSeek's sparse MLA on another model",
        "only the sparse MLA backends read that row",
        "write fp8_e4m3",
        Source("spec", "v1/attention/backends/mla/flashmla_sparse.py", "0.32.0"),
        _ds_mla_model,
    ),
    Rule(
        "vllm-fnuz-compressed-tensors",
        _VLLM,
        "warning",
        "on MI300 scales of a compressed-tensors checkpoint may be half of what they should be",
        "vLLM doubles scales for E4M3FNUZ in its FP8 method only (read, effect not verified)",
        "check on this GPU",
        Source("spec", "layers/quantization/kv_cache.py; compressed_tensors", "0.32.0"),
        _fnuz,
        newest_only=True,
    ),
)
