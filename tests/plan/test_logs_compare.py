"""A log against a prediction: exact, within the printed digits, or a gap with its name; what a plan can take over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.plan.ask import Typed
from kvgate.plan.from_log import plan_from_log
from kvgate.plan.log_compare import GapRow, compare, overhead_of, settings_of
from kvgate.plan.logs import read_log
from kvgate.plan.terms import Budget, Reserved, Term

LOGS = Path(__file__).parent / "logs"
GIB = 2**30
HERE = Source("arithmetic", "test")
QWEN3_8B = {"auto": 147_456, "fp8": 73_728}


def rows(name: str, predicted: Reserved, budget: Budget | None = None, recipe: str | None = None) -> dict[str, GapRow]:
    found = compare(read_log(LOGS / f"{name}.log"), predicted, budget, recipe=None if recipe is None else parse(recipe))
    return {r.what: r for r in found}


def reserved(tokens: int | None, *, sequences: int | None = None, bytes_: int | None = None) -> Reserved:
    return Reserved("test rule", HERE, tokens, sequences, "gpu0", reserved_bytes=bytes_)


def test_a_prediction_that_is_exact() -> None:
    """Equal tokens, sequences and types: every row is exact."""
    got = rows("vllm_0.32.0_cpu_fp8_e4m3", reserved(93_184, sequences=11, bytes_=728 * 128 * 11_520), recipe="fp8_e4m3")

    assert {n: r.verdict for n, r in got.items() if n != "KV bytes"} == {
        "K type": "exact",
        "V type": "exact",
        "tokens": "exact",
        "sequences": "exact",
    }
    assert got["KV bytes"].verdict == "rounding", "whole blocks of one GiB that is printed to two decimals"


@pytest.mark.parametrize(("kv", "tokens"), [("auto", 389_872), ("fp8", 779_760)])
def test_a_printed_gib_leaves_tokens_open(kv: str, tokens: int) -> None:
    """53.54 GiB give the printed tokens to within a block and the digits; nothing asks for a factor of exactly two."""
    blocks = round(53.54 * GIB) // (16 * QWEN3_8B[kv])
    got = rows(f"vllm_0.26.0_a100_{kv}", reserved(blocks * 16, bytes_=blocks * 16 * QWEN3_8B[kv]))

    assert got["tokens"].reported == tokens
    assert got["tokens"].verdict in ("exact", "rounding")
    assert 779_760 / 389_872 != 2


def test_the_tolerance_has_an_other_side() -> None:
    """Twice the block and digits away is no rounding any more."""
    per_token = QWEN3_8B["auto"]
    room = 16 + 0.005 * GIB / per_token
    near, far = 389_872 - int(room * 0.9), 389_872 - int(room * 1.5)

    for predicted, verdict in ((near, "rounding"), (far, "differs")):
        got = rows("vllm_0.26.0_a100_auto", reserved(predicted, bytes_=predicted * per_token))
        assert got["tokens"].verdict == verdict


def test_a_factor_of_two_is_named() -> None:
    """A checkpoint that `auto` starts in FP8: twice the tokens, and the row says what that means."""
    got = rows(
        "vllm_0.32.0_cpu_auto_kv_scheme", reserved(46_592, sequences=5, bytes_=364 * 128 * 23_040), recipe="bf16"
    )

    assert got["tokens"].verdict == "differs"
    assert "2 times more: the KV type in force is not the planned one" in got["tokens"].why
    assert got["K type"].why == "not printed: the type follows from auto"


def test_a_type_that_is_another() -> None:
    """The plan's recipe against what the engine stores, K and V apart."""
    got = rows("llama_cpp_b11549_three_slots", reserved(None), recipe="q8_0")

    assert (got["K type"].verdict, got["V type"].verdict) == ("exact", "differs")
    assert (got["V type"].predicted, got["V type"].reported) == ("q8_0", "q4_0")


def test_bytes_of_llama_cpp() -> None:
    """Caches add up to what the rule reserves, to the printed 0.01 MiB each."""
    exact = 15 * 1024 * 2 * 272 + 3 * 4096 * 2 * 272
    got = rows("llama_cpp_b11549_sliding", reserved(4096, bytes_=exact))
    wrong = rows("llama_cpp_b11549_sliding", reserved(4096, bytes_=exact + 2**16))

    assert (got["KV bytes"].verdict, wrong["KV bytes"].verdict) == ("rounding", "differs")
    assert got["tokens"].verdict == "exact"


BUDGET = Budget(
    "gpu0",
    (
        Term("device memory", 150_754_820_096, "all of it", HERE),
        Term("left unused", -12_060_385_608, "x 0.08", HERE),
        Term("weights", -65_528_000_000, "tensors", HERE),
        Term("activations and the rest", -4_000_000_000, "assumed", HERE, assumed=True),
    ),
)


def test_the_gap_in_memory_is_named() -> None:
    """The log implies another overhead than the plan assumed; its own words say of what."""
    planned = BUDGET.bytes // (16 * 131_072) * 16
    got = rows("vllm_0.32.0_h200", reserved(planned, bytes_=planned * 131_072), BUDGET)

    assert got["KV memory"].verdict == "differs"
    assert got["overhead"].predicted == 4_000_000_000
    assert got["overhead"].reported == pytest.approx((128.54 - 61.03 - 61.79) * GIB, abs=2)
    assert "the plan assumed its own" in got["overhead"].why
    assert "activation 5.40 GiB, other libraries 327.68 MiB" in got["overhead"].why
    assert (got["device memory"].verdict, got["weights"].verdict) == ("differs", "rounding")
    parts = 0.92 * (got["device memory"].gap or 0) - (got["weights"].gap or 0) - (got["overhead"].gap or 0)
    assert got["KV memory"].gap == pytest.approx(parts, abs=0.01 * GIB), "the three make the gap"
    assert got["overhead"].lines == (8, 9, 12)
    assert got["tokens"].why == "follows from the KV memory: the bytes of a token agree"


def test_a_gap_that_memory_does_not_explain() -> None:
    """Other bytes of a token than planned: the row does not say that memory explains it."""
    tokens = BUDGET.bytes // 98_304

    got = rows("vllm_0.32.0_h200", reserved(tokens, bytes_=tokens * 98_304), BUDGET)

    assert got["tokens"].why.startswith("not explained by the KV memory")


def test_settings_for_a_plan() -> None:
    """Version, sizes, share, budget and overhead of the log, each with its line; the budget is one term."""
    got = settings_of(read_log(LOGS / "vllm_0.32.0_h200.log"))
    serving = got.serving()

    assert (serving.engine, serving.version, serving.context_tokens) == ("vllm", "0.32.0", 32_768)
    assert (serving.batched_tokens, serving.memory_fraction, serving.tp) == (8192, 0.92, 1)
    assert (got.k, got.device_bytes, got.weights_bytes) == ("fp8_e4m3", round(139.72 * GIB), round(61.03 * GIB))
    budget = got.budget("gpu0")
    assert budget is not None
    assert budget.bytes == round(61.79 * GIB)
    assert budget.terms[0].source.kind == "log"
    assert got.lines["available"] == 9
    assert got.overhead is not None
    assert got.overhead.bytes == pytest.approx((128.54 - 61.03 - 61.79) * GIB, abs=2)


@pytest.mark.parametrize(
    ("name", "gib", "within_gib"),
    [
        ("vllm_0.6.6_v0_l4", 19.76 - 14.25 - 3.97, 0.015),
        ("sglang_0.4_h100", 0.88 * 78.59 - 15.11 - 54.04, 0.02),
        ("trtllm_1.2_h200", 21.46 - 0.56 - 15.27, 0.015),
        ("llama_cpp_b4450_two_gpus", (307 + 343 + 74.01) / 1024, 0.001),
    ],
)
def test_overhead_of_each_engine(name: str, gib: float, within_gib: float) -> None:
    """Each engine's own identity, and how far the printed digits leave it open."""
    got, why = overhead_of(read_log(LOGS / f"{name}.log"))

    assert got is not None, why
    assert got.bytes / GIB == pytest.approx(gib, abs=1e-6)
    assert 0 < got.within_bytes / GIB <= within_gib


#: Public receipts: engine/vllm on an H100 of 79.18 GiB; the printed parts of eight starts.
RECEIPTS = [
    (0.95, 44.76, 2.12, 0.14, 28.20),
    (0.90, 61.03, 5.64, 0.14, 4.45),
    (0.90, 30.59, 5.64, 0.54, 34.49),
    (0.90, 14.99, 4.76, 0.13, 51.38),
    (0.90, 33.88, 4.84, 0.55, 32.00),
    (0.90, 13.47, 7.38, 0.13, 50.28),
    (0.95, 64.38, 7.38, 0.13, 3.33),
]


@pytest.mark.parametrize(("share", "weights", "activation", "other", "kv"), RECEIPTS)
def test_public_receipts(share: float, weights: float, activation: float, other: float, kv: float) -> None:
    """The overhead that seven public starts imply is their activation and other libraries, to the printed digits."""
    text = (
        "INFO Initializing a V1 LLM engine (v0.11.0) with config: model='x', kv_cache_dtype=auto,\n"
        f"INFO Model loading took {weights} GiB and 20.1 seconds\n"
        f"INFO Available KV cache memory: {kv} GiB\n"
        f"INFO Free memory on device (78.70/79.18 GiB) on startup. Desired GPU memory utilization is ({share}, "
        f"{round(79.18 * share, 2)} GiB). Actual usage is {weights} GiB for weight, {activation} GiB for peak "
        f"activation, {other} GiB for non-torch memory, and 0.4 GiB for CUDAGraph memory. Replace\n"
    )

    got, why = overhead_of(read_log(text))

    assert got is not None, why
    named = sum(size for name, size in got.parts)
    assert [name for name, _ in got.parts] == ["activation", "other libraries"]
    # Three printed numbers on one side, two on the other, each to half of 0.01 GiB.
    assert abs(got.bytes - named) <= 5 * 0.005 * GIB


def test_a_rest_is_said_to_be_one() -> None:
    """What the parts do not add up to is named as a rest, such as the estimate for CUDA graphs."""
    text = (LOGS / "vllm_0.32.0_h200.log").read_text().replace("KV cache memory: 61.79", "KV cache memory: 60.29")

    got, _ = overhead_of(read_log(text))

    assert got is not None
    assert dict(got.parts)["not named in the log"] == pytest.approx(1.5 * GIB, abs=0.02 * GIB)


def test_what_the_log_does_not_say() -> None:
    """Without device memory there is no overhead, with the reason; the caller may stand in."""
    log = read_log(LOGS / "vllm_0.11.0_dp2.log")

    assert overhead_of(log) == (None, "the log does not say: device memory")
    given, why = overhead_of(log, device_bytes=round(79.18 * GIB), memory_fraction=0.9)
    assert given is not None, why
    assert given.bytes == pytest.approx((79.18 * 0.9 - 15.2683 - 48.10) * GIB, abs=8)
    assert settings_of(log).limiting_rank == "DP1"
    none = settings_of(read_log(LOGS / "vllm_0.8.5_tp2.log"))
    assert none.budget("gpu0") is None
    with pytest.raises(UserError, match="longest sequence"):
        replace(none, context_tokens=None).serving()


def test_nothing_predicted_is_nothing_claimed() -> None:
    """Where a side is unknown the row says so and has no gap."""
    got = rows("trtllm_0.13_qwen1.5", reserved(None), recipe="fp8_e4m3")

    assert got["K type"].verdict == got["tokens"].verdict == "unknown"
    assert got["tokens"].gap is None


def test_ranks_are_named() -> None:
    """With several ranks the one with the least is named, and by how much."""
    got = rows("vllm_0.11.0_dp2", reserved(700_512, sequences=21))

    assert got["limiting rank"].reported == "DP1"
    assert "2.54 GiB more" in got["limiting rank"].why
    assert got["sequences"].verdict == "exact"


def test_sizes_in_two_digits_leave_tokens_open() -> None:
    """SGLang prints K and V as 8.23 GB each (vllm issue 21348): some 220 tokens are inside of that, 1,000 are not."""
    line = "KV Cache is allocated. #tokens: {}, K size: 8.23 GB, V size: 8.23 GB\n"
    typed = Typed("Qwen/Qwen3-235B-A22B", kv=("bf16",), tp=4, context_tokens=40_960)

    def tokens(printed: int, ranks: int = 1) -> GapRow:
        text = "".join(f"[2025-07-22 10:00:00 TP{i}] {line.format(printed)}" for i in range(ranks))
        return next(g for g in plan_from_log(typed, read_log(text)).given_memory if g.what == "tokens")

    assert tokens(367_404).verdict == "rounding"
    assert tokens(368_404).verdict == "differs"
    # More ranks that print the same make no number less certain.
    assert tokens(368_404, ranks=8).verdict == "differs"
