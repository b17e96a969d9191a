"""Resampled statistics pinned to their definition, and the intervals made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import norm, t

from kvgate.stats.bootstrap import (
    excess_interval,
    percentile_interval,
    weighted_mean,
    weighted_quantile,
    widened_tail,
)
from kvgate.stats.cluster import cluster_counts

QS = (0.0, 0.05, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0, 1 / 3)


def lopsided(seed: int, n: int = 1500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heavy-tailed values with ties, in clusters of very different size, and 25 resamples of them."""
    rng = np.random.default_rng(seed)
    clusters = 9
    cluster_of = rng.choice(clusters, n, p=rng.dirichlet(np.full(clusters, 0.4)))
    values = np.round(rng.standard_t(2, n), 2)
    counts = cluster_counts(["a"] * 4 + ["b"] * 3 + ["c"] * 2, rng, 25)
    return values, cluster_of, counts


def written_out(values: np.ndarray, cluster_of: np.ndarray, row: np.ndarray) -> np.ndarray:
    return np.repeat(values, row[cluster_of])


@pytest.mark.parametrize("seed", range(5))
def test_mean_is_the_mean_of_the_multiset_written_out(seed: int) -> None:
    """Each mean equals the mean of the repeated observations, to 1e-12."""
    values, cluster_of, counts = lopsided(seed)

    expected = [written_out(values, cluster_of, row).mean() if row[cluster_of].any() else np.nan for row in counts]

    np.testing.assert_allclose(weighted_mean(values, cluster_of, counts), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize("seed", range(5))
def test_quantile_is_numpys_of_the_multiset_written_out(seed: int, q: float) -> None:
    """Each quantile equals np.quantile of the repeated observations, to the last bit."""
    values, cluster_of, counts = lopsided(seed)

    expected = [np.quantile(written_out(values, cluster_of, row), q) for row in counts]

    np.testing.assert_array_equal(weighted_quantile(values, cluster_of, counts, q), expected)


def test_every_order_statistic_across_blocks() -> None:
    """Every rank of a multiset over several blocks, with clusters that are not drawn at the blocks' edges."""
    rng = np.random.default_rng(8)
    n = 2 * 256 + 40
    values, cluster_of = np.arange(float(n)), rng.integers(0, 3, n)
    cluster_of[[255, 256, 257, 511, 512]] = [0, 1, 1, 2, 1]
    counts = np.array([[1, 0, 2], [3, 0, 1]], dtype=np.int32)

    for b, row in enumerate(counts):
        sample = written_out(values, cluster_of, row)
        for k in range(len(sample)):
            q = k / (len(sample) - 1)
            assert weighted_quantile(values, cluster_of, counts, q)[b] == np.quantile(sample, q)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 3)), min_size=1, max_size=40),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.floats(0, 1),
)
def test_quantile_survives_any_counts(pairs: list[tuple[float, int]], row: list[int], q: float) -> None:
    """Any counts, ties and clusters without observations give numpy's quantile, and an empty resample gives NaN."""
    values = np.array([v for v, _ in pairs])
    cluster_of = np.array([c for _, c in pairs])
    counts = np.array([row], dtype=np.int32)
    sample = written_out(values, cluster_of, counts[0])

    got = weighted_quantile(values, cluster_of, counts, q)[0]

    if len(sample):
        assert np.quantile(sample, q) == got
    else:
        assert np.isnan(got)
        assert np.isnan(weighted_mean(values, cluster_of, counts)[0])


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Working through the resamples in many chunks gives the same numbers."""
    values, cluster_of, counts = lopsided(7)
    mean, p99 = weighted_mean(values, cluster_of, counts), weighted_quantile(values, cluster_of, counts, 0.99)
    monkeypatch.setattr("kvgate.stats.bootstrap._CHUNK_ELEMENTS", 1)

    # A matrix product may add in another order for another shape: the mean is equal to rounding, the quantile exactly.
    np.testing.assert_allclose(weighted_mean(values, cluster_of, counts), mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(weighted_quantile(values, cluster_of, counts, 0.99), p99)


@pytest.mark.parametrize(
    ("values", "cluster_of", "match"),
    [
        ([], [], "over 0"),
        ([1.0, 2.0], [0], "one length"),
        ([1.0, np.nan], [0, 1], "1 of 2 values are not finite"),
        ([1.0, np.inf], [0, 1], "not finite"),
        ([1.0, 2.0], [0, 2], "do not cover clusters"),
        ([1.0, 2.0], [-1, 0], "do not cover clusters"),
    ],
)
def test_bad_arrays_are_refused(values: list[float], cluster_of: list[int], match: str) -> None:
    """Arrays that do not fit, or hold a NaN that would poison every resample, raise and say which."""
    counts = np.ones((3, 2), dtype=np.int32)

    with pytest.raises(ValueError, match=match):
        weighted_mean(np.array(values), np.array(cluster_of, dtype=int), counts)
    with pytest.raises(ValueError, match=match):
        weighted_quantile(np.array(values), np.array(cluster_of, dtype=int), counts, 0.5)


def test_interval_reads_the_widened_quantiles() -> None:
    """The ends are the quantiles of the resamples at Phi(t), pinned to scipy's distributions."""
    samples = np.random.default_rng(1).normal(0, 1, 4000)
    tail = norm.cdf(t.ppf(0.05, 11))

    e = percentile_interval(0.1, samples, level=0.90, n=500, clusters=12, unit="nat", what="mean")

    np.testing.assert_allclose([e.lo, e.hi], np.quantile(samples, [tail, 1 - tail]), rtol=1e-12)
    assert (e.value, e.level, e.n, e.clusters, e.unit) == (0.1, 0.90, 500, 12, "nat")
    assert "B=4000" in e.method and e.method.startswith("mean, cluster bootstrap")


def test_widening_vanishes_with_many_clusters() -> None:
    """At 12 clusters the 90 % interval reads 3.6 %, at a million the plain 5 %."""
    assert pytest.approx(0.0363, abs=5e-5) == widened_tail(0.90, 11)
    assert pytest.approx(0.05, abs=1e-6) == widened_tail(0.90, 1_000_000)


def test_agrees_with_scipy_where_scipy_has_it() -> None:
    """With 400 clusters of one observation the mean's interval is scipy's percentile interval."""
    rng = np.random.default_rng(3)
    x = rng.lognormal(0, 1, 400)
    counts = cluster_counts(["all"] * 400, rng, 8000)

    mine = percentile_interval(
        x.mean(), weighted_mean(x, np.arange(400), counts), level=0.90, n=400, clusters=400, unit="1"
    )
    theirs = scipy_bootstrap((x,), np.mean, n_resamples=8000, confidence_level=0.90, method="percentile", rng=rng)

    # An end of a percentile interval has standard error sqrt(p(1-p)/B)/density: 0.0024 / 0.103 = 0.024 SE of the
    # statistic; the difference of two of them, at 4 sigma, is 0.13 SE.
    tolerance = 0.13 * x.std() / 20
    assert abs(mine.lo - theirs.confidence_interval.low) < tolerance
    assert abs(mine.hi - theirs.confidence_interval.high) < tolerance


@pytest.mark.parametrize("clusters", [1, 7])
def test_under_eight_clusters_there_is_no_interval(clusters: int) -> None:
    """The value stays, the ends are unknown, and the reason counts the clusters."""
    e = percentile_interval(0.5, np.linspace(0, 1, 100), level=0.90, n=900, clusters=clusters, unit="nat")

    assert (e.value, e.lo, e.hi) == (0.5, None, None)
    assert f"{clusters} independent units" in e.why
    assert percentile_interval(0.5, np.linspace(0, 1, 100), level=0.9, n=900, clusters=8, unit="nat").lo is not None


@pytest.mark.parametrize(
    ("point", "samples", "why"),
    [
        (np.nan, [1.0, 2.0], "not a finite number"),
        (1.0, [1.0, np.nan, 2.0], "1 of 3 resamples gave no number"),
        (1.0, [], "0 of 0 resamples"),
    ],
)
def test_undefined_is_unbounded_not_narrow(point: float, samples: list[float], why: str) -> None:
    """A statistic or a resample without a number takes the interval away, with the reason."""
    e = percentile_interval(point, np.array(samples), level=0.9, n=9, clusters=9, unit="1")

    assert (e.lo, e.hi) == (None, None)
    assert why in e.why


def test_excess_is_the_difference_to_the_largest_floor_in_each_resample() -> None:
    """The excess is recomputed by a loop over resamples and floors."""
    rng = np.random.default_rng(4)
    arm, floors = rng.normal(5, 1, 300), [rng.normal(1, 1, 300), rng.normal(1.5, 0.1, 300)]
    each = np.array([a - max(f[b] for f in floors) for b, a in enumerate(arm)])
    tail = widened_tail(0.90, 17)

    e = excess_interval(5.0, arm, floors, [1.0, 1.5], level=0.90, n=300, clusters=20, unit="nat", what="p99", strata=3)

    assert e.value == 3.5
    np.testing.assert_allclose([e.lo, e.hi], np.quantile(each, [tail, 1 - tail]), rtol=1e-12)
    assert "p99 excess over the largest of 2 floor arms" in e.method


def test_no_floor_is_not_a_floor_of_zero() -> None:
    """Without a floor arm the excess is unknown, never the raw distance."""
    e = excess_interval(5.0, np.ones(9), [], [], level=0.9, n=9, clusters=9, unit="nat")

    assert (e.value, e.lo, e.hi) == (None, None, None)
    assert "no floor arm ran" in e.why
    with pytest.raises(ValueError, match="1 floor samples but 0 floor points"):
        excess_interval(5.0, np.ones(9), [np.ones(9)], [], level=0.9, n=9, clusters=9, unit="nat")
