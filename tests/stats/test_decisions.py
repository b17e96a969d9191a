"""Non-inferiority, Holm and the number that would decide."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from kvgate.core.estimate import Estimate
from kvgate.core.verdict import Status
from kvgate.stats.multiplicity import holm, holm_adjusted
from kvgate.stats.noninferiority import judge, judge_ceiling
from kvgate.stats.power import clusters_to_decide, mcnemar_power, prompts_to_decide, unpaired_items


def ratio(lo: float | None, hi: float | None, level: float = 0.90) -> Estimate:
    return Estimate(0.97, lo, hi, level, 100, 50, "ratio", "test")


@pytest.mark.parametrize(
    ("lo", "hi", "status"),
    [
        (0.95, 1.0, Status.PASS),  # the margin itself passes
        (0.9499, 1.0, Status.INCONCLUSIVE),
        (0.90, 0.95, Status.INCONCLUSIVE),  # the margin itself does not fail
        (0.90, 0.9499, Status.FAIL),
        (None, None, Status.INCONCLUSIVE),
        (0.96, None, Status.PASS),  # bounded on the side that matters
        (None, 0.94, Status.FAIL),
    ],
)
def test_noninferiority_at_its_boundary(lo: float | None, hi: float | None, status: Status) -> None:
    """lo >= margin passes, hi < margin fails, the rest is inconclusive; the ceiling is its mirror image."""
    assert judge(ratio(lo, hi), 0.95).status is status
    mirrored = Estimate(-0.97, None if hi is None else -hi, None if lo is None else -lo, 0.90, 100, 50, "ratio", "test")
    assert judge_ceiling(mirrored, -0.95).status is status


def test_a_narrower_interval_than_alpha_needs_decides_nothing() -> None:
    """An 80 % interval cannot serve a test at 5 %; a 95 % one can."""
    narrow = judge(ratio(0.96, 1.0, level=0.80), 0.95)

    assert narrow.status is Status.INCONCLUSIVE
    assert "needs 0.9" in narrow.why
    assert judge(ratio(0.96, 1.0, level=0.95), 0.95).status is Status.PASS
    assert judge(ratio(0.96, 1.0), 0.95, alpha=0.01).status is Status.INCONCLUSIVE


def test_an_unknown_number_is_inconclusive_with_its_reason() -> None:
    """The reason of the estimate becomes the reason of the judgement."""
    got = judge(Estimate.unknown("baseline at its floor"), 0.95)

    assert (got.status, got.why) == (Status.INCONCLUSIVE, "baseline at its floor")


def holm_by_definition(p: dict[str, float], alpha: float) -> dict[str, bool]:
    """Closed testing: reject H if every intersection that holds it is rejected by Bonferroni."""
    names = list(p)
    sets = [s for k in range(1, len(names) + 1) for s in itertools.combinations(names, k)]
    return {h: all(min(p[i] for i in s) <= alpha / len(s) for s in sets if h in s) for h in names}


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-6, 1), max_size=6), st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_is_the_closed_bonferroni_test(p: dict[str, float], alpha: float) -> None:
    """Rejections equal those of closed testing, and adjusted p values never fall below the raw ones."""
    assert holm(p, alpha) == holm_by_definition(p, alpha)
    assert all(holm_adjusted(p)[k] >= p[k] for k in p)


def test_holm_refuses_what_is_no_probability() -> None:
    """A p value outside 0..1 raises with its name."""
    with pytest.raises(ValueError, match="'b'"):
        holm({"a": 0.5, "b": 1.5}, 0.05)


def test_clusters_to_decide_reaches_its_power() -> None:
    """Simulated: with the number it gives, a true estimate is told from the threshold about 80 % of the time."""
    clusters, sd, value, threshold = 20, 0.01, 0.008, 0.01
    half = norm.ppf(0.95) * sd / math.sqrt(clusters)
    n = clusters_to_decide(Estimate(value, value - half, value + half, 0.90, 500, clusters, "nat", "t"), threshold).n

    assert n == math.ceil(((norm.ppf(0.95) + norm.ppf(0.8)) * sd / (threshold - value)) ** 2) == 155
    rng, runs = np.random.default_rng(1), 4000
    means = rng.normal(value, sd / math.sqrt(n), runs)
    decided = np.mean(means + norm.ppf(0.95) * sd / math.sqrt(n) <= threshold)
    # Binomial error of a share of 0.8 over 4,000 runs: 0.0063; four of them.
    assert decided == pytest.approx(0.8, abs=0.026)


@pytest.mark.parametrize(
    ("estimate", "why"),
    [
        (Estimate(0.95, 0.9, 1.0, 0.9, 99, 50, "ratio", "t"), "none would: the estimate sits at the threshold"),
        (Estimate(0.9500001, 0.9, 1.0, 0.9, 99, 50, "ratio", "t"), "sits at the threshold (over"),
        (Estimate(0.99, None, None, 0.9, 99, 4, "ratio", "t", "4 units"), "at least 8 give an interval"),
        (Estimate.unknown("baseline at its floor"), "baseline at its floor"),
    ],
)
def test_none_would_decide_and_says_why(estimate: Estimate, why: str) -> None:
    """At the threshold, without an interval or without a value there is no number."""
    got = clusters_to_decide(estimate, 0.95)

    assert got.n is None
    assert why in got.why


def test_the_facing_half_width_counts() -> None:
    """A long tail on the far side of the threshold does not raise the number."""
    near = Estimate(0.008, 0.001, 0.011, 0.9, 99, 20, "nat", "t")
    far = Estimate(0.008, 0.0079, 0.011, 0.9, 99, 20, "nat", "t")

    assert clusters_to_decide(near, 0.01) == clusters_to_decide(far, 0.01)
    assert clusters_to_decide(Estimate(0.02, 0.0199, 0.9, 0.9, 99, 20, "nat", "t"), 0.01).n == 8


@pytest.mark.parametrize(("n", "b", "r"), [(30, 0.2, 0.05), (79, 1 / 12, 0.0), (12, 0.5, 0.1)])
def test_mcnemar_power_by_brute_force(n: int, b: float, r: float) -> None:
    """The power is the sum over all outcomes (breaks, repairs) of n prompts that the exact test rejects."""
    total = 0.0
    for x in range(n + 1):
        for y in range(n + 1 - x):
            if x + y and binom.sf(x - 1, x + y, 0.5) <= 0.05:
                weight = math.comb(n, x) * math.comb(n - x, y)
                total += weight * b**x * r**y * (1 - b - r) ** (n - x - y)

    assert mcnemar_power(n, b, r) == pytest.approx(total, rel=1e-9)


def test_prompts_to_decide_is_the_turning_point() -> None:
    """One break in 12 would be decided by 80 prompts: there the exact power passes 80 %, one prompt fewer not."""
    got = prompts_to_decide(1, 0, 12)

    assert got.n is not None
    assert mcnemar_power(got.n, 1 / 12, 0) >= 0.8 > mcnemar_power(got.n - 1, 1 / 12, 0)
    assert got.n == 80


def test_no_prompts_would_decide_equal_breaks_and_repairs() -> None:
    """Breaks that do not exceed repairs can never become significant by more of the same."""
    assert prompts_to_decide(3, 3, 24).n is None
    assert "do not exceed 3 repairs" in prompts_to_decide(3, 3, 24).why
    assert mcnemar_power(100, 0.0, 0.0) == 0.0
    with pytest.raises(ValueError, match="in 3 prompts"):
        prompts_to_decide(3, 3, 3)


def test_unpaired_items_of_equal_rates() -> None:
    """Equal rates cannot be told apart by any number."""
    assert unpaired_items(0.5, 0.5).n is None
    assert unpaired_items(0.5, 0.5001).n is None
