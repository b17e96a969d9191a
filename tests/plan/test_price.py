"""Ideal bytes of recipes: from the codecs' rows, per cache, with everything that a recipe may keep native."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.plan.price import price, sequence_bytes


def model(*layers: LayerGeometry, **more: object) -> ModelGeometry:
    return replace(
        ModelGeometry("toy", "toy", layers, 131_072, 1000, Source("spec", "made for this test")),
        **more,  # type: ignore[arg-type]
    )


def stack(count: int, layer: LayerGeometry, first: int = 0) -> tuple[LayerGeometry, ...]:
    return tuple(replace(layer, index=first + i) for i in range(count))


GQA = LayerGeometry(0, "full_attention", 8, 128, 128)
SLIDING = LayerGeometry(0, "sliding_window", 16, 128, 128, window_tokens=1024)
MLA = LayerGeometry(0, "mla", 1, 576, 0, rope_dim=64)
QWEN3_32B = model(*stack(64, GQA))


@pytest.mark.parametrize(
    ("recipe", "per_token"),
    [
        ("native", 262_144),
        ("bf16", 262_144),
        ("fp8_e4m3", 131_072),
        ("q8_0", 139_264),
        ("k=q8_0,v=q4_0", 64 * 8 * (136 + 72)),
        ("nvfp4", 131_072 * 9 // 16),
    ],
)
def test_rows_come_from_the_codecs(recipe: str, per_token: int) -> None:
    """Bytes per token are heads times the codec's row, K and V apart."""
    priced = price(QWEN3_32B, parse(recipe))

    assert priced.bytes_per_token == per_token
    assert priced.growth_bytes_per_token == per_token
    assert sequence_bytes(priced, 32_768) == 32_768 * per_token


def test_a_window_bounds_what_a_sequence_holds() -> None:
    """A windowed layer counts in the bytes per token, not in the growth, and holds at most its window."""
    priced = price(
        model(*stack(10, replace(SLIDING, kind="full_attention", window_tokens=None)), *stack(52, SLIDING, 10)),
        parse("bf16"),
    )

    assert (priced.bytes_per_token, priced.growth_bytes_per_token) == (507_904, 81_920)
    assert sequence_bytes(priced, 512) == 512 * 507_904
    assert sequence_bytes(priced, 32_768) == 32_768 * 81_920 + 1024 * (507_904 - 81_920)


def test_states_and_cross_attention_are_fixed_bytes() -> None:
    """States count once a sequence, in their own dtype or the native one; cross attention once for its source."""
    state = (StatePart("conv", 100), StatePart("ssm", 1000, "f32"))
    cross = LayerGeometry(2, "cross_attention", 2, 64, 64, fixed_tokens=1500)
    priced = price(
        model(replace(GQA, kv_heads=0, state=state, kind="linear_attention"), replace(GQA, index=1), cross),
        parse("bf16"),
    )

    assert priced.bytes_per_token == 4096
    assert priced.fixed_bytes_per_sequence == 100 * 2 + 1000 * 4 + 1500 * 2 * 128 * 2


def test_compressed_rows_are_fractions() -> None:
    """A row that four tokens share costs a quarter of itself per token, and a begun row its whole room."""
    layer = LayerGeometry(0, "full_attention", 1, 512, 0, tokens_per_row=4, index_bytes_per_token=132)
    priced = price(model(layer), parse("bf16"))

    assert priced.bytes_per_token == Fraction(1024 + 132, 4)
    assert sequence_bytes(priced, 5) == 2 * 1156


def test_one_vector_has_one_type() -> None:
    """A latent layer stores K only; K and V recipes that differ are refused with what to write."""
    assert price(model(*stack(61, MLA)), parse("bf16")).bytes_per_token == 70_272
    assert price(model(*stack(61, MLA)), parse("fp8_e4m3")).bytes_per_token == 35_136
    with pytest.raises(UserError, match="one vector for K and V.*write q8_0"):
        price(model(MLA), parse("k=q8_0,v=q4_0"))
