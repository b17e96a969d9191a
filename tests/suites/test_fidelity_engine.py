"""The fidelity suite on the real engine and the demo model: known distances, and the floor that is not zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from fidelity_engine_lab import real_panel

from kvgate.core.observation import PositionBlock, Records
from kvgate.core.suite import SuiteContext, Summary
from kvgate.suites.fidelity import SUITE, FidelityParams, never_differs

#: 50 s of one idle core; the limit is for a machine that does much else.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

ARMS = {
    "base": ("f16", 512),
    "twin": ("f16", 512),
    "ubatch32": ("f16", 32),
    "q8_0": ("q8_0", 512),
    "q5_1": ("q5_1", 512),
    "q4_0": ("q4_0", 512),
    "q4_0+none": ("q4_0+none", 512),
}
FLOORS = ("twin", "ubatch32")
#: One document a category, so that eight clusters are not reached: distances are held here, not intervals.
PARAMS = FidelityParams(documents_per_category=1, prefill_tokens=96, decode_documents=2, decode_tokens=6)


@pytest.fixture(scope="module")
def records(smollm2: Path) -> Iterator[Records]:
    """All arms over the first document of each category."""
    with real_panel(smollm2, ARMS) as (panel, tokenize):
        cases = list(SUITE.cases(SuiteContext(PARAMS, 0, tokenize, 512)))
        blocks: list[PositionBlock] = []
        for case in cases:
            blocks += SUITE.run_panel(panel, case, "base", tuple(ARMS))
    candidates = tuple(a for a in ARMS if a not in ("base", *FLOORS))
    yield Records(
        "fidelity", "base", FLOORS, candidates, {c.id: c for c in cases}, positions=tuple(blocks), digest="real"
    )


@pytest.fixture(scope="module")
def results(records: Records) -> Mapping[str, Summary]:
    return {arm: SUITE.summarise(records.pair_with(arm)) for arm in records.candidates}


def value(summary: Summary, metric: str = "prefill.kl_mean") -> float:
    got = summary.metrics[metric].value  # type: ignore[union-attr]
    assert got is not None
    return got


def test_distances_order_the_codecs(results: Mapping[str, Summary]) -> None:
    """Mean KL orders f16 < q8_0 < q5_1 < q4_0, within the ranges seen before on other texts."""
    q8_0, q5_1, q4_0 = (value(results[arm]) for arm in ("q8_0", "q5_1", "q4_0"))
    assert 0 < q8_0 < q5_1 < q4_0
    assert 0.0003 <= q8_0 <= 0.01
    assert 0.02 <= q4_0 <= 0.15


def test_rotation_matters(results: Mapping[str, Summary]) -> None:
    """q4_0 without the rotation is at least one and a half times as far from the base."""
    assert value(results["q4_0+none"]) >= 1.5 * value(results["q4_0"])


def test_a_second_context_is_exactly_the_base(records: Records) -> None:
    """The twin differs nowhere, in both lanes, to the last bit; a lossy candidate does."""
    assert never_differs(records, "twin")
    for block in records.positions:
        if block.arm == "twin":
            assert np.array_equal(block.data["lp"], block.data["base_lp"])
            assert np.array_equal(block.data["top1"], block.data["base_top1"])
    assert not any(never_differs(records, arm) for arm in records.candidates)


def test_the_floor_of_another_kernel_is_not_zero(results: Mapping[str, Summary]) -> None:
    """Steps of 32 rows take another kernel: their distance is most of q8_0's, so q8_0's excess is a small part."""
    floor = value_of_floor(results["q8_0"])
    assert results["q8_0"].floor["twin"]["prefill.kl_mean"].value == 0  # type: ignore[union-attr]
    assert 0.0005 <= floor <= 0.01
    excess = results["q8_0"].excess["prefill.kl_mean"].value
    assert excess is not None
    assert excess == pytest.approx(value(results["q8_0"]) - floor, rel=1e-9)
    assert excess < 0.5 * value(results["q8_0"])


def value_of_floor(summary: Summary) -> float:
    got = summary.floor["ubatch32"]["prefill.kl_mean"].value  # type: ignore[union-attr]
    assert got is not None
    return got


def test_the_decode_lane_sees_the_same_order(results: Mapping[str, Summary]) -> None:
    """Single steps behind the prefix are scored on every arm, and q4_0 stays further away than q8_0."""
    for arm, summary in results.items():
        assert summary.metrics["decode.kl_mean"].n == 12, arm
    assert 0 < value(results["q8_0"], "decode.kl_mean") < value(results["q4_0"], "decode.kl_mean")


def test_the_model_reads_the_corpus(results: Mapping[str, Summary]) -> None:
    """Perplexity of the base is that of a model that reads these texts, far under the vocabulary's 49,152."""
    assert 2 < value(results["q8_0"], "prefill.ppl_base") < 100
    assert value(results["q8_0"], "prefill.ppl_ratio") == pytest.approx(1, abs=0.05)
