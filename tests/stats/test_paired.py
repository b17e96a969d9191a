"""Paired comparisons: exact McNemar, differences and ratios of scores."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.stats.bootstrap import percentile_interval
from kvgate.stats.cluster import cluster_counts
from kvgate.stats.paired import mcnemar, paired_difference, paired_ratio


def tail(n: int, k: int) -> Fraction:
    """P(X >= k) for X ~ Binomial(n, 1/2), exactly."""
    return Fraction(sum(comb(n, i) for i in range(k, n + 1)), 2**n)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_the_binomial_tail(breaks: int, repairs: int) -> None:
    """p equals the exact tail, recomputed in fractions, in all three directions."""
    n = breaks + repairs
    up, down = float(tail(n, breaks)), float(tail(n, repairs))
    two = float(min(Fraction(1), 2 * min(tail(n, breaks), tail(n, repairs))))

    assert mcnemar(breaks, repairs).p == pytest.approx(up, rel=1e-12)
    assert mcnemar(breaks, repairs, "less").p == pytest.approx(down, rel=1e-12)
    assert mcnemar(breaks, repairs, "two-sided").p == pytest.approx(two, rel=1e-12)


@pytest.mark.parametrize(
    ("breaks", "repairs", "p"),
    [(5, 0, 0.03125), (5, 1, 0.109), (7, 1, 0.035), (8, 2, 0.055), (10, 3, 0.046), (0, 0, 1.0), (4, 0, 0.0625)],
)
def test_mcnemar_reference_points(breaks: int, repairs: int, p: float) -> None:
    """The table that people quote; 0 discordant pairs is p = 1, not an error."""
    test = mcnemar(breaks, repairs)

    assert test.p == pytest.approx(p, abs=5e-4)
    assert (test.statistic, test.n, test.alternative) == (breaks - repairs, breaks + repairs, "greater")


def test_mcnemar_refuses_nonsense() -> None:
    """A negative count or an unknown direction raises."""
    with pytest.raises(ValueError, match="0 or more"):
        mcnemar(-1, 2)
    with pytest.raises(ValueError, match="greater"):
        mcnemar(1, 2, "bigger")


def world(seed: int, clusters: int = 30, per: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    cluster_of = np.repeat(np.arange(clusters), per)
    base = rng.integers(0, 4, clusters * per) / 3
    candidate = np.clip(base - (rng.random(clusters * per) < 0.2) / 3, 0, 1)
    return base, candidate, cluster_of, cluster_counts(["a"] * clusters, rng, 300)


@pytest.mark.parametrize("seed", range(3))
def test_difference_and_ratio_are_those_of_the_resampled_cases(seed: int) -> None:
    """Both are recomputed by writing out every resample of whole clusters, both arms with the same draw."""
    base, cand, cluster_of, counts = world(seed)
    picks = [np.repeat(np.arange(len(base)), row[cluster_of]) for row in counts]
    differences = np.array([cand[i].mean() - base[i].mean() for i in picks])
    ratios = np.array([cand[i].mean() / base[i].mean() for i in picks])

    for got, samples, point in (
        (paired_difference(base, cand, cluster_of, counts), differences, cand.mean() - base.mean()),
        (paired_ratio(base, cand, cluster_of, counts), ratios, cand.mean() / base.mean()),
    ):
        want = percentile_interval(point, samples, level=0.90, n=120, clusters=30, unit="")
        np.testing.assert_allclose([got.value, got.lo, got.hi], [want.value, want.lo, want.hi], rtol=1e-12, atol=1e-13)
        assert (got.n, got.clusters) == (120, 30)


def test_arms_drawn_apart_would_be_seen() -> None:
    """Mutant: one counts matrix an arm. The interval would be several times wider than the paired one."""
    base, cand, cluster_of, counts = world(1)
    other = cluster_counts(["a"] * 30, np.random.default_rng(99), 300)
    from kvgate.stats.bootstrap import weighted_mean

    unpaired = percentile_interval(
        0.0,
        weighted_mean(cand, cluster_of, other) - weighted_mean(base, cluster_of, counts),
        level=0.90,
        n=120,
        clusters=30,
        unit="",
    )
    paired = paired_difference(base, cand, cluster_of, counts)

    assert unpaired.hi - unpaired.lo > 2 * (paired.hi - paired.lo)


@pytest.mark.parametrize("score", [1.0, 0.5])
def test_no_change_at_all_is_not_certainty(score: float) -> None:
    """All pairs equal: the interval is the exact bound on the unseen rate of change, never zero width."""
    n = 40
    scores, own = np.full(n, score), np.arange(n)
    counts = cluster_counts(["a"] * n, np.random.default_rng(0), 200)
    r = 1 - 0.05 ** (1 / n)

    d = paired_difference(scores, scores, own, counts)
    q = paired_ratio(scores, scores, own, counts)

    np.testing.assert_allclose([d.value, d.lo, d.hi], [0, -r, r], rtol=1e-12)
    seen = (1 - r) * score
    np.testing.assert_allclose([q.value, q.lo, q.hi], [1, seen / (seen + r), (seen + r) / seen], rtol=1e-12)
    assert "rule of three" in d.method and "rule of three" in q.method


def test_59_flawless_clusters_carry_a_margin_of_95_percent() -> None:
    """The rule of three for a ratio: 59 clusters without a loss reach 0.95, 58 do not."""
    for n, reaches in ((59, True), (58, False)):
        counts = cluster_counts(["a"] * n, np.random.default_rng(0), 50)
        e = paired_ratio(np.ones(n), np.ones(n), np.arange(n), counts)
        assert (e.lo >= 0.95) is reaches


def test_equal_scores_that_vary_between_cases_are_flat_too() -> None:
    """A candidate equal to a base of mixed scores gives ratio 1 in every resample, and the bound replaces it."""
    base, _, cluster_of, counts = world(2)

    e = paired_ratio(base, base, cluster_of, counts)

    assert e.lo < 1 < e.hi and "rule of three" in e.method


def test_total_loss_is_flat_too() -> None:
    """Every case lost: value 0, upper end where what 40 clusters would miss survives and the base fails there."""
    n = 40
    counts = cluster_counts(["a"] * n, np.random.default_rng(0), 200)

    e = paired_ratio(np.ones(n), np.zeros(n), np.arange(n), counts)

    assert (e.value, e.lo) == (0.0, 0.0)
    r = 1 - 0.05 ** (1 / n)
    assert e.hi == pytest.approx(r / (1 - r), rel=1e-12)


def test_ratio_to_a_base_at_its_floor_is_refused() -> None:
    """Under 0.10, or under 3 standard errors from zero, the ratio is unknown and says why."""
    n = 40
    counts = cluster_counts(["a"] * n, np.random.default_rng(0), 400)
    low = np.zeros(n)
    low[:3] = 1  # 0.075
    noisy = np.zeros(n)
    noisy[:5] = 1  # 0.125 with SE sqrt(.125 * .875 / 40) = 0.052: 2.4 SE
    clear = np.zeros(n)
    clear[:12] = 1  # 0.3 with SE 0.072: 4.1 SE

    assert "under 0.1" in paired_ratio(low, low, np.arange(n), counts).why
    assert "standard errors" in paired_ratio(noisy, noisy, np.arange(n), counts).why
    assert paired_ratio(clear, clear, np.arange(n), counts).value == 1.0


def test_few_clusters_have_no_interval_even_when_flat() -> None:
    """Four needles that all agree give a ratio of 1 and no bound."""
    counts = cluster_counts(["a"] * 4, np.random.default_rng(0), 100)

    e = paired_ratio(np.ones(4), np.ones(4), np.arange(4), counts)

    assert (e.value, e.lo, e.hi) == (1.0, None, None)


def test_cases_must_match() -> None:
    """Arms of different length cannot be paired."""
    with pytest.raises(ValueError, match="not the same cases"):
        paired_difference(np.ones(3), np.ones(4), np.arange(3), np.ones((2, 3), dtype=int))
