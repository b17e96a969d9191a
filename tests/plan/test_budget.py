"""Memory that is left for the cache, and what it holds: the worked examples, to the byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.core.units import gb_text, parse_bytes
from kvgate.plan.budget import plain_budget, shortfall, shortfall_text
from kvgate.plan.concurrency import cost, ideal
from kvgate.plan.lengths import Lengths
from kvgate.plan.price import price
from kvgate.plan.replicas import rollback
from kvgate.plan.terms import Budget, Price, Rank, Term

HERE = Source("spec", "made for this test")
EXAMPLES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "budget_examples.json").read_text())[
    "budget_examples"
]
GQA = LayerGeometry(0, "full_attention", 8, 128, 128)


def model(*layers: LayerGeometry) -> ModelGeometry:
    return ModelGeometry("toy", "toy", layers, 40_960, 1000, HERE)


QWEN3_32B = model(*(replace(GQA, index=i) for i in range(64)))


def plain(
    device_bytes: int, weights: int, overhead: int | None = 6_000_000_000, fraction: float | None = 0.92
) -> Budget:
    rank = Rank("gpu0", price(QWEN3_32B, parse("bf16")), weights)
    return plain_budget(rank, device_bytes=device_bytes, device_source=HERE, fraction=fraction, overhead_bytes=overhead)


def room(n_bytes: int) -> Budget:
    return Budget("gpu0", (Term("room", n_bytes, "", HERE),))


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda r: f"{r['gpu']}, {r['weights']}, {r['bytes_per_token']}")
def test_worked_examples(row: dict[str, Any]) -> None:
    """Budget, tokens and whole sequences of Qwen3-32B on one H200, by the three sizes that people use for it."""
    weights = parse_bytes(row["weights"].split("weights ")[1], "weights")
    budget = plain(row["total"], weights, row["overhead"], row["util"])
    recipe = {262_144: "bf16", 131_072: "fp8_e4m3"}[row["bytes_per_token"]]
    found = ideal([cost("gpu0", [price(QWEN3_32B, parse(recipe))])], [budget], context_tokens=row["seq_len"])

    assert budget.bytes == row["kv_budget"]
    assert (found.tokens, found.sequences) == (row["tokens"], row["seqs"])


def test_a_budget_is_the_sum_of_its_terms() -> None:
    """Nothing is hidden: the terms add up, and what nobody measured is marked."""
    budget = plain(141_000_000_000, 65_520_000_000, None, None)

    assert sum(t.bytes for t in budget.terms) == budget.bytes == 58_200_000_000
    assert [t.name for t in budget.terms if t.assumed] == ["overhead"]
    assert all(str(t.source) for t in budget.terms)


def test_weights_that_do_not_fit_leave_nothing() -> None:
    """A budget is never negative, and says by how much it is short."""
    budget = plain(24_000_000_000, 65_520_000_000)

    assert budget.bytes == 0
    assert shortfall(budget) == 65_520_000_000 + 6_000_000_000 - 22_080_000_000
    assert "49.44 GB more than gpu0 may use" in shortfall_text(budget)
    assert shortfall_text(plain(141_000_000_000, 65_520_000_000)) == ""


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_a_fraction_that_is_no_share_is_refused(fraction: float) -> None:
    """NaN, zero, negative or over one."""
    with pytest.raises(UserError, match=r"not a share of memory; give a number such as 0\.92"):
        plain(141_000_000_000, 1, 0, fraction)


def test_unknown_weights_and_no_memory_are_refused() -> None:
    """A budget needs both, and says how to give them."""
    rank = Rank("gpu0", price(QWEN3_32B, parse("bf16")), None)

    with pytest.raises(UserError, match=r"weights of gpu0 are not known; give --weights"):
        plain_budget(rank, device_bytes=1, device_source=HERE)
    with pytest.raises(UserError, match="--device-memory"):
        plain(0, 1)


def test_the_tightest_rank_decides() -> None:
    """With unequal shares the rank whose budget is spent first limits the whole, times the replicas."""
    wide, thin = price(QWEN3_32B, parse("bf16")), price(model(GQA), parse("bf16"))
    found = ideal(
        [cost("stage0", [thin]), cost("stage1", [wide])],
        [room(10 * 32_768 * 4096), room(3 * 32_768 * 262_144 + 1)],
        context_tokens=32_768,
        replicas=4,
    )

    assert (found.sequences, found.limiting_rank) == (12, "stage1")


WINDOWED = price(model(GQA, LayerGeometry(1, "sliding_window", 8, 128, 128, window_tokens=1024)), parse("bf16"))


@pytest.mark.parametrize(("price_", "prefix"), [(price(QWEN3_32B, parse("bf16")), 2048), (WINDOWED, 900)])
def test_a_shared_prefix_is_stored_once(price_: Price, prefix: int) -> None:
    """Sequences and the prefix together are the same bytes as one sequence where there is only one."""
    alone, shared = cost("gpu0", [price_]), cost("gpu0", [price_], prefix)

    assert shared.shared_bytes > 0
    for tokens in (prefix, prefix + 1, prefix + 200, 4096):
        held = shared.own(tokens) + shared.shared_bytes
        left_behind = 0 if tokens <= 1024 or price_ is not WINDOWED else min(prefix, tokens - 1024) * 4096
        assert held == alone.own(tokens) + left_behind, "rows of the prefix that this window no longer sees"


def test_a_prefix_makes_room() -> None:
    """Ten sequences of which nine tenths are shared need a tenth each and the prefix once."""
    layer = price(model(GQA), parse("bf16"))
    budget = room(4096 * (900 + 10 * 100))

    assert ideal([cost("gpu0", [layer], 900)], [budget], context_tokens=1000).sequences == 10
    assert ideal([cost("gpu0", [layer])], [budget], context_tokens=1000).sequences == 1


def test_positions_shared_by_ranks_cost_their_part() -> None:
    """Decode context parallelism divides the tokens of layers without a window only."""
    assert cost("gpu0", [WINDOWED], dcp=4).own(4096) == 1024 * 4096 + 1024 * 4096
    assert cost("gpu0", [WINDOWED]).own(4096) == 4096 * 4096 + 1024 * 4096


@given(st.integers(0, 10**13), st.integers(1, 10**6))
def test_ideal_is_floor_division(n_bytes: int, context: int) -> None:
    """Whole sequences never take more than the budget, and one more would."""
    each = cost("gpu0", [WINDOWED])
    found = ideal([each], [room(n_bytes)], context_tokens=context)

    assert found.sequences * each.own(context) <= n_bytes < (found.sequences + 1) * each.own(context)
    assert found.tokens >= found.sequences * context


def test_replicas_after_a_rollback() -> None:
    """Thirteen sequences do not fit on two replicas that hold six."""
    assert rollback(13, 6).needed == 3
    assert rollback(13, 6, 10).needed == 22
    assert rollback(12, 6, 1).needed == 2
    assert rollback(5, 0).needed is None
    assert rollback(5, 0).ratio is None


def test_a_distribution_counts_its_mean() -> None:
    """Sequences of mixed lengths fit by their mean bytes; fewer are sure to fit."""
    lengths = Lengths(((1000, 50), (9000, 50)), HERE)
    layer = price(model(GQA), parse("bf16"))
    found = ideal([cost("gpu0", [layer])], [room(100 * 5000 * 4096)], context_tokens=9000, lengths=lengths)

    assert found.mixed is not None
    assert (found.mixed.sequences, found.mixed.mean_bytes) == (100, 5000 * 4096)
    assert found.sequences == 55
    assert found.sequences < found.mixed.likely < 100


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("141GB", 141_000_000_000),
        ("65.52 GB", 65_520_000_000),
        ("6GiB", 6 * 2**30),
        ("143,771 MiB", 150_754_820_096),
        ("150754820096", 150_754_820_096),
        (".5gb", 500_000_000),
        ("1TB", 10**12),
    ],
)
def test_sizes_are_read_with_their_units(text: str, n_bytes: int) -> None:
    """GB are powers of 1000, GiB powers of 1024, a bare number is bytes."""
    assert parse_bytes(text, "x") == n_bytes


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-3GB", "0", "0GB", "5G", "1e9GB", "99999TB", "", "141 GBs", ".", "1..5GB", "GB", "٣GB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """Zero, negative, NaN, a unit that means two things, and other digits are one line with how to write it."""
    with pytest.raises(UserError) as error:
        parse_bytes(text, "--weights")

    assert "--weights" in str(error.value)


def test_zero_overhead_is_a_size() -> None:
    """No overhead at all is allowed where nothing is."""
    assert parse_bytes("0", "--overhead", zero=True) == 0


def test_sizes_are_written_in_both_units() -> None:
    """The same bytes in GB."""
    assert gb_text(65_520_000_000) == "65.52 GB"
    assert gb_text(999) == "999 B"
    assert gb_text(-12_060_385_608) == "-12.06 GB"
