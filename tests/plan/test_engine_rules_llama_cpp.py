"""llama.cpp's caches through the engine rule: handed sizes, states and devices of public logs, slots that fit."""

from __future__ import annotations

import pytest
from engine_rule_kit import (
    DATA,
    DEEPSEEK_V3,
    GEMMA3_270M,
    GIB,
    QWEN3_32B,
    QWEN35_27B,
    SMOLLM2,
    budget_of,
    model,
    reserve,
)

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.plan.engine_rules import llama_cpp_rule
from kvgate.plan.parallel import split_by_weight

MODELS = {"SmolLM2-135M": SMOLLM2, "gemma-3-270m": GEMMA3_270M}


def _handed(case):
    options = {"ctx-size": str(case["n_ctx"]), **({"kv-unified": ""} if case["unified"] else {})}
    return reserve(
        "llama_cpp",
        MODELS[case["model"]],
        case["type"],
        budget=100 * GIB,
        context_tokens=4096,
        slots=case["n_seq"],
        options=options,
    )


def _sizes(found):
    return [float(line.split("size =")[1].split()[0]) for line in found.prints.splitlines()]


@pytest.mark.parametrize("case", DATA["llama_cpp"], ids=lambda c: f"{c['model']}-{c['type']}-{c['n_seq']}")
def test_handed_sizes(case):
    """Context as it is rounded and the printed MiB of each cache, to 0.01."""
    found = _handed(case)

    assert _sizes(found) == [case[k] for k in ("kv_MiB", "base_MiB", "swa_MiB") if k in case]
    assert found.tokens == case.get("n_ctx_out", case["n_ctx"])
    if "n_ctx_seq" in case:
        assert found.steps[0].startswith(f"{case['n_ctx_seq']:,} tokens a slot")


def test_the_size_line_word_by_word():
    """SmolLM2, K in q8_0 and V in q4_0, three slots of 300 tokens: the line of b11549's load log."""
    found = reserve("llama_cpp", SMOLLM2, "k=q8_0,v=q4_0", budget=GIB, context_tokens=300, slots=3)

    assert found.prints == (
        "llama_kv_cache: size =   13.71 MiB (   512 cells,  30 layers,  3/3 seqs), "
        "K (q8_0):    8.96 MiB, V (q4_0):    4.75 MiB"
    )
    assert any("padded to 256" in n for n in found.notes)


@pytest.mark.parametrize(
    ("options", "swa"),
    [
        ({}, "60.00"),
        ({"kv-unified": ""}, "37.50"),
        ({"swa-full": ""}, "120.00"),
        ({"kv-unified": "", "swa-full": ""}, "120.00"),
    ],
)
def test_windows_with_four_slots(options, swa):
    """Gemma-3-270M, 8,192 tokens over four slots: split slots cost more window cells than one pool."""
    found = reserve(
        "llama_cpp", GEMMA3_270M, budget=GIB, context_tokens=2048, slots=4, options={"ctx-size": "8192", **options}
    )

    full, windows = found.prints.splitlines()
    assert "   24.00 MiB" in full
    assert f"{swa:>7} MiB" in windows


def test_a_smaller_batch_leaves_less_window_room():
    """The window's cells hold the window and one physical batch."""
    found = reserve("llama_cpp", GEMMA3_270M, budget=GIB, context_tokens=8192, slots=1, batched_tokens=32)

    assert "(   768 cells,  15 layers" in found.prints


@pytest.mark.parametrize(
    ("slots", "options", "line"),
    [
        (
            4,
            {},
            "llama_memory_recurrent: size =  598.50 MiB (     4 cells,  64 layers,  4 seqs  0 rs_seq), "
            "R (f32):   22.50 MiB, S (f32):  576.00 MiB",
        ),
        (
            1,
            {"rs-seq": "2"},
            "llama_memory_recurrent: size =  448.88 MiB (     1 cells,  64 layers,  1 seqs  2 rs_seq), "
            "R (f32):   16.88 MiB, S (f32):  432.00 MiB",
        ),
    ],
)
def test_states_of_public_logs(slots, options, line):
    """Qwen3.5-27B: R and S in f32 for each slot, whatever K and V are in; rollback states multiply them."""
    for recipe in ("native", "q8_0"):
        found = reserve(
            "llama_cpp", QWEN35_27B, recipe, budget=100 * GIB, context_tokens=4096, slots=slots, options=options
        )
        assert found.prints.splitlines()[-1] == line


def test_two_devices_of_a_public_log():
    """Qwen2.5-Coder-32B, q8_0, 32,768 cells, 41 and 23 layers: 2,788 and 1,564 of 4,352 MiB (plan-19)."""
    found = reserve(
        "llama_cpp", QWEN3_32B, "q8_0", budget=24 * GIB, context_tokens=32_768, slots=1, pp=2, partition=(41, 23)
    )

    assert "4352.00 MiB" in found.prints
    assert found.prints.count("2176.00 MiB") == 2
    assert found.steps[1] == "pp0/tp0 of 2: 41 layers x 32,768 cells: 2788.00 MiB"
    assert found.steps[2] == "pp1/tp0 of 2: 23 layers x 32,768 cells: 1564.00 MiB"
    assert found.limiting_rank == "pp0/tp0 of 2"
    assert split_by_weight(64, (41, 24)) == (41, 23)


def test_slots_are_as_many_as_fit():
    """Without a number the largest that fits is planned, and one more does not."""
    each = 32_768 * 64 * 2048 * 2

    found = reserve("llama_cpp", QWEN3_32B, budget=5 * each + 1, context_tokens=32_768)
    more = reserve("llama_cpp", QWEN3_32B, budget=5 * each + 1, context_tokens=32_768, slots=6)
    none = reserve("llama_cpp", QWEN3_32B, budget=each - 1, context_tokens=32_768)

    assert (found.sequences, found.tokens, found.reserved_bytes) == (5, 5 * 32_768, 5 * each)
    assert (more.sequences, more.tokens) == (0, 6 * 32_768)
    assert any("does not fit" in n for n in more.notes)
    assert none.sequences == 0
    assert reserve("llama_cpp", SMOLLM2, budget=10**15, context_tokens=256).sequences == 256


def test_one_vector_is_k_only():
    """MLA: 61 layers of 576 elements in f16, no V."""
    found = reserve("llama_cpp", DEEPSEEK_V3, budget=100 * GIB, context_tokens=4096, slots=1)

    assert found.prints.endswith("K (f16):  274.50 MiB, V (f16):    0.00 MiB")


def test_layers_without_rows_are_not_counted():
    """State layers are not among the layers of the KV cache."""
    found = reserve("llama_cpp", QWEN35_27B, budget=100 * GIB, context_tokens=4096, slots=1)

    assert "  16 layers,  1/1 seqs" in found.prints.splitlines()[0]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("pad_cells", lambda tokens: tokens),
        ("_recurrent", lambda layers, setup: (0, 0)),
        ("one_window", lambda layers: 0),
    ],
)
def test_broken_arithmetic_is_noticed(monkeypatch, name, broken):
    """No padding of windows, no states and no window: other lines than the engine's."""

    def lines():
        gemma = reserve("llama_cpp", GEMMA3_270M, budget=GIB, context_tokens=8192, slots=1, batched_tokens=32)
        hybrid = reserve("llama_cpp", QWEN35_27B, budget=100 * GIB, context_tokens=4096, slots=4)
        return gemma.prints, hybrid.prints

    right = lines()
    monkeypatch.setattr(llama_cpp_rule, name, broken)

    assert lines() != right


def test_the_budget_is_what_weights_and_buffers_leave():
    """Compute buffers are assumed where nobody says them."""
    found = budget_of("llama_cpp", device_bytes=24 * GIB, weights_bytes=20 * GIB)

    assert found.bytes == 4 * GIB - 512 * 2**20
    assert [t.name for t in found.terms if t.assumed] == ["compute buffers"]
    assert budget_of("llama_cpp", device_bytes=24 * GIB, weights_bytes=20 * GIB, overhead_bytes=0).bytes == 4 * GIB


@pytest.mark.parametrize(
    ("recipe", "settings", "says"),
    [
        ("fp8_e4m3", {}, "llama_cpp does not store"),
        ("q8_0/keep=L0", {}, "one type a side"),
        ("q8_0/residual=128", {}, "one type a side"),
        ("q8_0", {"slots": 0}, "0 slots"),
        ("q8_0", {"slots": 257}, "257 slots"),
        ("q8_0", {"context_tokens": -1}, "context of -1"),
        ("q8_0", {"batched_tokens": 0}, "n_ubatch 0"),
        ("q8_0", {"version": "nightly"}, "not a version of llama_cpp"),
        ("q8_0", {"options": {"ctx-size": "many"}}, "not a whole number"),
    ],
)
def test_senseless_settings_are_refused(recipe, settings, says):
    """One line that names the setting or the type."""
    with pytest.raises(UserError, match=says):
        reserve("llama_cpp", SMOLLM2, recipe, budget=GIB, **{"context_tokens": 512, **settings})


def test_cross_attention_has_no_rule():
    """Refused rather than left out."""
    layer = LayerGeometry(0, "cross_attention", 8, 64, 64, fixed_tokens=1500)
    whisper = ModelGeometry("w", "whisper", (layer,), 448, 0, SMOLLM2.source)

    with pytest.raises(UserError, match=r"no verified llama\.cpp rule for whisper"):
        reserve("llama_cpp", whisper, budget=GIB, context_tokens=512)


@pytest.mark.parametrize("version", ["b11549", "2026.10.11549", "11434"])
def test_builds_as_they_are_written(version):
    """The wheel's version ends in the build."""
    assert not reserve("llama_cpp", SMOLLM2, budget=GIB, context_tokens=512, version=version, slots=1).notes


def test_an_unknown_build_is_noted():
    """Newer builds may count otherwise."""
    found = reserve("llama_cpp", SMOLLM2, budget=GIB, context_tokens=512, version="b12007", slots=1)

    assert "newer than what was read" in found.notes[0]


def test_a_context_of_zero_is_the_models_own():
    """As llama.cpp takes -c 0."""
    assert reserve("llama_cpp", SMOLLM2, budget=GIB, context_tokens=0, slots=1).tokens == 8192
    assert model((1, 1, 64, 64, None)).context_tokens == 131_072
