"""TensorRT-LLM's share of what is free, blocks that are rounded up, pools and offloaded tiers."""

from __future__ import annotations

import pytest
from engine_rule_kit import DEEPSEEK_V3, GEMMA3_27B, GIB, QWEN3_8B, QWEN3_32B, QWEN35_27B, budget_of, model, reserve

from kvgate.core.errors import UserError
from kvgate.plan.engine_rules import trtllm

QWEN15_7B = model((32, 32, 128, 128, None))


def test_blocks_of_a_public_log():
    """21.89 GiB free gave 631 blocks of 64 tokens: 0.9 of it, and the last block is begun (plan-28)."""
    budget = budget_of("trtllm", device_bytes=0, weights_bytes=None, options={"available": "21.89GiB"})

    found = reserve("trtllm", QWEN15_7B, budget=budget.bytes, context_tokens=8192, version="0.13.0.dev2024092400")

    assert budget.bytes / GIB == pytest.approx(19.701)
    assert found.tokens == 631 * 64 == 40_384
    assert found.prints == (
        "Number of blocks in KV cache primary pool: 631\n"
        "Number of tokens per block: 64.\n"
        "[MemUsageChange] Allocated 19.72 GiB for max tokens in paged KV cache (40384)."
    )
    assert found.sequences == 631 // 128


def test_another_public_log():
    """17.83 GiB free gave 8,219 blocks of 32 tokens: within the printed digits."""
    qwen = model((32, 4, 128, 128, None))

    found = reserve("trtllm", qwen, budget=int(17.83 * GIB * 0.9), context_tokens=8192)

    assert abs(found.tokens // 32 - 8219) <= 0.005 * GIB * 0.9 / 65_536 / 32 + 1


@pytest.mark.parametrize("broken", ["down", "share of all"])
def test_rounding_down_or_a_share_of_all_memory_is_noticed(monkeypatch, broken):
    """630 blocks, or 0.9 of the whole device, are not what the log says."""
    budget = int(21.89 * GIB * 0.9)
    if broken == "down":
        pools = trtllm._pools

        def down(*args):
            return tuple(trtllm._Pool(p.window_tokens, p.token_bytes, p.blocks - 1) for p in pools(*args))

        monkeypatch.setattr(trtllm, "_pools", down)
    else:
        budget = int(39.39 * GIB * 0.9) - int(17.5 * GIB)

    found = reserve("trtllm", QWEN15_7B, budget=budget, context_tokens=8192, block_tokens=64)

    assert found.tokens != 40_384


def test_the_fraction_is_of_what_is_free():
    """Weights and activations go first; overhead nobody gave is assumed."""
    found = budget_of("trtllm", device_bytes=80 * GIB, weights_bytes=20 * GIB, overhead_bytes=10 * GIB)
    half = budget_of(
        "trtllm", device_bytes=80 * GIB, weights_bytes=20 * GIB, overhead_bytes=10 * GIB, memory_fraction=0.5
    )

    assert found.bytes == int(50 * GIB * 0.9)
    assert half.bytes == 25 * GIB
    assert [t.name for t in budget_of("trtllm", device_bytes=80 * GIB).terms if t.assumed] == [
        "activations and the rest"
    ]
    assert budget_of("trtllm", device_bytes=10 * GIB, weights_bytes=20 * GIB).bytes == 0


def test_blocks_have_32_tokens_today():
    """64 before, 32 since; a given size must be a power of two."""
    new = reserve("trtllm", QWEN3_8B, budget=10 * GIB, context_tokens=1000)
    old = reserve("trtllm", QWEN3_8B, budget=10 * GIB, context_tokens=1000, version="0.16.0")

    assert new.steps[0].endswith("blocks of 32 tokens")
    assert old.steps[0].endswith("blocks of 64 tokens")
    assert any("which version began it is not known" in n for n in new.notes)


def test_windows_are_pools_of_their_own():
    """Memory is cut by bytes a token times window; a window that moves needs one block more."""
    budget = 50 * GIB
    full, window = 10 * 16 * 512, 52 * 16 * 512
    share = full * 32_768 / (full * 32_768 + window * 1024)

    found = reserve("trtllm", GEMMA3_27B, budget=budget, context_tokens=32_768)

    assert found.tokens == -(-int(budget * share / full) // 32) * 32
    windows = -(-int(budget * (1 - share) / window) // 32)
    assert found.sequences == min(found.tokens // 32_768, windows // 33)
    assert found.prints == ""
    assert any("pools are cut once" in n for n in found.notes)


def test_offloaded_tiers_are_never_gpu_tokens():
    """Host blocks are rounded down and said apart; the primary pool is what it was without them."""
    plain = reserve("trtllm", QWEN3_8B, budget=10 * GIB, context_tokens=1000)
    tiers = reserve("trtllm", QWEN3_8B, budget=10 * GIB, context_tokens=1000, options={"host-cache-size": "20GiB"})

    blocks = 20 * GIB // 147_456 // 32
    assert tiers.tokens == plain.tokens
    assert tiers.steps[-1] == f"host tier, offloaded: {blocks:,} blocks, {blocks * 32:,} tokens"


@pytest.mark.parametrize(("recipe", "ratio"), [("native", 3.56), ("fp8_e4m3", 1.78)])
def test_cold_pages_hold_more(recipe, ratio):
    """NVFP4 is 9/16 byte an element: 3.56 times bf16's tokens, 1.78 times fp8's, in the host tier only."""
    options = {"host-cache-size": "20GiB", "disk-cache-size": "100GiB", "cold-page-quant": "nvfp4"}
    cold = reserve("trtllm", QWEN3_8B, recipe, budget=10 * GIB, context_tokens=1000, options=options)
    plain = reserve("trtllm", QWEN3_8B, recipe, budget=10 * GIB, context_tokens=1000)

    elements = 36 * 8 * 256
    blocks = int(20 * GIB / (elements * 9 / 16)) // 32
    assert cold.steps[1] == (
        f"host tier, offloaded: {blocks:,} blocks, {blocks * 32:,} tokens as NVFP4, {ratio:.2f}x of its own format"
    )
    assert cold.steps[2].startswith("disk tier, offloaded: ")
    assert (cold.tokens, cold.sequences) == (plain.tokens, plain.sequences)
    assert any("sm100" in n for n in cold.notes)


@pytest.mark.parametrize(
    ("recipe", "serving", "says"),
    [
        ("native", {"version": "1.3.0"}, "1.3.0 has no NVFP4 cold pages"),
        ("nvfp4", {}, "need hot pages in another format"),
        ("native", {"options": {"cold-page-quant": "nvfp4"}}, "need a host or disk tier"),
        ("native", {"options": {"cold-page-quant": "fp4"}}, "cold pages in 'fp4'"),
    ],
)
def test_cold_pages_where_they_cannot_be_are_refused(recipe, serving, says):
    """Too old, NVFP4 already, no tier, another word."""
    settings = {"options": {"cold-page-quant": "nvfp4", "host-cache-size": "1GiB"}, **serving}

    with pytest.raises(UserError, match=says):
        reserve("trtllm", QWEN3_8B, recipe, budget=GIB, context_tokens=1000, **settings)


def test_states_of_the_asked_slots_are_taken_off():
    """Without slots the note says that they are not."""
    without = reserve("trtllm", QWEN35_27B, budget=60 * GIB, context_tokens=32_768)
    eight = reserve("trtllm", QWEN35_27B, budget=60 * GIB, context_tokens=32_768, slots=8)

    assert any("states are not taken off" in n for n in without.notes)
    assert without.tokens - eight.tokens == pytest.approx(8 * 153_944_064 / 65_536, abs=64)
    assert eight.sequences <= 8


def test_ranks_and_limits():
    """The smallest rank decides; max-tokens is an upper bound; MLA is whole on each rank."""
    found = reserve("trtllm", QWEN3_32B, budget=(10 * GIB, 9 * GIB), context_tokens=8192, pp=2)
    assert found.limiting_rank == "pp1/tp0 of 2"
    few = reserve("trtllm", QWEN3_32B, budget=10 * GIB, context_tokens=100, options={"max-tokens": "1000"})
    assert few.tokens == 1024
    mla, same = (reserve("trtllm", DEEPSEEK_V3, budget=10 * GIB, context_tokens=100, tp=t) for t in (1, 8))
    assert mla.tokens == same.tokens
    none = reserve("trtllm", QWEN3_8B, budget=0, context_tokens=100)
    assert (none.tokens, none.sequences) == (0, 0)
    assert "the budget holds not one token" in none.notes


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"context_tokens": 0}, "context of 0"),
        ({"context_tokens": 10, "slots": 0}, "0 sequences"),
        ({"context_tokens": 10, "block_tokens": 48}, "48 is not a power of two"),
        ({"context_tokens": 10, "version": "one"}, "not a version of trtllm"),
    ],
)
def test_senseless_settings_are_refused(settings, says):
    """One line that names the setting."""
    with pytest.raises(UserError, match=says):
        reserve("trtllm", QWEN3_8B, budget=GIB, **settings)


def test_budgets_without_memory_or_weights_are_refused():
    """Neither is guessed."""
    with pytest.raises(UserError, match="no room"):
        budget_of("trtllm", device_bytes=0)
    with pytest.raises(UserError, match="weights is not known"):
        budget_of("trtllm", device_bytes=GIB, weights_bytes=None)
    with pytest.raises(UserError, match="memory fraction 2"):
        budget_of("trtllm", device_bytes=GIB, memory_fraction=2.0)
