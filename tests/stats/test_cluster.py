"""The counts matrix: stratified, paired, whole numbers, right variance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvgate.stats.bootstrap import weighted_mean
from kvgate.stats.cluster import cluster_counts


def test_each_stratum_keeps_its_weight() -> None:
    """In every resample a stratum of m clusters counts m times the common multiple, whatever its size."""
    strata = ["a"] * 2 + ["b"] * 3 + ["c"] * 5 + ["d"] * 20 + ["e"]
    common = math.lcm(1, 2, 4)

    counts = cluster_counts(strata, np.random.default_rng(0), 500)

    assert counts.shape == (500, 31) and counts.dtype == np.int32 and counts.min() >= 0
    for name in "abcde":
        inside = np.array([s == name for s in strata])
        assert {inside.sum() * common} == set(counts[:, inside].sum(axis=1).tolist())


@pytest.mark.parametrize("strata", [["a"] * 12, list("abcdefabcdef"), ["a"] * 9 + ["b"] * 40])
def test_plain_where_nothing_needs_scaling(strata: list[str]) -> None:
    """Strata of two, and strata over eight, give counts whose rows sum to the number of clusters."""
    counts = cluster_counts(strata, np.random.default_rng(0), 50)

    assert {len(strata)} == set(counts.sum(axis=1).tolist())


def test_a_lone_cluster_is_always_drawn() -> None:
    """A stratum of one cluster yields it once in every resample and so adds no width."""
    counts = cluster_counts(["x", "a", "a"], np.random.default_rng(0), 200)

    assert {1} == set(counts[:, 0].tolist())


def test_order_of_the_strata_does_not_matter() -> None:
    """Interleaved strata are resampled inside themselves."""
    counts = cluster_counts(["b", "a", "b", "a", "b", "a"], np.random.default_rng(0), 300)

    assert {6} == set(counts[:, ::2].sum(axis=1).tolist()) == set(counts[:, 1::2].sum(axis=1).tolist())


def test_same_generator_state_same_counts() -> None:
    """The draws depend on the generator alone."""
    one, two = (cluster_counts(["a"] * 9, np.random.default_rng(5), 40) for _ in range(2))

    np.testing.assert_array_equal(one, two)
    assert (cluster_counts(["a"] * 9, np.random.default_rng(6), 40) != one).any()


@pytest.mark.parametrize("strata", [["a"] * 2 + ["b"] * 2 + ["c"] * 2, ["a"] * 3 + ["b"] * 5, ["a"] * 8])
def test_variance_is_the_unbiased_one(strata: list[str]) -> None:
    """The bootstrap variance of a stratified mean is sum of n_h s_h^2 / n^2, with the unbiased s_h^2.

    Plain resampling gives (m-1)/m of it: half, for strata of two.
    """
    rng = np.random.default_rng(2)
    x, names, resamples = rng.normal(size=len(strata)), np.array(strata), 200_000
    unbiased = sum((names == s).sum() * x[names == s].var(ddof=1) for s in set(strata)) / len(strata) ** 2

    samples = weighted_mean(x, np.arange(len(strata)), cluster_counts(strata, rng, resamples))

    # The relative standard error of a variance is at most sqrt((kurtosis - 1)/B) <= sqrt(2/B) here (no heavier tail
    # than a normal), 0.0032; five of them.
    assert abs(samples.var() / unbiased - 1) < 0.016


def test_no_cluster_is_refused() -> None:
    """Nothing to draw from is an error, not an empty answer."""
    with pytest.raises(ValueError, match="0 clusters"):
        cluster_counts([], np.random.default_rng(0), 10)
    with pytest.raises(ValueError, match="0 resamples"):
        cluster_counts(["a"], np.random.default_rng(0), 0)
