"""TensorRT-LLM: words of its options, and what its cache asks of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from kvgate.core.source import Source
from kvgate.lint.rule import Hit, Rule
from kvgate.lint.subject import Subject

_TRT = frozenset({"trtllm"})
_UNVERIFIED = ("--kv_cache_dtype", "--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction")


def _cli(s: Subject) -> Iterator[Hit]:
    for setting in s.command.settings:
        if setting.origin == "argv" and setting.name in _UNVERIFIED:
            yield Hit(f"{setting.written} on the command line was not verified", setting.place)


def _nvfp4(s: Subject) -> Iterator[Hit]:
    if s.capability and not s.on_capability(("10.0", "10.3")):
        # No checkpoint helps on this device, which is a finding of its own.
        return
    if s.k_word == "nvfp4" and s.model is not None and s.model.config and not s.model.kv_algorithm.startswith("NVFP4"):
        yield Hit("an NVFP4 cache needs a checkpoint that ModelOpt made for it", s.dtype_place)


def _sixteen(s: Subject) -> Iterator[Hit]:
    if s.k_word in ("bf16", "bfloat16", "fp16", "float16", "half"):
        yield Hit(f"whether dtype takes {s.k_word!r} was not verified", s.dtype_place)


def _auto(s: Subject) -> Iterator[Hit]:
    if s.k_word == "auto" and s.checkpoint_word:
        yield Hit(f"auto becomes {s.checkpoint_word} here: the checkpoint asks for it", s.place("kv_dtype"))


RULE = (
    Rule(
        "trtllm-cli-option",
        _TRT,
        "info",
        "the cache is set on the command line",
        "the documentation shows the YAML file; the option was not verified",
        "write kv_cache_config in a file, and give it with --config",
        Source("spec", "TensorRT-LLM docs, trtllm-serve", "1.4.0rc4"),
        _cli,
    ),
    Rule(
        "trtllm-nvfp4-checkpoint",
        _TRT,
        "error",
        "an NVFP4 cache on a checkpoint that was not quantized for it",
        "NVFP4 needs offline quantization with ModelOpt, unlike FP8",
        "run ModelOpt with --kv_cache_qformat nvfp4, or use fp8",
        Source("spec", "TensorRT-LLM docs, features/quantization", "1.3.0rc27 and later"),
        _nvfp4,
    ),
    Rule(
        "trtllm-sixteen-bits",
        _TRT,
        "warning",
        "a 16-bit word for the cache's dtype",
        "one report says that only auto, fp8 and nvfp4 are taken at 1.2.0rc7",
        "write auto, and make sure that the checkpoint has no KV algorithm",
        Source("spec", "ModelOpt issue 763", "1.2.0rc7"),
        _sixteen,
    ),
    Rule(
        "trtllm-auto-follows-checkpoint",
        _TRT,
        "warning",
        "auto is not 16 bits: the checkpoint turns the KV cache to FP8 or NVFP4",
        "as a baseline it is already quantized, and no word is known that rolls it back",
        "use a checkpoint without a KV algorithm for the baseline",
        Source("spec", "TensorRT-LLM llmapi/llm_args.py", "1.4.0rc4"),
        _auto,
    ),
)
