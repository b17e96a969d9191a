"""Statistics of cluster resamples, and the intervals made of them. Knows nothing about suites or metrics.

Values are one per observation, `cluster_of` says to which cluster each belongs, `counts` [B, C] how often each
cluster is drawn (see `cluster`). Every statistic is that of the resampled multiset, as if it had been written out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvgate.core.estimate import Estimate
from kvgate.stats.cluster import MIN_CLUSTERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Elements of one temporary array: 4 M doubles, 32 MB.
_CHUNK_ELEMENTS = 1 << 22
_BLOCK = 256


def weighted_mean(values: NDArray[Any], cluster_of: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Mean over the observations of each resample; a long document weighs more than a short one.

    Args:
        values: [n]. cluster_of: cluster index of each value, [n]. counts: [B, C].

    Returns:
        [B]; NaN where a resample holds no observation.

    Raises:
        ValueError: shapes do not fit, or a value is not finite.
    """
    v, c = _checked(values, cluster_of, counts)
    n_clusters = counts.shape[1]
    sums = np.bincount(c, weights=v, minlength=n_clusters)
    sizes = np.bincount(c, minlength=n_clusters).astype(np.float64)
    out = np.full(counts.shape[0], np.nan)
    for rows in _chunks(counts.shape[0], n_clusters):
        w = counts[rows].astype(np.float64)
        total = w @ sizes
        np.divide(w @ sums, total, out=out[rows], where=total > 0)
    return out


def weighted_quantile(
    values: NDArray[Any], cluster_of: NDArray[Any], counts: NDArray[Any], q: float
) -> NDArray[np.float64]:
    """The q-quantile of each resample: linear interpolation at q (n - 1), numpy's default.

    Equal to `np.quantile(np.repeat(values, counts[b][cluster_of]), q)` for every b, to the last bit. All resamples
    share one sort. A table of how many values of each cluster lie in each block of the sorted values turns the
    search for an order statistic into one matrix product and a scan of one block.

    Args:
        values: [n]. cluster_of: [n]. counts: [B, C]. q: 0 to 1.

    Returns:
        [B]; NaN where a resample holds no observation.

    Raises:
        ValueError: shapes do not fit, a value is not finite, or q is outside 0..1.
    """
    v, c = _checked(values, cluster_of, counts)
    if not 0 <= q <= 1:
        raise ValueError(f"quantile {q} is not between 0 and 1")
    order = np.argsort(v, kind="stable")
    v, c = v[order], c[order]
    n, (resamples, n_clusters) = len(v), counts.shape
    n_blocks = -(-n // _BLOCK)
    table = np.zeros((n_clusters, n_blocks))
    np.add.at(table, (c, np.arange(n) // _BLOCK), 1.0)
    upto = np.cumsum(table, axis=1)
    out = np.full(resamples, np.nan)
    for rows in _chunks(resamples, n_clusters + n_blocks + 2 * _BLOCK):
        w = counts[rows].astype(np.float64)
        ends = w @ upto
        total = ends[:, -1]
        virtual = np.float64(q) * (total - 1)
        below = np.floor(virtual)
        a = _order_statistic(v, c, w, ends, below)
        b = _order_statistic(v, c, w, ends, np.minimum(below + 1, total - 1))
        out[rows] = np.where(total > 0, _lerp(a, b, virtual - below), np.nan)
    return out


def percentile_interval(
    point: float,
    samples: NDArray[Any],
    *,
    level: float,
    n: int,
    clusters: int,
    unit: str,
    what: str = "",
    strata: int = 1,
) -> Estimate:
    """A percentile interval from resampled statistics.

    With G clusters the plain percentile interval is about as short as a normal interval is against Student's t. The
    tail probability is therefore moved from the normal quantile to that of t with G - strata degrees of freedom
    (Hesterberg 2015, the expanded percentile interval; its other factor sqrt(G/(G-1)) is left to `cluster_counts`).
    At 12 clusters and 90 % this reads the 3.6 % and 96.4 % quantiles.

    Args:
        point: the statistic of the data. samples: of each resample, [B].
        level: two-sided. n: observations. clusters: independent units.
        what: goes before the method text, e.g. "p99".
        strata: strata that the clusters were drawn in.

    Returns:
        The estimate; `lo` and `hi` are None under MIN_CLUSTERS clusters, or where a resample gave no number.
    """
    s = np.asarray(samples, dtype=np.float64)
    freedom = max(1, clusters - strata)
    method = f"{what + ', ' if what else ''}cluster bootstrap, percentile widened to t({freedom}), B={len(s)}"

    def unbounded(why: str) -> Estimate:
        value = point if np.isfinite(point) else None
        return Estimate(value, None, None, level, n, clusters, unit, method, why)

    if not np.isfinite(point):
        return unbounded("the statistic is not a finite number")
    if clusters < MIN_CLUSTERS:
        return unbounded(f"{clusters} independent units; an interval needs at least {MIN_CLUSTERS}")
    undefined = int(np.count_nonzero(~np.isfinite(s)))
    if undefined or not len(s):
        return unbounded(f"{undefined} of {len(s)} resamples gave no number")
    tail = widened_tail(level, freedom)
    lo, hi = np.quantile(s, [tail, 1 - tail])
    return Estimate(float(point), float(lo), float(hi), level, n, clusters, unit, method)


def widened_tail(level: float, freedom: int) -> float:
    """Tail probability to read off the resamples so that `level` holds with few degrees of freedom."""
    from scipy.stats import norm, t

    return float(norm.cdf(t.ppf((1 - level) / 2, freedom)))


def excess_interval(
    point: float,
    arm_samples: NDArray[Any],
    floor_samples: Sequence[NDArray[Any]],
    floor_points: Sequence[float],
    *,
    level: float,
    n: int,
    clusters: int,
    unit: str,
    what: str = "",
    strata: int = 1,
) -> Estimate:
    """Interval of the excess: the candidate's statistic minus the largest of the floors' same statistic.

    The largest is taken inside each resample. The samples must come from one counts matrix, so that a resample with
    hard documents is hard for the floor too.

    Args:
        point: candidate against base. arm_samples: the same in each resample, [B].
        floor_samples, floor_points: each floor arm against base.

    Returns:
        The estimate; unknown if there is no floor arm, since no floor is not a floor of zero.

    Raises:
        ValueError: floors and points do not match.
    """
    if len(floor_samples) != len(floor_points):
        raise ValueError(f"{len(floor_samples)} floor samples but {len(floor_points)} floor points")
    if not floor_points:
        return Estimate.unknown(
            "no floor arm ran, so the excess over it is not known", level=level, n=n, clusters=clusters, unit=unit
        )
    floor = np.max(np.stack([np.asarray(f, dtype=np.float64) for f in floor_samples]), axis=0)
    name = f"{what + ' ' if what else ''}excess over the largest of {len(floor_points)} floor arms"
    return percentile_interval(
        point - max(floor_points),
        np.asarray(arm_samples, dtype=np.float64) - floor,
        level=level,
        n=n,
        clusters=clusters,
        unit=unit,
        what=name,
        strata=strata,
    )


def _checked(
    values: NDArray[Any], cluster_of: NDArray[Any], counts: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    v = np.asarray(values, dtype=np.float64)
    c = np.asarray(cluster_of, dtype=np.intp)
    if v.ndim != 1 or v.shape != c.shape or not len(v):
        raise ValueError(f"values {v.shape} and cluster_of {c.shape} are not two vectors of one length over 0")
    if counts.ndim != 2 or c.min() < 0 or c.max() >= counts.shape[1]:
        raise ValueError(f"counts {counts.shape} do not cover clusters {c.min()} to {c.max()}")
    if not np.isfinite(v).all():
        raise ValueError(f"{int(np.count_nonzero(~np.isfinite(v)))} of {len(v)} values are not finite")
    return v, c


def _chunks(resamples: int, width: int) -> list[slice]:
    step = max(1, _CHUNK_ELEMENTS // max(1, width))
    return [slice(i, min(i + step, resamples)) for i in range(0, resamples, step)]


def _order_statistic(
    v: NDArray[np.float64],
    c: NDArray[np.intp],
    w: NDArray[np.float64],
    ends: NDArray[np.float64],
    rank: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The value of 0-based `rank` [b] in each resample; counts are whole numbers in doubles, hence exact."""
    n, n_blocks = len(v), ends.shape[1]
    block = np.minimum((ends <= rank[:, None]).sum(axis=1), n_blocks - 1)
    rows = np.arange(len(w))
    before = np.where(block > 0, ends[rows, np.maximum(block - 1, 0)], 0.0)
    at = block[:, None] * _BLOCK + np.arange(_BLOCK)
    inside = np.where(at < n, w[rows[:, None], c[np.minimum(at, n - 1)]], 0.0)
    within = (before[:, None] + np.cumsum(inside, axis=1) <= rank[:, None]).sum(axis=1)
    picked: NDArray[np.float64] = v[np.minimum(block * _BLOCK + within, n - 1)]
    return picked


def _lerp(a: NDArray[np.float64], b: NDArray[np.float64], t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interpolation in numpy's own two branches, so that the last bit agrees with np.quantile."""
    d = b - a
    return np.where(t >= 0.5, b - d * (1 - t), a + d * t)
