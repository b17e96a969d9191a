"""How much more would decide: the number an INCONCLUSIVE names, or why none would."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvgate.core.estimate import Estimate
from kvgate.stats.cluster import MIN_CLUSTERS

#: More than this is not a plan.
_MOST = 1_000_000


class Decide(NamedTuple):
    """Independent units that would decide; None with the reason where none would."""

    n: int | None
    why: str


def _z_sum(power: float, alpha: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(1 - alpha) + norm.ppf(power))


def clusters_to_decide(estimate: Estimate, threshold: float, *, power: float = 0.8, alpha: float = 0.05) -> Decide:
    """Clusters at which the estimate, if true, would be told from the threshold with the given power.

    n = G ((z_alpha + z_power) SE / |value - threshold|)^2, with the SE from the half width that faces the threshold,
    divided by the normal quantile. Intervals widened for few clusters make it a little too large, never too small.

    Args:
        estimate: with its interval. threshold: what it is held against; either side of it.
    """
    from scipy.stats import norm

    value, lo, hi = estimate.value, estimate.lo, estimate.hi
    if value is None:
        return Decide(None, f"none would: the number is not known ({estimate.why})")
    gap = abs(value - threshold)
    facing = (hi - value if value <= threshold else value - lo) if lo is not None and hi is not None else None
    if facing is None:
        need = f"; at least {MIN_CLUSTERS} give an interval" if estimate.clusters < MIN_CLUSTERS else ""
        return Decide(None, f"unknown while the interval is unbounded{need}")
    se = max(facing, 0.0) / float(norm.ppf((1 + estimate.level) / 2))
    sd = se * math.sqrt(estimate.clusters)
    if gap == 0:
        return Decide(None, "none would: the estimate sits at the threshold")
    n = (_z_sum(power, alpha) * sd / gap) ** 2
    if n > _MOST:
        return Decide(None, f"none would: the estimate sits at the threshold (over {_MOST:,} units needed)")
    return Decide(max(MIN_CLUSTERS, math.ceil(n)), f"at {power:.0%} power if the estimate is true")


def mcnemar_power(n: int, break_rate: float, repair_rate: float, *, alpha: float = 0.05) -> float:
    """Exact power of the one-sided exact McNemar test with n prompts, per-prompt rates of breaks and repairs."""
    import numpy as np
    from scipy.stats import binom

    discordant = break_rate + repair_rate
    if n < 1 or discordant <= 0:
        return 0.0
    low, high = binom.ppf(1e-12, n, discordant), binom.ppf(1 - 1e-12, n, discordant)
    d = np.arange(int(low), int(high) + 1)
    # Smallest count whose upper tail under a fair coin is at most alpha; d + 1, with no chance, where there is none.
    critical = binom.isf(alpha, d, 0.5) + 1
    power = binom.pmf(d, n, discordant) * binom.sf(critical - 1, d, break_rate / discordant)
    return float(np.sum(power))


def prompts_to_decide(breaks: int, repairs: int, n: int, *, power: float = 0.8, alpha: float = 0.05) -> Decide:
    """Prompts at which these rates, if true, would make one-sided exact McNemar significant with the given power.

    Args:
        breaks, repairs: discordant prompts seen. n: prompts asked.

    Raises:
        ValueError: more discordant prompts than prompts.
    """
    if min(breaks, repairs) < 0 or breaks + repairs > n:
        raise ValueError(f"{breaks} breaks and {repairs} repairs in {n} prompts")
    if breaks <= repairs:
        return Decide(None, f"none would: {breaks} breaks do not exceed {repairs} repairs")
    b, r = breaks / n, repairs / n

    def enough(m: int) -> bool:
        return mcnemar_power(m, b, r, alpha=alpha) >= power

    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST:
            return Decide(None, f"none would: breaks hardly exceed repairs (over {_MOST:,} prompts needed)")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return Decide(high, f"at {power:.0%} power if {breaks} breaks and {repairs} repairs in {n} are the true rates")


def unpaired_items(p1: float, p2: float, *, power: float = 0.8, alpha: float = 0.05) -> Decide:
    """Items per arm to tell two rates apart without pairing, two-sided at alpha (normal approximation).

    Never fewer than those at which all of one arm against none of the other has an exact p value of at most alpha.
    Paired designs need fewer. For results that come as totals.
    """
    if p1 == p2:
        return Decide(None, "none would: the rates are equal")
    z = _z_sum(power, alpha / 2)
    least = next(m for m in range(1, 1000) if 2 / math.comb(2 * m, m) <= alpha)
    n = max(least, math.ceil(z * z * (p1 * (1 - p1) + p2 * (1 - p2)) / (p1 - p2) ** 2))
    if n > _MOST:
        return Decide(None, f"none would: over {_MOST:,} items an arm needed")
    return Decide(n, f"items an arm at {power:.0%} power, unpaired")
