"""What a plan already knows about whether to quantize at all, and the recipe to try first.

The four conditions for staying on BF16 are vLLM's own. Two follow from the model and the lengths, one needs to know
what matters to the person, and one only an acceptance run can tell. Nothing here says that a recipe is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvgate.core.geometry import ModelGeometry
from kvgate.core.source import Source
from kvgate.plan.lengths import Lengths
from kvgate.plan.slope import BLOG

Holds = Literal["yes", "no", "it depends", "unknown"]
#: Where FP8 began to win on Llama-3.1-8B on H100; B200 about 4K.
BREAK_EVEN_TOKENS = 7_010
#: The same of architectures that were measured themselves; gpt-oss-20b with its windows native: 7,659.
_OWN_BREAK_EVEN = {"gpt_oss": (22_109, "gpt-oss-20b"), "gpt-oss": (22_109, "gpt-oss-20b")}
#: gpt-oss's 128 tokens were faster kept native; gemma-4-E2B's 512 were not.
SMALL_WINDOW_TOKENS = 256
LARGE_HEAD_DIM = 256
#: Engines on whose kernels the published lengths hold; "" asks without an engine and means vLLM.
_SLOPE_ENGINES = ("", "vllm")
_SKIP_ENGINES = ("vllm", "lab")
_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the conditions for staying on BF16.

    Attributes:
        holds: "yes" speaks for staying. text: the finding in words.
    """

    id: str
    title: str
    holds: Holds
    text: str
    source: Source


@dataclass(frozen=True, slots=True)
class First:
    """The recipe to try first; "native" is to stay."""

    recipe: str
    why: str
    source: Source


def conditions(
    geometry: ModelGeometry,
    *,
    context_tokens: int,
    lengths: Lengths | None = None,
    architecture: str = "",
    engine: str = "",
) -> tuple[Condition, ...]:
    """The four conditions, for this model at these lengths.

    Args:
        context_tokens: the cap; used where there are no `lengths`. architecture: of the device ("hopper"); "" unknown.
        engine: whose kernels would run; "" for vLLM's, on which the lengths were measured.
    """
    return (
        _short(geometry.architecture, context_tokens, lengths, engine),
        _large_heads(geometry, architecture),
        Condition(
            "accuracy",
            "uncalibrated accuracy under 95 % of BF16's on your workload",
            "unknown",
            "arithmetic cannot tell; kvgate check measures it on your engine",
            BLOG,
        ),
        _small_windows(geometry),
    )


def first_recipe(geometry: ModelGeometry, engine: str, known: tuple[Condition, ...]) -> First:
    """What to try first on this engine."""
    found = {c.id: c for c in known}
    if engine == "llama_cpp":
        dims = {d for layer in geometry.layers if layer.kv_heads for d in (layer.k_dim, layer.v_dim) if d}
        odd = sorted(d for d in dims if d % _BLOCK)
        source = Source("spec", "llama.cpp block formats; q4_0 takes similarity from 81.6 % to 8.3 % in one harness")
        if odd:
            return First("native", f"q8_0 stores blocks of {_BLOCK} elements, and heads of {odd[0]} do not fit", source)
        return First("q8_0", "the 8-bit block format for K and V; smaller ones only with proof", source)
    if found["short"].holds == "yes":
        return First("native", "at these lengths FP8 does not pay in latency; quantize only if you need the room", BLOG)
    if found["small_windows"].holds == "yes" and engine in _SKIP_ENGINES:
        return First("fp8_e4m3/keep=sliding_window", "small windows gain no room and were faster native", BLOG)
    return First("fp8_e4m3", "the format with the widest support, without calibration first", BLOG)


def _short(architecture: str, context_tokens: int, lengths: Lengths | None, engine: str) -> Condition:
    if engine not in _SLOPE_ENGINES:
        text = f"nobody has published from which length a smaller cache is faster on {engine}; measure it there"
        return Condition("short", "contexts too short to pay", "unknown", text, BLOG)
    typical = context_tokens if lengths is None else round(lengths.mean)
    what = "the context of" if lengths is None else "a mean length of"
    least, model = _OWN_BREAK_EVEN.get(architecture, (BREAK_EVEN_TOKENS, "Llama-3.1-8B"))
    holds: Holds = "yes" if typical < least else "no"
    side = "below" if holds == "yes" else "above"
    return Condition(
        "short",
        f"contexts under about {least // 1000}K tokens",
        holds,
        f"{what} {typical:,} tokens is {side} the {least:,} from which FP8 won on {model} (vLLM, H100)",
        BLOG,
    )


def _large_heads(geometry: ModelGeometry, architecture: str) -> Condition:
    # A latent's 576 elements are no head dimension: MLA has its own kernels.
    dims = sorted({layer.k_dim for layer in geometry.layers if layer.kv_heads and not layer.is_latent})
    large = [d for d in dims if d >= LARGE_HEAD_DIM]
    title = "head_dim 256 and prefill latency matters"
    if not large:
        shown = ", ".join(map(str, dims)) or "none"
        return Condition("large_heads", title, "no", f"head dimensions: {shown}", BLOG)
    text = f"heads of {large[0]} elements: prefill took 1.6 x on H100 (gemma-4-E2B's quadratic term)"
    if architecture.startswith("blackwell"):
        return Condition("large_heads", title, "no", text + "; Blackwell with FlashInfer does not need that step", BLOG)
    return Condition("large_heads", title, "it depends", text + "; stay if time to first token matters", BLOG)


def _small_windows(geometry: ModelGeometry) -> Condition:
    attention = [layer for layer in geometry.layers if layer.kv_heads]
    small = [
        layer for layer in attention if layer.window_tokens is not None and layer.window_tokens <= SMALL_WINDOW_TOKENS
    ]
    title = "many small sliding windows (or keep those layers native)"
    if small and 2 * len(small) >= len(attention):
        text = f"{len(small)} of {len(attention)} caches have a window of {small[0].window_tokens} tokens"
        return Condition("small_windows", title, "yes", text, BLOG)
    windows = sorted({layer.window_tokens for layer in attention if layer.window_tokens is not None})
    text = f"windows of {', '.join(f'{w:,}' for w in windows)} tokens are not small" if windows else "no windows"
    return Condition("small_windows", title, "no", text, BLOG)
