"""vLLM's budget, blocks and log line: handed arithmetic, public receipts and logs, versions, bad input."""

from __future__ import annotations

import pytest
from engine_rule_kit import (
    DATA,
    DEEPSEEK_V3,
    GEMMA3_27B,
    GEMMA4_31B,
    GIB,
    GPT_OSS_20B,
    GPT_OSS_120B,
    QWEN3_8B,
    QWEN3_32B,
    QWEN35_27B,
    SMOLLM2,
    budget_of,
    model,
    reserve,
)

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.plan.engine_rules import _vllm_groups, vllm

MODELS = {
    "openai/gpt-oss-120b": GPT_OSS_120B,
    "openai/gpt-oss-20b": GPT_OSS_20B,
    "google/gemma-3-27b-it": GEMMA3_27B,
    "google/gemma-4-31B-it": GEMMA4_31B,
}
OLD = "0.20.0"


def _handed(case, version):
    return reserve(
        "vllm",
        MODELS[case["model"]],
        budget=case["pool_GiB"] * GIB,
        context_tokens=case["max_model_len"],
        block_tokens=case["block_size"],
        version=version,
        batched_tokens=case["inflight"],
        options={"no-async-scheduling": ""},
    )


@pytest.mark.parametrize("case", DATA["vllm_groups"], ids=lambda c: f"{c['model']}-{c['max_model_len']}")
def test_handed_group_arithmetic(case):
    """Groups, block, blocks, blocks a request and both meanings of the printed tokens are exact."""
    new, old = _handed(case, "0.32.0"), _handed(case, OLD)

    assert new.tokens == case["logged_tokens_new"]
    assert old.tokens == case["logged_tokens_old"]
    assert f"{case['num_groups']} groups; a block is {case['bytes_per_block']:,} bytes on gpu0" in new.steps
    assert new.steps[-1] == (
        f"{case['num_blocks']:,} blocks, one of them the null block; {case['blocks_per_request']:,} a request"
    )
    assert new.sequences == (case["num_blocks"] - 1) // case["blocks_per_request"]
    assert round(case["num_blocks"] / case["blocks_per_request"], 3) == case["max_concurrency"]


def test_the_line_of_each_meaning():
    """Two lines before 0.21, one line and another number since, and the rule says which."""
    case = DATA["vllm_groups"][0]
    new, old = _handed(case, "0.32.0"), _handed(case, OLD)

    assert old.prints == (
        "GPU KV cache size: 728,176 tokens\nMaximum concurrency for 32,768 tokens per request: 35.43x"
    )
    assert new.prints == (
        "GPU KV cache size: 1,160,999 tokens, Maximum concurrency for 32,768 tokens per request: 35.43x"
    )
    assert (old.rule, new.rule) == ("vllm kv-groups, before 0.21.0", "vllm kv-groups, 0.21.0 and later")
    assert any("not a capacity" in n for n in old.notes)
    assert any("change with max_model_len" in n for n in new.notes)


@pytest.mark.parametrize(
    ("recipe", "tokens", "concurrency"), [("native", 46_592, "5.69"), ("fp8_e4m3", 93_184, "11.38")]
)
def test_the_cpu_line_is_predicted(recipe, tokens, concurrency):
    """SmolLM2 with VLLM_CPU_KVCACHE_SPACE=1: the line that vLLM 0.32.0 wrote, for auto and fp8."""
    found = reserve("vllm", SMOLLM2, recipe, budget=GIB, context_tokens=8192, options={"VLLM_CPU_KVCACHE_SPACE": "1"})

    assert found.prints == (
        f"CPU KV cache size: {tokens:,} tokens, Maximum concurrency for 8,192 tokens per request: {concurrency}x"
    )


def test_an_estimated_longest_context():
    """Qwen3-Coder-480B, 62.00 GiB needed, 48.66 there: the longest context of the error is 205,728 (plan-03)."""
    coder = model((62, 8, 128, 128, None))

    found = reserve("vllm", coder, budget=int(48.66 * GIB), context_tokens=262_144, dp=8, version="0.10.0")

    assert found.tokens is None
    assert found.sequences == 0
    assert "(62.0 GiB KV cache is needed" in found.prints
    assert "(48.66 GiB)" in found.prints
    assert "estimated maximum model length is 205728." in found.prints
    # The other run's 55.65 GiB is rounded: one block less than its log, as the case says.
    other = reserve("vllm", coder, budget=int(55.65 * GIB), context_tokens=262_144, version="0.10.0")
    assert "is 235280." in other.prints
    assert reserve("vllm", coder, "fp8_e4m3", budget=int(48.66 * GIB), context_tokens=262_144).sequences == 1


def test_a_printed_number_is_not_a_capacity():
    """gpt-oss-120b printed 78,384 tokens on 5.38 GiB, and holds one request of 131,072 (plan-06)."""
    found = reserve(
        "vllm",
        GPT_OSS_120B,
        budget=9798 * 589_824,
        context_tokens=131_072,
        batched_tokens=2048,
        version="0.10.2",
    )

    assert found.tokens == 78_384
    assert found.sequences == 1
    assert "1.18x" in found.prints


def test_one_model_two_versions():
    """Gemma-4-31B: 26,800 tokens on 24.54 GiB before 0.21, about ten times as many after on 50 GB (plan-08)."""
    before = reserve("vllm", GEMMA4_31B, budget=int(24.54 * GIB), context_tokens=8192, version=OLD, batched_tokens=2048)
    old = reserve("vllm", GEMMA4_31B, budget=50 * GIB, context_tokens=262_144, version=OLD, batched_tokens=2048)
    new = reserve("vllm", GEMMA4_31B, budget=50 * GIB, context_tokens=262_144, version="0.21.0", batched_tokens=2048)

    assert before.tokens == 26_800
    assert old.tokens == 54_608
    assert 484_000 <= new.tokens < 587_000
    assert old.sequences == new.sequences


def test_twice_the_tokens_but_for_one_block():
    """Qwen3-8B on an A100: 389,872 and 779,760 tokens are 24,367 and 48,735 blocks of one budget (plan-16)."""
    budget = 48_735 * 73_728 * 16
    auto, fp8 = (reserve("vllm", QWEN3_8B, r, budget=budget, context_tokens=40_960) for r in ("native", "fp8_e4m3"))

    assert (auto.tokens, fp8.tokens) == (389_872, 779_760)


def test_a_hybrid_of_a_public_log():
    """Qwen3.5-27B on 0.19.0 printed 290,864 tokens and 33.04x: blocks of 784 tokens, one state block a group."""
    found = reserve(
        "vllm",
        QWEN35_27B,
        budget=1487 * 16 * 784 * 4096,
        context_tokens=32_768,
        batched_tokens=16_384,
        version="0.19.0",
    )

    assert found.prints == (
        "GPU KV cache size: 290,864 tokens\nMaximum concurrency for 32,768 tokens per request: 33.04x"
    )
    assert "block 784 tokens, so that attention's page (3,211,264 B) holds a state (3,207,168 B)" in found.steps


def test_state_blocks_follow_the_cache_mode():
    """Align keeps two blocks a group, none keeps one, Mamba-2 three; speculation one more a token."""

    def blocks(**options):
        found = reserve("vllm", QWEN35_27B, budget=100 * GIB, context_tokens=32_768, options=options)
        return int(found.steps[-1].split("; ")[1].split()[0])

    full = -(-32_768 // 784)
    assert blocks() == full + 3 * 2
    assert blocks(**{"mamba-cache-mode": "none"}) == full + 3
    assert blocks(**{"enable-prefix-caching": "false"}) == full + 3
    assert blocks(**{"num-speculative-tokens": "2"}) == full + 3 * 4
    mamba2 = model((4, 8, 128, 128, None), states=[(4, (StatePart("conv_groups", 10, "native", 1),))])
    found = reserve("vllm", mamba2, budget=GIB, context_tokens=32_768)
    assert "4 mamba layers, block 16: 3 blocks a request" in found.steps


@pytest.mark.parametrize("receipt", DATA["receipts"], ids=lambda r: f"{r['model']}-{r.get('tp', 1)}")
def test_budgets_of_public_receipts(receipt):
    """Memory x fraction - weights - activations - what is outside torch: the KV memory of each log, to 0.01 GiB."""
    overhead = receipt["activation_GiB"] + receipt["nontorch_GiB"]
    found = budget_of(
        "vllm",
        device_bytes=int(79.18 * GIB),
        weights_bytes=int(receipt["weights_GiB"] * GIB),
        overhead_bytes=int(overhead * GIB),
        memory_fraction=receipt["util"],
        version="0.11.0",
    )

    assert found.bytes / GIB == pytest.approx(receipt["kv_GiB"], abs=0.0151)
    assert not any(t.assumed for t in found.terms)
    # From the other side: the printed fraction of one receipt cannot give its memory.
    if "util_as_printed" in receipt:
        other = budget_of(
            "vllm",
            device_bytes=int(79.18 * GIB),
            weights_bytes=int(receipt["weights_GiB"] * GIB),
            overhead_bytes=int(overhead * GIB),
            memory_fraction=receipt["util_as_printed"],
            version="0.11.0",
        )
        assert other.bytes / GIB != pytest.approx(receipt["kv_GiB"], abs=0.0151)


def test_tokens_of_a_public_receipt():
    """Mistral-Small-3.2 printed 184,832 tokens on 28.20 GiB: within the two printed digits and a block."""
    mistral = model((40, 8, 128, 128, None))

    found = reserve("vllm", mistral, budget=int(28.2 * GIB), context_tokens=32_768, version="0.11.0")

    assert abs(found.tokens - 184_832) <= 0.005 * GIB / 163_840 + 16


@pytest.mark.parametrize("row", DATA["budgets"], ids=lambda r: f"{r['gpu']}-{r['weights']}-{r['bytes_per_token']}")
def test_worked_budgets(row):
    """The article's budgets and whole sequences, with its own memory and the device's."""
    weights = round(float(row["weights"].split()[2]) * 10**9)
    found = budget_of("vllm", device_bytes=row["total"], weights_bytes=weights, overhead_bytes=row["overhead"])
    recipe = "native" if row["bytes_per_token"] == 262_144 else "fp8_e4m3"

    assert found.bytes == row["kv_budget"]
    assert found.bytes // row["bytes_per_token"] == row["tokens"]
    assert reserve("vllm", QWEN3_32B, recipe, budget=found.bytes, context_tokens=32_768).sequences == row["seqs"]


def test_defaults_follow_the_version():
    """0.9 without and 0.92 with a graph estimate; an assumed overhead is marked."""
    old, new = (budget_of("vllm", device_bytes=100 * 10**9, version=v) for v in (OLD, "0.21.0"))

    assert old.terms[1].bytes == -10 * 10**9
    assert new.terms[1].bytes == -8 * 10**9
    assert [t.name for t in new.terms if t.assumed] == ["activations and the rest", "CUDA-graph estimate"]
    assert [t.name for t in old.terms if t.assumed] == ["activations and the rest"]
    known = budget_of("vllm", device_bytes=100 * 10**9, options={"cudagraph-bytes": "1GiB"})
    assert known.terms[-1].bytes == -GIB
    eager = budget_of("vllm", device_bytes=100 * 10**9, options={"enforce-eager": ""})
    assert len(eager.terms) == 4


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"kv-cache-memory-bytes": "5GiB"}, 5 * GIB),
        ({"--kv_cache_memory_bytes": "1000"}, 1000),
        ({"VLLM_CPU_KVCACHE_SPACE": "2", "kv-cache-memory-bytes": "5GiB"}, 2 * GIB),
    ],
)
def test_an_explicit_size_bypasses_everything(options, size):
    """No memory, weights or fraction are asked for."""
    assert budget_of("vllm", device_bytes=0, weights_bytes=None, options=options).bytes == size


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"device_bytes": 0}, "has no room"),
        ({"device_bytes": 10**9, "weights_bytes": None}, "weights is not known"),
        ({"device_bytes": 10**9, "memory_fraction": 1.5}, "1.5"),
        ({"device_bytes": 10**9, "memory_fraction": float("nan")}, "nan"),
        ({"device_bytes": 10**9, "options": {"kv-cache-memory-bytes": "much"}}, "not a size"),
        ({"device_bytes": 10**9, "options": {"VLLM_CPU_KVCACHE_SPACE": "1.5"}}, "not a whole number"),
        ({"device_bytes": 10**9, "version": "newest"}, "'newest' is not a version of vllm"),
    ],
)
def test_budgets_without_meaning_are_refused(settings, says):
    """One line that names the setting."""
    with pytest.raises(UserError, match=says):
        budget_of("vllm", **settings)


def test_a_budget_under_zero_is_none():
    """Weights larger than the memory leave nothing, and nothing is reserved."""
    assert budget_of("vllm", device_bytes=10**9, weights_bytes=10**10).bytes == 0
    found = reserve("vllm", QWEN3_8B, budget=0, context_tokens=4096)
    assert (found.tokens, found.sequences) == (0, 0)
    assert "smaller than one block" in found.notes[-1]


def test_a_single_block_is_the_null_block():
    """One block holds no request; two blocks hold one of a block, and the check counts the null block from 0.26 on."""
    block = 16 * 73_728 * 2
    one, two = (reserve("vllm", QWEN3_8B, budget=n * block, context_tokens=16) for n in (1, 2))
    old = reserve("vllm", QWEN3_8B, budget=block, context_tokens=16, version="0.25.0")

    assert (one.tokens, one.sequences) == (None, 0)
    assert (two.tokens, two.sequences) == (32, 1)
    assert (old.tokens, old.sequences) == (16, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_up", lambda tokens, block: max(1, tokens // block)),
        ("PADDING_RATIO", 10.0),
        ("blocks_per_request", lambda spec, load: -(-load.context_tokens // spec.block_tokens)),
    ],
    ids=["rounds down", "always padded", "windows as full"],
)
def test_broken_arithmetic_is_noticed(monkeypatch, name, value):
    """Rounding the wrong way, padding every bucket and windows that never end miss the handed numbers."""
    monkeypatch.setattr(_vllm_groups, name, value)

    assert any(_handed(c, "0.32.0").tokens != c["logged_tokens_new"] for c in DATA["vllm_groups"])


def test_windows_keep_what_is_in_flight():
    """Two batches by default on a GPU since 0.26, one before, one without asynchronous scheduling, one on the CPU."""

    def flight(**serving):
        found = reserve("vllm", GPT_OSS_20B, budget=50 * GIB, context_tokens=32_768, **serving)
        return found.steps[0]

    assert "in flight 16,384: 2 batches" in flight(batched_tokens=8192)
    assert "in flight 8,192: one batch" in flight(batched_tokens=8192, version="0.25.1")
    assert "in flight 8,192: 1 batches" in flight(batched_tokens=8192, options={"async-scheduling": "false"})
    assert "in flight 2,048: 1 batches" in flight(options={"device": "cpu"})
    assert "in flight 24,576: 3 batches" in flight(batched_tokens=8192, pp=2)
    assert "in flight 8,192: as given" in flight(options={"max-in-flight-tokens": "8192"})


@pytest.mark.parametrize(
    ("memory", "batch"),
    [("180GiB", 16_384), ("80GiB", 8192), ("40GiB", 2048), ("80GiB a100", 2048)],
)
def test_the_default_batch_follows_the_device(memory, batch):
    """16,384 from 160 GiB, 8,192 from 70 GiB but not on an A100, else 2,048."""
    size, _, device = memory.partition(" ")
    options = {"device-memory": size, "device": device or "h100"}

    found = reserve("vllm", QWEN3_8B, budget=20 * GIB, context_tokens=4096, options=options)

    assert f"max_num_batched_tokens {batch:,}" in found.steps[0]


def test_the_default_batch_is_read_from_the_budget():
    """The device term of a budget is enough."""
    budget = budget_of("vllm", device_bytes=80 * GIB)

    assert vllm._device_bytes(vllm.Options("vllm", {}), (budget,)) == 80 * GIB


def test_without_the_hybrid_manager_windows_are_full():
    """gpt-oss-20b then costs all 24 layers for all tokens."""
    off = {"disable-hybrid-kv-cache-manager": "", "no-async-scheduling": ""}

    found = reserve("vllm", GPT_OSS_20B, budget=50 * GIB, context_tokens=32_768, batched_tokens=2048, options=off)

    assert found.tokens == 50 * GIB // (49_152 * 16) * 16
    assert found.steps[1].startswith("1 groups")


def test_the_rank_with_the_fewest_blocks_decides():
    """Stages differ in layers and memory: the least blocks win, by name."""
    even = reserve("vllm", QWEN3_32B, budget=(20 * GIB, 30 * GIB), context_tokens=32_768, pp=2)
    uneven = reserve("vllm", QWEN3_32B, budget=20 * GIB, context_tokens=32_768, pp=2, partition=(24, 40))

    assert even.limiting_rank == "pp0/tp0 of 2"
    assert even.tokens == 20 * GIB // (32 * 4096 * 16) * 16
    assert uneven.limiting_rank == "pp1/tp0 of 2"
    assert uneven.tokens == 20 * GIB // (40 * 4096 * 16) * 16


def test_parallel_ranks_change_what_one_holds():
    """TP divides heads, MLA stays whole, replicas multiply sequences, DCP divides positions."""
    whole, halved = (reserve("vllm", QWEN3_32B, budget=20 * GIB, context_tokens=8192, tp=t) for t in (1, 2))
    assert halved.tokens == pytest.approx(2 * whole.tokens, abs=32)
    mla, same = (reserve("vllm", DEEPSEEK_V3, budget=20 * GIB, context_tokens=8192, tp=t) for t in (1, 8))
    assert same.tokens == mla.tokens
    two = reserve("vllm", QWEN3_32B, budget=20 * GIB, context_tokens=8192, dp=2)
    assert (two.tokens, two.sequences) == (whole.tokens, 2 * whole.sequences)
    dcp = reserve("vllm", DEEPSEEK_V3, budget=20 * GIB, context_tokens=8192, tp=8, dcp=8)
    assert dcp.tokens == pytest.approx(8 * mla.tokens, rel=0.001)
    windows = reserve("vllm", GPT_OSS_20B, budget=20 * GIB, context_tokens=8192, tp=16, dcp=2)
    assert any("counted whole" in n for n in windows.notes)


def test_kept_windows_are_padded_to_the_quantized_page():
    """fp8 with native windows: the block grows to 32 so that an fp8 page holds 16 native tokens; pages stay equal."""
    found = reserve("vllm", GPT_OSS_20B, "fp8_e4m3/keep=sliding_window", budget=50 * GIB, context_tokens=32_768)

    assert "block 32 tokens, so that a quantized page (32,768 B) covers a native one" in found.steps
    assert any(s.startswith("12 full layers, block 32") for s in found.steps)
    assert any(s.startswith("12 sliding layers, block 16") for s in found.steps)
    assert f"a block is {12 * 32_768:,} bytes" in found.steps[2]


def test_kept_full_layers_lie_side_by_side():
    """Native full layers beside fp8 ones are one group of unequal pages, with the grown block."""
    found = reserve("vllm", QWEN3_8B, "fp8_e4m3/keep=L0-3", budget=50 * GIB, context_tokens=32_768)

    assert f"1 groups; a block is {32 * (32 * 2048 + 4 * 4096):,} bytes on gpu0" in found.steps


def test_turboquant_leaves_its_ends_native():
    """Four layers of 36 stay native, and count with their own bytes."""
    found = reserve("vllm", QWEN3_8B, "turboquant_4bit_nc", budget=50 * GIB, context_tokens=32_768)

    block = int(found.steps[1].split()[1])
    assert f"a block is {block * (4 * 4096 + 32 * 8 * 134):,} bytes" in found.steps[2]


def test_an_indexer_is_a_cache_of_its_own():
    """Sparse MLA: rows and indexer keys in one group, 1,284 bytes a layer in bf16."""
    layers = tuple(LayerGeometry(i, "sparse_mla", 1, 576, 0, None, 64, 132) for i in range(61))
    geometry = ModelGeometry("m", "t", layers, 163_840, 0, DEEPSEEK_V3.source, 61, (), "bf16")

    found = reserve("vllm", geometry, budget=20 * GIB, context_tokens=65_536)

    assert f"1 groups; a block is {64 * 61 * (1152 + 132):,} bytes on gpu0" in found.steps
    assert any("block of 64 tokens is assumed" in n for n in found.notes)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.99.0", "newer than what was read: rules of 0.32.0"),
        ("0.33.0rc1", "newer"),
        ("0.6.4", "older than what was read: rules of 0.8.0"),
    ],
)
def test_a_version_outside_is_said_to_be_unknown(version, says):
    """The nearest rules answer, with a note."""
    found = reserve("vllm", QWEN3_8B, budget=20 * GIB, context_tokens=4096, version=version)

    assert says in found.notes[0]
    assert found.tokens


@pytest.mark.parametrize("version", ["0.32.0", "v0.32.0", "0.32.1.dev3", "0.32.0+cpu", "", "0.32"])
def test_versions_as_they_are_written(version):
    """Prefixes, suffixes and the newest known are one version; nothing is noted."""
    found = reserve("vllm", QWEN3_8B, budget=20 * GIB, context_tokens=4096, version=version)

    assert not [n for n in found.notes if "what was read" in n]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"context_tokens": 0}, "context of 0"),
        ({"context_tokens": 4096, "slots": 0}, "0 sequences"),
        ({"context_tokens": 4096, "block_tokens": 0}, "block size 0"),
        ({"context_tokens": 4096, "batched_tokens": 0}, "max_num_batched_tokens 0"),
        ({"context_tokens": 4096, "version": "x.y"}, "not a version"),
        ({"context_tokens": 4096, "options": {"async-scheduling": "maybe"}}, "not true or false"),
        ({"context_tokens": 4096, "options": {"num-gpu-blocks-override": "-1"}}, "not a whole number"),
        ({"context_tokens": 4096, "options": {"mamba-cache-mode": "all"}}, "mamba-cache-mode 'all'"),
        ({"context_tokens": 4096, "tp": 12}, "8 KV heads on 12"),
        ({"context_tokens": 4096, "tp": 2, "dcp": 2}, "dcp 2 only where"),
    ],
)
def test_senseless_settings_are_refused(settings, says):
    """One line that names the setting and what would do."""
    with pytest.raises(UserError, match=says):
        reserve("vllm", QWEN3_8B, budget=20 * GIB, **settings)


def test_states_that_ranks_cannot_share_are_refused():
    """vLLM does not start 24 heads on 16 ranks."""
    hybrid = model((4, 16, 128, 128, None), states=[(4, (StatePart("ssm", 2400, "f32", 24),))])

    with pytest.raises(UserError, match="24 parts of the ssm state on 16"):
        reserve("vllm", hybrid, budget=GIB, context_tokens=4096, tp=16)


def test_a_window_longer_than_the_context_is_noted():
    """Then the window saves nothing."""
    found = reserve("vllm", GEMMA3_27B, budget=50 * GIB, context_tokens=512)

    assert any("longer than the context" in n for n in found.notes)


def test_slots_cap_the_sequences():
    """max_num_seqs holds fewer at once than fit; the printed line does not change."""
    few, many = (reserve("vllm", QWEN3_8B, budget=20 * GIB, context_tokens=4096, slots=s) for s in (3, None))

    assert (few.sequences, few.prints) == (3, many.prints)
    assert many.sequences > 3


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama_cpp"])
def test_settings_that_no_rule_reads_are_noted(engine):
    """A typing error is not taken in silence."""
    found = reserve(engine, QWEN3_8B, budget=20 * GIB, context_tokens=4096, options={"--kv_cash": "1"})

    assert f"option kv-cash changes nothing that kvgate knows of {engine}" in found.notes


def test_an_override_counts_blocks():
    """num_gpu_blocks_override is the number of blocks, whatever the budget."""
    found = reserve("vllm", QWEN3_8B, budget=1, context_tokens=160, options={"num-gpu-blocks-override": "101"})

    assert found.tokens == 1616
    assert found.sequences == 10
