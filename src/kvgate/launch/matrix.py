"""Everything that launch is asked in tests and checks: engines x models x recipes x devices.

A finding about one answer is then a finding about all of them: no flag is invented, lint finds no error, arms differ in
nothing but the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import load
from kvgate.launch.ask import launch, resolve
from kvgate.launch.commands import Commands

#: One of each kind of cache, family and dtype that a writer treats apart; the reason behind each.
MODELS: tuple[str, ...] = (
    "Qwen/Qwen3-32B",  # dense, bf16
    "meta-llama/Llama-2-7b-hf",  # float16
    "Qwen/Qwen3-32B-FP8-Static-PerTensor",  # a checkpoint that starts in FP8
    "Qwen/Qwen2.5-7B-Instruct",  # known trouble with FP8
    "openai/gpt-oss-20b",  # sinks, windows of 128, head size 64
    "google/gemma-4-26B-A4B",  # head sizes 256 and 512, windows
    "nvidia/Gemma-4-31B-IT-NVFP4",  # the same, starts in FP8
    "microsoft/Phi-3-mini-4k-instruct",  # head size 96
    "XiaomiMiMo/MiMo-V2-Flash",  # K and V of unequal size
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",  # chunked attention
    "Qwen/Qwen3.5-27B",  # gated delta, head size 256
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",  # Mamba 2
    "moonshotai/Kimi-K3",  # KDA and MLA; known trouble
    "MiniMaxAI/MiniMax-M3",  # sparse attention on plain K and V
    "deepseek-ai/DeepSeek-V2-Lite",  # MLA, not of the V3 family
    "deepseek-ai/DeepSeek-V3",  # MLA
    "nvidia/Kimi-K2.5-NVFP4",  # MLA, starts in FP8
    "deepseek-ai/DeepSeek-V3.2",  # sparse MLA
    "nvidia/GLM-5.1-NVFP4",  # sparse MLA, GLM's rules, starts in FP8
    "deepseek-ai/DeepSeek-V4-Flash",  # packed latents, no 16 bits
    "stepfun-ai/Step-3.7-Flash",  # FlashAttention 4 by itself
)
#: One of each compute capability and vendor; "" is not named.
DEVICES: tuple[str, ...] = (
    "", "t4", "a100-80gb", "a10", "l40s", "h100", "h200", "b200", "b300", "rtx5090", "r100", "mi210", "mi300x",
    "mi355x", "cpu", "apple-16gb", "gaudi3", "tpu-v6e",
)  # fmt: skip
#: Recipes beside the engine's own words.
_RECIPES = ("native", "fp8_e4m3@unit", "fp8_e4m3@checkpoint", "fp8_e4m3/keep=sliding_window", "fp8_e4m3/keep=L0-1")
ENGINES: tuple[str, ...] = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True)
class Case:
    """One question, and the answer or the refusal."""

    engine: str
    model: str
    recipe: str
    device: str
    answer: Commands | None
    refusal: str = ""


def recipes(engine: str) -> tuple[str, ...]:
    """What is asked of an engine: each codec and word of its facts, and options."""
    facts = load(engine)
    words = (*(d.codec for d in facts.dtype), *(w.spelling for w in facts.word if w.spelling != "auto"))
    return tuple(dict.fromkeys((*words, *_RECIPES)))


def cases(
    engines: tuple[str, ...] = ENGINES,
    models: tuple[str, ...] = MODELS,
    devices: tuple[str, ...] = DEVICES,
    *,
    context_tokens: int = 8192,
    tp: int = 2,
) -> Iterator[Case]:
    """Every combination, in a fixed order."""
    for engine in engines:
        for model in models:
            for recipe in recipes(engine):
                for device in devices:
                    yield ask_one(engine, model, recipe, device, context_tokens=context_tokens, tp=tp)


def ask_one(
    engine: str, model: str, recipe: str, device: str, *, context_tokens: int = 8192, tp: int = 2, calibrate: str = ""
) -> Case:
    """One combination; a refusal is an answer."""
    try:
        answer = launch(
            engine, _resolved(model), recipe, device=device, context_tokens=context_tokens, tp=tp, calibrate=calibrate
        )
    except UserError as e:
        return Case(engine, model, recipe, device, None, str(e))
    return Case(engine, model, recipe, device, answer)


#: The catalogue does not change while a process runs.
_resolved = cache(resolve)
