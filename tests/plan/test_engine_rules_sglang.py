"""SGLang's static fraction, pools and pages: public logs, the handed case, broken arithmetic, bad input."""

from __future__ import annotations

import pytest
from engine_rule_kit import (
    DEEPSEEK_V3,
    GEMMA3_27B,
    GIB,
    GPT_OSS_20B,
    QWEN3_8B,
    QWEN3_32B,
    QWEN35_27B,
    budget_of,
    model,
    reserve,
)

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.plan.engine_rules import sglang

MIB = 2**20
DEEPSEEK_V32 = ModelGeometry(
    "DeepSeek-V3.2-Exp",
    "t",
    tuple(LayerGeometry(i, "sparse_mla", 1, 576, 0, None, 64, 132) for i in range(61)),
    163_840,
    0,
    DEEPSEEK_V3.source,
    61,
    (),
    "bf16",
)


@pytest.mark.parametrize(
    ("gib", "serving", "fraction"),
    [
        # 512 + 1.5 x 2048 + 2 x 8 + 128 MiB of 16 GiB.
        (16, {}, round((16 * 1024 - 512 - 3072 - 16 - 128) / (16 * 1024), 3)),
        (24, {}, round((24 * 1024 - 512 - 6144 - 96 - 128) / (24 * 1024), 3)),
        (48, {"tp": 4}, round((48 * 1024 - 512 - 6144 - 320 - 512) / (48 * 1024), 3)),
        # 512 + 12,288 + 512 + 128 are over the least of 10 GiB.
        (80, {}, round((80 * 1024 - 13_440) / (80 * 1024), 3)),
        (80, {"options": {"chunked-prefill-size": "2048"}}, round((80 * 1024 - 10_240) / (80 * 1024), 3)),
        (80, {"batched_tokens": 4096}, round((80 * 1024 - 10_240) / (80 * 1024), 3)),
        (180, {"tp": 8}, round((180 * 1024 - 512 - 24_576 - 1024 - 1024) / (180 * 1024), 3)),
        (80, {"options": {"SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}}, round((80 * 1024 - 1664) / (80 * 1024), 3)),
        (80, {"memory_fraction": 0.8}, 0.8),
    ],
)
def test_the_static_fraction_follows_the_device(gib, serving, fraction):
    """Prefill, graphs and ranks are kept back; over 60 GiB at least 10 GiB; a given fraction wins."""
    found = budget_of("sglang", device_bytes=gib * GIB, weights_bytes=GIB, **serving)

    assert found.bytes == pytest.approx(gib * GIB * fraction - GIB, abs=1)


def test_data_parallel_attention_keeps_more_back():
    """Three MiB a graph slot and rank, and a half more over 300 slots."""
    without = budget_of("sglang", device_bytes=140 * GIB, tp=8, dp=8)
    with_it = budget_of("sglang", device_bytes=140 * GIB, tp=8, dp=8, options={"enable-dp-attention": ""})

    kept = 512 * 8 * 4.5
    assert (without.bytes - with_it.bytes) / MIB == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize(
    ("geometry", "recipe", "tokens", "size"),
    [
        # plan-13: 656 bytes a row, without and with the indexer's 132.
        (DEEPSEEK_V32, "fp8_e4m3", 975_424, 43.67),
        (DEEPSEEK_V32, "fp8_e4m3", 1_462_784, 65.48),
    ],
)
def test_sparse_rows_of_a_public_log(geometry, recipe, tokens, size):
    """Tokens from the logged bytes and bytes from the logged tokens agree to a page and the printed digits."""
    found = reserve("sglang", geometry, recipe, budget=tokens * 788 * 61, context_tokens=65_536, tp=8, dp=8)

    assert found.tokens == tokens
    assert f"{found.tokens * 788 * 61 / GIB:.2f}" == f"{size:.2f}"
    assert (
        found.prints == f"KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: {tokens}, KV size: {size:.2f} GB"
    )
    assert found.sequences == tokens // 65_536 * 8


def test_pages_are_rounded_down():
    """A page that is not whole is not there; sparse MLA has pages of 64."""
    one = reserve("sglang", QWEN3_8B, budget=1000 * 147_456, context_tokens=100)
    page = reserve("sglang", QWEN3_8B, budget=1000 * 147_456, context_tokens=100, block_tokens=64)
    sparse = reserve("sglang", DEEPSEEK_V32, budget=1000 * 61 * 1284, context_tokens=100)

    assert (one.tokens, page.tokens, sparse.tokens) == (1000, 960, 960)
    assert page.sequences == 960 // 128
    assert any("page size 1 is assumed" in n for n in one.notes)


def test_k_and_v_of_a_public_log():
    """Qwen3-235B at tp 4: 367,404 tokens are 8.23 GB of K and of V."""
    qwen = model((94, 4, 128, 128, None))

    found = reserve("sglang", qwen, budget=367_404 * 94 * 512, context_tokens=32_768, tp=4)

    assert found.prints == (
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB"
    )


def test_windows_have_a_pool_of_fixed_size():
    """0.8 window tokens for every full one, whatever the window is."""
    budget = 50 * GIB
    full, window = 12 * 2048, 12 * 2048

    found = reserve("sglang", GPT_OSS_20B, budget=budget, context_tokens=32_768)
    other = reserve(
        "sglang", GPT_OSS_20B, budget=budget, context_tokens=32_768, options={"swa-full-tokens-ratio": "0.1"}
    )

    assert found.tokens == int(budget // (full + 0.8 * window))
    assert other.tokens == int(budget // (full + 0.1 * window))
    assert any(f"{int(found.tokens * 0.8):,} window tokens" in n for n in found.notes)
    assert found.sequences == found.tokens // 32_768
    assert found.reserved_bytes <= budget


def test_a_window_pool_that_holds_no_request_stops():
    """SGLang refuses a window pool as small as its window and a page."""
    found = reserve("sglang", GEMMA3_27B, budget=500 * 507_904, context_tokens=32_768)

    assert found.sequences == 0
    assert any("cannot hold one request" in n for n in found.notes)


def test_layers_with_windows_only():
    """Without full layers there is one pool, and the ratio does not count."""
    mistral = model((32, 8, 128, 128, 4096))

    found = reserve("sglang", mistral, budget=100_000 * 131_072, context_tokens=32_768)

    assert found.tokens == 100_000
    assert found.sequences == 100_000 // 4097


def test_states_take_their_ratio_first():
    """0.9 / 1.9 of the memory goes to states, three slots a running request."""
    budget, state = 60 * GIB, 153_944_064

    found = reserve("sglang", QWEN35_27B, budget=budget, context_tokens=32_768)

    slots = int(budget * 0.9 / 1.9 // state)
    assert found.tokens == (budget - slots * state) // 65_536
    assert found.sequences == min(found.tokens // 32_768, slots // 3)
    off = reserve(
        "sglang", QWEN35_27B, budget=budget, context_tokens=32_768, slots=8, options={"disable-radix-cache": ""}
    )
    assert off.tokens == (budget - 8 * state) // 65_536
    assert off.sequences == 8
    fixed = reserve("sglang", QWEN35_27B, budget=budget, context_tokens=32_768, options={"max-mamba-cache-size": "30"})
    assert fixed.tokens == (budget - 30 * state) // 65_536


@pytest.mark.parametrize(
    ("name", "value"),
    [("_cell", lambda layers: float(sum(p.k_row_bytes + p.v_row_bytes for p in layers)))],
    ids=["no indexer"],
)
def test_an_indexer_that_is_not_counted_is_noticed(monkeypatch, name, value):
    """The fault of the log before: 54.52 GB were said where 65.49 were taken."""
    monkeypatch.setattr(sglang, name, value)

    found = reserve("sglang", DEEPSEEK_V32, "fp8_e4m3", budget=int(65.49 * GIB), context_tokens=65_536)

    assert found.tokens > 1_462_784 * 1.19


def test_the_stage_with_the_fewest_tokens_decides():
    """Stages differ; SGLang gives left-over layers to the last."""
    found = reserve("sglang", QWEN3_32B, budget=(10 * GIB, 9 * GIB), context_tokens=8192, pp=2)

    assert found.limiting_rank == "pp1/tp0 of 2"
    assert found.tokens == 9 * GIB // (32 * 4096)


def test_a_limit_of_tokens_and_of_requests():
    """max-total-tokens and slots are upper bounds."""
    found = reserve(
        "sglang", QWEN3_8B, budget=20 * GIB, context_tokens=1000, slots=5, options={"max-total-tokens": "10000"}
    )

    assert (found.tokens, found.sequences) == (10_000, 5)


def test_no_room_is_said():
    """No page at all: zero, and the engine's words."""
    found = reserve("sglang", QWEN3_8B, budget=1000, context_tokens=1000)

    assert (found.tokens, found.sequences, found.prints) == (0, 0, "")
    assert any("Not enough memory" in n for n in found.notes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"context_tokens": 0}, "context of 0"),
        ({"context_tokens": 10, "slots": 0}, "0 sequences"),
        ({"context_tokens": 10, "block_tokens": -1}, "page size -1"),
        ({"context_tokens": 10, "version": "latest"}, "not a version of sglang"),
        ({"context_tokens": 10, "options": {"max-total-tokens": "x"}}, "not a whole number"),
    ],
)
def test_senseless_settings_are_refused(settings, says):
    """One line that names the setting."""
    with pytest.raises(UserError, match=says):
        reserve("sglang", QWEN3_8B, budget=GIB, **settings)


def test_unknown_versions_and_missing_weights():
    """An unknown version is noted; weights must be known."""
    found = reserve("sglang", QWEN3_8B, budget=GIB, context_tokens=100, version="0.6.0")

    assert "newer than what was read" in found.notes[0]
    with pytest.raises(UserError, match="weights is not known"):
        budget_of("sglang", device_bytes=GIB, weights_bytes=None)
    with pytest.raises(UserError, match="no room"):
        budget_of("sglang", device_bytes=0)
