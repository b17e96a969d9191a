"""Single options of vLLM that do not do what they look like."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.enginefacts.versions import Holds
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_VLLM = frozenset({"vllm"})
_INDEX = re.compile(r"\d{1,5}")
#: Windows from here on were worth quantizing on an H100: gemma-4-E2B has 512 and gained, gpt-oss has 128 and did not.
_WIDE_WINDOW_TOKENS = 512
_LONG_CONTEXT_TOKENS = 65_536


def _calculate(s: Subject) -> Iterator[Hit]:
    if not s.given("calculate_kv_scales"):
        return
    place = s.place("calculate_kv_scales")
    if s.version is not None and s.holds("0.32.0", "") is Holds.NO:
        yield Hit("--calculate-kv-scales is deprecated, and removed in a later release", place, "warning")
    else:
        yield Hit("--calculate-kv-scales is no option of vLLM any more", place)


def _names(s: Subject) -> list[str]:
    return (s.get("skip_layers") or "").replace(",", " ").split()


def _skip_word(s: Subject) -> Iterator[Hit]:
    bad = [n for n in _names(s) if not _INDEX.fullmatch(n) and n != "sliding_window"]
    if bad:
        yield Hit(
            f"--kv-cache-dtype-skip-layers knows layer numbers and sliding_window, not {', '.join(bad)}",
            s.place("skip_layers"),
        )


def _skip_comma(s: Subject) -> Iterator[Hit]:
    raw = (s.get("skip_layers") or "").split()
    glued = [w for w in raw if "," in w and not w.startswith("[")]
    if glued:
        yield Hit(f"{glued[0]} is one word for vLLM: layers are separated by blanks", s.place("skip_layers"))


def _skip_index(s: Subject) -> Iterator[Hit]:
    count = s.model.layer_count if s.model is not None else 0
    far = [n for n in _names(s) if _INDEX.fullmatch(n) and count and int(n) >= count]
    if far:
        yield Hit(f"the model has layers 0 to {count - 1}, not {', '.join(far)}", s.place("skip_layers"))


def _skip_mla(s: Subject) -> Iterator[Hit]:
    if "sliding_window" in _names(s) and s.model is not None and s.model.is_mla:
        yield Hit("MLA layers are skipped by number only: sliding_window does nothing", s.place("skip_layers"))


def _skip_none(s: Subject) -> Iterator[Hit]:
    model = s.model
    if (
        "sliding_window" in _names(s)
        and model is not None
        and model.layers
        and not model.is_mla
        and not model.has_windows
    ):
        yield Hit("the model has no sliding windows, so nothing is skipped", s.place("skip_layers"))


def _skip_wide(s: Subject) -> Iterator[Hit]:
    if "sliding_window" in _names(s) and s.model is not None and s.model.window_tokens >= _WIDE_WINDOW_TOKENS:
        yield Hit(f"windows of {s.model.window_tokens} tokens are kept in 16 bits", s.place("skip_layers"))


def _skip_native(s: Subject) -> Iterator[Hit]:
    if s.given("skip_layers") and s.k_word in ("auto", "bfloat16", "float16") and not s.is_quantized:
        yield Hit("layers are skipped, and no KV type is set that they could be skipped from", s.place("skip_layers"))


def _bytes(s: Subject) -> Iterator[Hit]:
    if s.given("kv_memory_bytes") and s.given("memory_fraction"):
        yield Hit("--kv-cache-memory-bytes makes --gpu-memory-utilization void", s.place("memory_fraction"))


def _override(s: Subject) -> Iterator[Hit]:
    if s.given("blocks_override"):
        yield Hit("--num-gpu-blocks-override sets the capacity whatever fits", s.place("blocks_override"))


def _hybrid(s: Subject) -> Iterator[Hit]:
    if s.given("no_hybrid_manager") and s.model is not None and (s.model.has_windows or s.model.is_hybrid):
        yield Hit("without the hybrid manager windows are charged as full attention", s.place("no_hybrid_manager"))


def _backend_env(s: Subject) -> Iterator[Hit]:
    if "VLLM_ATTENTION_BACKEND" not in s.command.env:
        return
    place = s.command.place.at("VLLM_ATTENTION_BACKEND")
    if s.is_newest:
        yield Hit("VLLM_ATTENTION_BACKEND is read by nothing", place)
    else:
        why = "older releases read it; in which one that ended was not read"
        yield Hit("VLLM_ATTENTION_BACKEND chooses nothing from some release before 0.32.0 on", place, "info", why)


def _accumulation(s: Subject) -> Iterator[Hit]:
    word = s.effective_words[0]
    if word not in ("fp8", "fp8_e4m3") or not s.on_capability(("9",)) or s.backend not in (None, "FLASH_ATTN"):
        return
    if s.model is not None and s.model.is_mla:
        return
    context = s.context_tokens
    if context is not None and context < _LONG_CONTEXT_TOKENS:
        return
    length = f"at {context:,} tokens" if context else "at contexts near 100,000 tokens"
    off = s.command.env.get("FLASH_ATTENTION_DISABLE_FP8_TWO_LEVEL_ACCUMULATION", "").lower()
    if off not in ("", "0", "false"):
        where = s.command.place.at("FLASH_ATTENTION_DISABLE_FP8_TWO_LEVEL_ACCUMULATION")
        yield Hit(f"two-level accumulation is switched off {length}", where)
    elif s.version is not None and s.holds("", "0.10.3") is Holds.YES:
        yield Hit(f"this release's FlashAttention 3 has no two-level accumulation {length}", s.dtype_place)
    elif s.version is not None and s.holds("", "0.19.1") is Holds.YES:
        yield Hit(f"nobody has read whether this release has two-level accumulation {length}", s.dtype_place, "warning")


RULE = (
    Rule(
        "vllm-calculate-kv-scales",
        _VLLM,
        "error",
        "--calculate-kv-scales was removed",
        "removed in pull 49389 (2026-07-22) and gone in 0.32.0; the first release without it was not read",
        "calibrate the checkpoint (llm-compressor), or accept scales of 1.0 and check",
        Source("spec", "vllm pulls 37201 and 49389; config/cache.py", "0.32.0"),
        _calculate,
    ),
    Rule(
        "vllm-skip-layers-word",
        _VLLM,
        "error",
        "the skip list holds a word that names no layers",
        "only layer numbers and sliding_window are looked for; any other word skips nothing, without a message",
        "write layer numbers, or sliding_window",
        Source("spec", "model_executor/layers/attention/attention.py", "0.32.0"),
        _skip_word,
    ),
    Rule(
        "vllm-skip-layers-comma",
        _VLLM,
        "error",
        "layers to skip are joined by commas",
        "the option takes a list of words, so the joined word matches no layer",
        "separate them by blanks",
        Source("spec", "engine/arg_utils.py kv_cache_dtype_skip_layers: list[str]", "0.32.0"),
        _skip_comma,
    ),
    Rule(
        "vllm-skip-layers-index",
        _VLLM,
        "error",
        "the skip list names a layer that the model does not have",
        "it skips nothing, without a message",
        "count from 0",
        Source("spec", "model_executor/layers/attention/attention.py extract_layer_index", "0.32.0"),
        _skip_index,
    ),
    Rule(
        "vllm-skip-layers-mla",
        _VLLM,
        "error",
        "sliding_window skips nothing on MLA",
        "mla_attention.py looks at layer numbers only",
        "write layer numbers",
        Source("spec", "model_executor/layers/attention/mla_attention.py", "0.32.0"),
        _skip_mla,
    ),
    Rule(
        "vllm-skip-layers-no-windows",
        _VLLM,
        "warning",
        "sliding_window is to be skipped on a model without windows",
        "the option does nothing",
        "leave it out",
        Source("spec", "model_executor/layers/attention/attention.py", "0.32.0"),
        _skip_none,
    ),
    Rule(
        "vllm-skip-layers-costs",
        _VLLM,
        "warning",
        "all windows are kept in 16 bits where quantizing them pays",
        "skipping paid for windows of 128 (gpt-oss-20b); gemma-4-E2B with 512 gained from quantizing them",
        "check both, with and without the windows",
        Source("spec", "vllm blog of 2026-04-22, H100", "0.19.1"),
        _skip_wide,
    ),
    Rule(
        "vllm-skip-layers-no-dtype",
        _VLLM,
        "warning",
        "layers are skipped of a cache that is not quantized",
        "a skipped layer gets the model's dtype, which all layers have here",
        "add --kv-cache-dtype",
        Source("spec", "model_executor/layers/attention/attention.py", "0.32.0"),
        _skip_native,
    ),
    Rule(
        "vllm-kv-bytes-void-fraction",
        _VLLM,
        "warning",
        "two options say how much memory the cache gets",
        "with bytes given, profiling is skipped and the fraction is not looked at",
        "leave one of them out",
        Source("spec", "config/cache.py; v1/worker/gpu_worker.py", "0.32.0"),
        _bytes,
    ),
    Rule(
        "vllm-blocks-override",
        _VLLM,
        "warning",
        "the number of blocks is set by hand",
        "it is for tests: capacity is then no evidence of the KV type",
        "leave it out",
        Source("spec", "config/cache.py num_gpu_blocks_override", "0.32.0"),
        _override,
    ),
    Rule(
        "vllm-hybrid-manager-off",
        _VLLM,
        "warning",
        "the hybrid KV cache manager is switched off on a model with windows or states",
        "sliding layers are then charged as full attention, and capacity falls",
        "leave --disable-hybrid-kv-cache-manager out",
        Source("spec", "v1/core/kv_cache_utils.py", "0.32.0"),
        _hybrid,
    ),
    Rule(
        "vllm-backend-variable",
        _VLLM,
        "error",
        "VLLM_ATTENTION_BACKEND no longer chooses the backend",
        "no code of 0.32.0 reads it: the backend is not pinned, and nothing says so",
        "write --attention-backend",
        Source("spec", "vllm/envs.py: the name does not occur", "0.32.0"),
        _backend_env,
        newest_only=True,
    ),
    Rule(
        "vllm-fa3-one-accumulator",
        _VLLM,
        "error",
        "FP8 attention on Hopper at long contexts without two-level accumulation",
        "the tensor core's accumulator loses bits: a needle at 128K fell from 91 to 13 %, and came back to 89 %",
        "use 0.19.1 or later and leave two-level accumulation on, or another backend",
        Source(
            "spec",
            "vllm blog of 2026-04-22 (0.10.2 against 0.19.1); vllm-project/flash-attention pull 104",
            "2026-04-22",
        ),
        _accumulation,
    ),
)
