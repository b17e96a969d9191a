"""What a recipe may do to speed, before anything is measured: a prior, and what others have measured.

Each decoded token reads the whole cache of its sequence, so one more token of context costs at least

    growth bytes per token / bandwidth

of inter-token latency. Kernels reach a part of that; the part is known from published slopes only for a few models.
Storage ratio and time ratio are two numbers: bytes are arithmetic, slopes are measured. Knows no engine's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source

BLOG = Source(
    "spec", "The State of FP8 KV-Cache and Attention Quantization in vLLM, vllm.ai/blog/2026-04-22-fp8-kvcache"
)
HARNESS = Source("spec", "single-operator harness, June 2026: 7B coding model, Q4_K_M weights, llama.cpp, 16 GB card")


@dataclass(frozen=True, slots=True)
class Slope:
    """A published inter-token-latency slope.

    Attributes:
        growth_bytes: bytes that one more token of context adds to what a decode step reads. ms: per token of context.
        bits: 16 or 8, what is stored in layers without a window. usual: KV heads and head dims that most models have.
    """

    model: str
    gpu: str
    bytes_per_s: int
    bits: int
    growth_bytes: int
    ms: float
    usual: bool = True

    @property
    def efficiency(self) -> float:
        """Share of the bandwidth that the slope amounts to."""
        return self.growth_bytes / self.bytes_per_s / (self.ms / 1000)


_H100, _B200 = 3_350_000_000_000, 7_670_000_000_000
#: BLOG; vLLM 0.19.1, one sequence at a time, 256 to 125k tokens. gpt-oss has 12 growing layers of 8 heads of 64,
#: Llama 32 of 8 heads of 128, gemma-4-E2B 3 of one head of 512.
MEASURED = (
    Slope("Llama-3.1-8B", "H100", _H100, 16, 131_072, 4.37e-05),
    Slope("Llama-3.1-8B", "H100", _H100, 8, 65_536, 2.37e-05),
    Slope("Llama-3.1-8B", "B200", _B200, 16, 131_072, 1.80e-05),
    Slope("Llama-3.1-8B", "B200", _B200, 8, 65_536, 9.72e-06),
    Slope("gpt-oss-20b", "H100", _H100, 16, 24_576, 8.94e-06),
    Slope("gpt-oss-20b", "H100", _H100, 8, 12_288, 7.14e-06),
    Slope("gpt-oss-20b", "B200", _B200, 16, 24_576, 3.56e-06),
    Slope("gpt-oss-20b", "B200", _B200, 8, 12_288, 2.06e-06),
    Slope("gemma-4-E2B", "H100", _H100, 16, 6_144, 5.30e-05, usual=False),
    Slope("gemma-4-E2B", "H100", _H100, 8, 3_072, 3.60e-05, usual=False),
)
#: Stored bits of the codecs that those slopes speak of.
_BITS: Mapping[str, int] = {"bf16": 16, "f16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8}
_MEASURED_ENGINES = ("vllm",)


@dataclass(frozen=True, slots=True)
class Prior:
    """Inter-token latency per token of context.

    Attributes:
        least_ms: at full bandwidth; no kernel can be faster. lo_ms, hi_ms: at the efficiencies that were published;
            None where none was.
        efficiency: those shares of the bandwidth, low and high.
    """

    least_ms: float
    lo_ms: float | None
    hi_ms: float | None
    efficiency: tuple[float, float] | None
    why: str
    source: Source


def prior(
    geometry: ModelGeometry, recipe: Recipe, growth_bytes: Fraction, *, bytes_per_s: int, engine: str, native: str
) -> Prior:
    """A range for the slope on one rank.

    Args:
        growth_bytes: of the rank, in layers without a window. native: codec of the native recipe.
    """
    least = float(growth_bytes) / bytes_per_s * 1000
    words = {side.codec for _, side in recipe.sides()} or {native}
    bits = {_BITS.get(w) for w in words}
    if engine not in _MEASURED_ENGINES or None in bits or len(bits) != 1:
        why = f"no published slope of {recipe} on {engine or 'this engine'}; only the lower bound is known"
        return Prior(least, None, None, None, why, Source("arithmetic", "growth bytes per token / bandwidth"))
    usual = _usual(geometry)
    rows = [s for s in MEASURED if s.bits in bits and (s.usual or not usual)]
    low, high = min(s.efficiency for s in rows), max(s.efficiency for s in rows)
    models = ", ".join(dict.fromkeys(s.model for s in rows))
    why = f"{low:.0%} to {high:.0%} of the bandwidth, as measured on {models}"
    if not usual:
        why += "; this model's heads are unlike most, so the range is wide"
    return Prior(least, least / high, least / low, (low, high), why, BLOG)


def _usual(geometry: ModelGeometry) -> bool:
    """Several KV heads of 64 to 128 elements, as the models whose slopes lie close together."""
    growing = [layer for layer in geometry.layers if layer.grows]
    return all(layer.kv_heads > 1 and 64 <= layer.k_dim <= 128 for layer in growing)


@dataclass(frozen=True, slots=True)
class Speed:
    """Time per token against the native cache, as others have measured it; under 1 is faster.

    Attributes:
        lo, hi: smallest and largest of `rows`; None where nobody has measured.
        what: which time. rows: each measurement in words.
    """

    lo: float | None
    hi: float | None
    what: str
    rows: tuple[str, ...]
    source: Source


#: (engine, codec) -> what was measured, the ratios with the words for each, source.
_SPEEDS: Mapping[tuple[str, str], tuple[str, tuple[tuple[float, str], ...], Source]] = {
    ("vllm", "fp8_e4m3"): (
        "ITL slope per token of context, FP8 over BF16",
        (
            (0.54, "0.54 Llama-3.1-8B on H100 and on B200"),
            (0.58, "0.58 gpt-oss-20b on B200"),
            (0.68, "0.68 gemma-4-E2B on H100"),
            (0.71, "0.71 gpt-oss-20b on H100 with sliding-window layers kept"),
            (0.80, "0.80 gpt-oss-20b on H100, all layers"),
        ),
        BLOG,
    ),
    ("llama_cpp", "q8_0"): (
        "time per token, q8_0 over f16",
        ((81.8 / 76.4, "1.07: 76.4 against 81.8 tokens/s"),),
        HARNESS,
    ),
    ("llama_cpp", "q4_0"): (
        "time per token, q4_0 over f16",
        ((81.8 / 80.3, "1.02: 80.3 against 81.8 tokens/s"),),
        HARNESS,
    ),
}


def speed(recipe: Recipe, engine: str) -> Speed:
    """Published ratios for this recipe's codec on this engine, other models than yours."""
    words = {side.codec for _, side in recipe.sides()}
    found = _SPEEDS.get((engine, words.pop())) if len(words) == 1 else None
    if found is None:
        nobody = Source("assumed", "nothing published was found")
        return Speed(None, None, f"not measured for {recipe} on {engine or 'this engine'}", (), nobody)
    what, rows, source = found
    ratios = [ratio for ratio, _ in rows]
    return Speed(min(ratios), max(ratios), what, tuple(text for _, text in rows), source)
