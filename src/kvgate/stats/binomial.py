"""Rates: intervals for a count out of n, and what a count of zero cannot exclude."""

from __future__ import annotations

import math

from kvgate.core.estimate import Estimate, Test

#: Counts under which the normal approximation of a 2 x 2 table is not to be trusted.
_LEAST_EXPECTED = 5


def _z(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf((1 + level) / 2))


def _wilson_ends(successes: int, n: int, level: float) -> tuple[float, float]:
    z, p = _z(level), successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # The ends at 0 and n are 0 and 1 by definition; rounding must not make them -1e-17.
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def wilson(successes: int, n: int, level: float = 0.90) -> Estimate:
    """A rate with Wilson's score interval, which does not collapse at 0 or n of n.

    Args:
        successes: 0..n. n: independent trials.

    Raises:
        ValueError: a count outside 0..n.
    """
    if not 0 <= successes <= max(n, 0):
        raise ValueError(f"{successes} of {n} is not a count out of a number of trials")
    if n == 0:
        return Estimate.unknown("no trial", level=level, unit="1")
    lo, hi = _wilson_ends(successes, n, level)
    return Estimate(successes / n, lo, hi, level, n, n, "1", "Wilson score")


def unseen_rate(n: int, confidence: float = 0.95) -> float:
    """The largest true rate that shows nothing in n independent trials with probability 1 - confidence.

    12 prompts -> 0.2209: a 22 % break rate would go unseen one time in twenty. About 3/n, the rule of three.

    Raises:
        ValueError: n under 0 or confidence outside 0..1.
    """
    if n < 0 or not 0 < confidence < 1:
        raise ValueError(f"unseen_rate({n}, {confidence}): n is 0 or more, confidence between 0 and 1")
    if n == 0:
        return 1.0
    return float(1 - (1 - confidence) ** (1 / n))


def two_proportions(s1: int, n1: int, s2: int, n2: int) -> Test:
    """Unpaired comparison of two rates, two-sided. Only for results that come as totals.

    Pooled z; where a cell of the 2 x 2 table is expected to hold under 5 (Cochran 1954) its p value is Fisher's exact
    one, since the normal approximation finds differences there that are none: 5 of 5 against 2 of 5 is p = 0.17.

    Raises:
        ValueError: an empty side.
    """
    from scipy.stats import fisher_exact, norm

    if min(n1, n2) < 1:
        raise ValueError("two_proportions needs at least one trial on each side")
    pooled = (s1 + s2) / (n1 + n2)
    se = math.sqrt(pooled * (1 - pooled) * (1 / n1 + 1 / n2))
    z = (s1 / n1 - s2 / n2) / se if se > 0 else 0.0
    if min(n1, n2) * min(pooled, 1 - pooled) < _LEAST_EXPECTED:
        p = float(fisher_exact([[s1, n1 - s1], [s2, n2 - s2]]).pvalue)
        return Test(z, p, "two-sided", "unpaired, Fisher exact (too few for the normal approximation)", n1 + n2)
    return Test(z, float(2 * norm.sf(abs(z))), "two-sided", "unpaired z, pooled (normal approximation)", n1 + n2)


def difference_of_rates(s1: int, n1: int, s2: int, n2: int, level: float = 0.90) -> Estimate:
    """s1/n1 - s2/n2, unpaired, with Newcombe's hybrid score interval (1998, method 10)."""
    if min(n1, n2) < 1:
        return Estimate.unknown("no trial on one side", level=level, unit="1")
    p1, p2 = s1 / n1, s2 / n2
    (l1, u1), (l2, u2) = _wilson_ends(s1, n1, level), _wilson_ends(s2, n2, level)
    lo = p1 - p2 - math.hypot(p1 - l1, u2 - p2)
    hi = p1 - p2 + math.hypot(u1 - p1, p2 - l2)
    return Estimate(p1 - p2, lo, hi, level, n1 + n2, min(n1, n2), "1", "Newcombe hybrid score, unpaired")
