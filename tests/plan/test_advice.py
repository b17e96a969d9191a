"""What a plan knows before anything runs: the four conditions, the first recipe, a slope's range, published ratios."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.plan.advice import conditions, first_recipe
from kvgate.plan.lengths import Lengths
from kvgate.plan.slope import MEASURED, prior, speed

HERE = Source("spec", "made for this test")
GQA = LayerGeometry(0, "full_attention", 8, 128, 128)
SMALL = LayerGeometry(0, "sliding_window", 8, 64, 64, window_tokens=128)
H100 = 3_350_000_000_000


def model(*layers: LayerGeometry) -> ModelGeometry:
    return ModelGeometry("toy", "toy", layers, 131_072, 1000, HERE)


def held(
    geometry: ModelGeometry, context: int = 32_768, lengths: Lengths | None = None, on: str = "hopper"
) -> dict[str, str]:
    found = conditions(geometry, context_tokens=context, lengths=lengths, architecture=on)
    return {c.id: c.holds for c in found}


GPT_OSS = model(replace(SMALL, index=0), replace(GQA, index=1, k_dim=64, v_dim=64))
GEMMA_4_E2B = model(
    replace(SMALL, k_dim=256, v_dim=256, kv_heads=1, window_tokens=512), replace(GQA, kv_heads=1, k_dim=512, v_dim=512)
)


def test_there_are_four_conditions_with_their_source() -> None:
    """All four are listed, also those that arithmetic cannot decide."""
    found = conditions(model(GQA), context_tokens=32_768)

    assert [c.id for c in found] == ["short", "large_heads", "accuracy", "small_windows"]
    assert held(model(GQA))["accuracy"] == "unknown"
    assert all("vllm.ai" in c.source.ref for c in found)


@pytest.mark.parametrize(("context", "holds"), [(7_009, "yes"), (7_010, "no"), (131_072, "no")])
def test_short_contexts_speak_for_staying(context: int, holds: str) -> None:
    """Under the break-even of about 7K tokens FP8 does not pay in latency."""
    assert held(model(GQA), context)["short"] == holds


@pytest.mark.parametrize("engine", ["llama_cpp", "sglang", "trtllm"])
def test_lengths_measured_on_vllm_are_no_other_engine_s(engine: str) -> None:
    """Where it pays on another engine is not known, and that is said instead of vLLM's number."""
    found = {c.id: c for c in conditions(model(GQA), context_tokens=2_048, engine=engine)}

    assert found["short"].holds == "unknown" and engine in found["short"].text
    assert "7,010" not in found["short"].text and "7K" not in found["short"].title


@pytest.mark.parametrize(("context", "holds"), [(22_108, "yes"), (22_109, "no")])
def test_a_model_measured_itself_has_its_own_length(context: int, holds: str) -> None:
    """gpt-oss-20b breaks even three times as late as Llama-3.1-8B."""
    geometry = replace(model(GQA), architecture="gpt_oss")

    (short,) = (c for c in conditions(geometry, context_tokens=context) if c.id == "short")

    assert short.holds == holds and "gpt-oss-20b" in short.text


def test_real_lengths_count_more_than_the_cap() -> None:
    """A cap of 128K with requests of 2K is short."""
    assert held(model(GQA), 131_072, Lengths(((2000, 9), (10_000, 1)), HERE))["short"] == "yes"


@pytest.mark.parametrize(
    ("geometry", "architecture", "holds"),
    [
        (model(GQA), "hopper", "no"),
        (GEMMA_4_E2B, "hopper", "it depends"),
        (GEMMA_4_E2B, "blackwell", "no"),
        (model(LayerGeometry(0, "mla", 1, 576, 0, rope_dim=64)), "hopper", "no"),
    ],
)
def test_large_heads_matter_for_prefill(geometry: ModelGeometry, architecture: str, holds: str) -> None:
    """Heads of 256 slow prefill on Hopper; a latent of 576 elements is no head."""
    assert held(geometry, on=architecture)["large_heads"] == holds


@pytest.mark.parametrize(("geometry", "holds"), [(GPT_OSS, "yes"), (GEMMA_4_E2B, "no"), (model(GQA), "no")])
def test_many_small_windows_stay_native(geometry: ModelGeometry, holds: str) -> None:
    """gpt-oss's 128 tokens were faster native, gemma-4-E2B's 512 were not."""
    assert held(geometry)["small_windows"] == holds


@pytest.mark.parametrize(
    ("geometry", "engine", "context", "recipe"),
    [
        (model(GQA), "vllm", 32_768, "fp8_e4m3"),
        (model(GQA), "vllm", 4_096, "native"),
        (GPT_OSS, "vllm", 32_768, "fp8_e4m3/keep=sliding_window"),
        (GPT_OSS, "sglang", 32_768, "fp8_e4m3"),
        (model(GQA), "llama_cpp", 4_096, "q8_0"),
        (model(replace(GQA, k_dim=80, v_dim=80)), "llama_cpp", 32_768, "native"),
    ],
)
def test_the_recipe_to_try_first(geometry: ModelGeometry, engine: str, context: int, recipe: str) -> None:
    """What the engine can store and the conditions leave."""
    found = first_recipe(geometry, engine, conditions(geometry, context_tokens=context))

    assert found.recipe == recipe
    assert found.why and found.source.ref


def test_published_slopes_lie_inside_the_prior() -> None:
    """The range for Llama-3.1-8B on H100 contains what was measured, and no slope beats the bandwidth."""
    llama = model(*(replace(GQA, index=i) for i in range(32)))
    for recipe, growth, ms in (("native", 131_072, 4.37e-05), ("fp8_e4m3", 65_536, 2.37e-05)):
        found = prior(llama, parse(recipe), Fraction(growth), bytes_per_s=H100, engine="vllm", native="bf16")

        assert found.lo_ms is not None and found.hi_ms is not None
        assert found.least_ms < found.lo_ms <= ms <= found.hi_ms
    assert all(s.efficiency < 1 for s in MEASURED)


def test_a_model_unlike_the_measured_ones_has_a_wide_range() -> None:
    """One KV head reached a thirtieth of the bandwidth, so such a model's range says so."""
    usual = prior(model(GQA), parse("native"), Fraction(4096), bytes_per_s=H100, engine="vllm", native="bf16")
    other = prior(GEMMA_4_E2B, parse("native"), Fraction(4096), bytes_per_s=H100, engine="vllm", native="bf16")

    assert usual.efficiency is not None and usual.efficiency[0] > 0.8
    assert other.efficiency is not None and other.efficiency[0] < 0.05
    assert "unlike" in other.why


@pytest.mark.parametrize(("recipe", "engine"), [("nvfp4", "vllm"), ("q8_0", "llama_cpp"), ("fp8_e4m3", "sglang")])
def test_without_a_published_slope_there_is_only_a_bound(recipe: str, engine: str) -> None:
    """A range is never invented for a codec or an engine that nobody measured."""
    found = prior(model(GQA), parse(recipe), Fraction(1000), bytes_per_s=10**12, engine=engine, native="bf16")

    assert (found.lo_ms, found.hi_ms, found.efficiency) == (None, None, None)
    assert found.least_ms == pytest.approx(1e-6, rel=1e-12)
    assert recipe in found.why


def test_speed_is_not_storage() -> None:
    """FP8 halves the bytes; its measured slopes were 54 % to 80 % of BF16's. 54 % is no memory figure."""
    found = speed(parse("fp8_e4m3"), "vllm")

    assert (found.lo, found.hi) == (0.54, 0.8)
    assert len(found.rows) == 5
    assert speed(parse("q8_0"), "llama_cpp").lo == 81.8 / 76.4, "q8_0 was the slowest of three"
    assert speed(parse("nvfp4"), "vllm").lo is None
    assert speed(parse("k=q8_0,v=q4_0"), "llama_cpp").lo is None
