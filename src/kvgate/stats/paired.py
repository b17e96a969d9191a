"""Paired comparisons: the same cases on base and candidate. Unpaired totals are in `binomial`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvgate.core.estimate import Estimate, Test
from kvgate.stats.bootstrap import percentile_interval, weighted_mean
from kvgate.stats.cluster import MIN_CLUSTERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A ratio to a base under this mean is not formed: at a score of 0.1 most of what is left is guessing.
MIN_BASE_MEAN = 0.10
#: Nor to a base that is not this many standard errors from zero: the ratio's interval would be unbounded in truth.
MIN_BASE_SE = 3.0


def mcnemar(breaks: int, repairs: int, alternative: str = "greater", *, could_break: int | None = None) -> Test:
    """Exact McNemar test: are breaks (base right, candidate wrong) more than repairs (the reverse)?

    Under the null each discordant pair is a fair coin. No discordant pair gives p = 1.

    Args:
        alternative: "greater" (more breaks), "less" or "two-sided".
        could_break: cases that the base has right; all of them broken is the worst that could happen, and gives
            `best_p` of "greater".

    Raises:
        ValueError: a negative count or another alternative.
    """
    from scipy.stats import binomtest

    if min(breaks, repairs) < 0 or alternative not in ("greater", "less", "two-sided"):
        raise ValueError(f"mcnemar({breaks}, {repairs}, {alternative!r}): counts are 0 or more; greater|less|two-sided")
    n = breaks + repairs
    p = float(binomtest(breaks, n, 0.5, alternative=alternative).pvalue) if n else 1.0
    best = 0.5**could_break if could_break is not None and alternative == "greater" else None
    return Test(float(breaks - repairs), p, alternative, "McNemar, exact binomial on discordant pairs", n, best)


def paired_difference(
    base: NDArray[Any],
    candidate: NDArray[Any],
    cluster_of: NDArray[Any],
    counts: NDArray[Any],
    *,
    level: float = 0.90,
    unit: str = "1",
) -> Estimate:
    """mean(candidate) - mean(base) of per-case scores in 0..1, with a cluster bootstrap.

    Where every resample gives the same difference (typically: no case changed) the bootstrap interval has no width,
    which says nothing about the cases not asked. The bound is then the rate of change that G clusters would miss,
    1 - alpha**(1/G) with alpha = (1 - level)/2: the exact form of the rule of three.

    Args:
        base, candidate: scores of the same cases in the same order, [n]; repeats are averaged before.
        cluster_of: [n]. counts: [B, C].

    Raises:
        ValueError: shapes do not fit.
    """
    b, c = _pair(base, candidate)
    point = float(np.mean(c - b))
    samples = weighted_mean(c - b, cluster_of, counts)
    clusters = len(np.unique(cluster_of))
    e = percentile_interval(point, samples, level=level, n=len(b), clusters=clusters, unit=unit, what="difference")
    if not _flat(e, samples):
        return e
    r = _missed(level, clusters)
    return _replace_ends(e, (1 - r) * point - r, (1 - r) * point + r)


def paired_ratio(
    base: NDArray[Any],
    candidate: NDArray[Any],
    cluster_of: NDArray[Any],
    counts: NDArray[Any],
    *,
    level: float = 0.90,
) -> Estimate:
    """mean(candidate) / mean(base) of per-case scores in 0..1, with a cluster bootstrap.

    An interval of no width is replaced as in `paired_difference`: on the share r of cases that G clusters would miss,
    the ratio is at its worst where the base scores 1 and the candidate 0, at its best the other way round. A flawless
    run of 59 clusters therefore has 0.95 as its lower end at 90 %.

    Returns:
        The ratio; unknown where the base mean is under 0.10 or under 3 standard errors: then use the difference.
    """
    b, c = _pair(base, candidate)
    clusters = len(np.unique(cluster_of))
    mean, base_samples = float(np.mean(b)), weighted_mean(b, cluster_of, counts)
    se = float(np.std(base_samples))

    def unknown(why: str) -> Estimate:
        return Estimate.unknown(why, level=level, n=len(b), clusters=clusters, unit="ratio")

    if mean < MIN_BASE_MEAN:
        return unknown(f"baseline mean {mean:.3g} is under {MIN_BASE_MEAN}: a ratio to it is not defined")
    if clusters >= MIN_CLUSTERS and mean < MIN_BASE_SE * se:
        return unknown(f"baseline mean {mean:.3g} is under {MIN_BASE_SE:g} standard errors ({se:.3g}) from 0")
    arm_samples = weighted_mean(c, cluster_of, counts)
    with np.errstate(divide="ignore", invalid="ignore"):
        samples = arm_samples / base_samples
    point = float(np.mean(c)) / mean
    e = percentile_interval(point, samples, level=level, n=len(b), clusters=clusters, unit="ratio", what="ratio")
    if not _flat(e, samples):
        return e
    r, arm_mean = _missed(level, clusters), float(np.mean(c))
    seen_base, seen_arm = (1 - r) * mean, (1 - r) * arm_mean
    return _replace_ends(e, seen_arm / (seen_base + r), (seen_arm + r) / seen_base)


def _pair(base: NDArray[Any], candidate: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    b, c = np.asarray(base, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if b.ndim != 1 or b.shape != c.shape:
        raise ValueError(f"base {b.shape} and candidate {c.shape} are not the same cases")
    return b, c


def _flat(e: Estimate, samples: NDArray[np.float64]) -> bool:
    # 1e-12: sums of different order differ in the last bits where every resample is the same number.
    return e.lo is not None and float(np.ptp(samples)) <= 1e-12 * max(1.0, abs(float(samples[0])))


def _missed(level: float, clusters: int) -> float:
    return float(1 - ((1 - level) / 2) ** (1 / clusters))


def _replace_ends(e: Estimate, lo: float, hi: float) -> Estimate:
    method = f"exact binomial bound on unseen change, {e.clusters} clusters all alike (rule of three)"
    return Estimate(e.value, lo, hi, e.level, e.n, e.clusters, e.unit, method)
