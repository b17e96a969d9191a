"""Cluster resampling: how often each document, template or prompt is drawn in each bootstrap resample.

The unit of inference is the cluster. Positions of one document, and questions asked behind one haystack, are
correlated; drawing them one by one would claim precision that is not there. One counts matrix is made per run and
shared by all arms: that alone makes every comparison paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Under this many clusters no interval is given. With 7 or fewer the resamples are few and alike, and the 5 %
#: quantile of their statistic rests on one or two of the clusters.
MIN_CLUSTERS = 8

#: Strata up to this size are drawn one short and scaled up. Larger ones have under 6 % of the standard error to gain.
_RESCALED_UP_TO = 8


def cluster_counts(strata: Sequence[str], rng: np.random.Generator, resamples: int) -> NDArray[np.int32]:
    """How often each cluster is drawn in each stratified resample.

    Clusters are drawn with replacement within their stratum. Drawing m of m understates the variance by (m-1)/m:
    nothing much at m = 50, but half of it at m = 2. A stratum of 2 to 8 clusters is therefore drawn m-1 times, each
    draw counting m/(m-1) times (Rao and Wu 1988, with replacement). To keep the counts whole, all of them are
    multiplied by the least common multiple of the (m-1); a common factor changes no mean, and moves a quantile by
    less than the spacing of the observations.

    A stratum of one cluster always yields that cluster. It then adds nothing to the width of an interval, as if its
    result were known without error. Give related categories a common stratum rather than a stratum each.

    Args:
        strata: the stratum of each cluster, [clusters].
        rng: source of the draws.
        resamples: number of resamples.

    Returns:
        Counts, [resamples, clusters]. Each row of a stratum of m clusters sums to m times the common multiple, which
        is 1 where no stratum has 3 to 8 clusters.

    Raises:
        ValueError: no cluster, or fewer than one resample.
    """
    if not strata or resamples < 1:
        raise ValueError(f"{len(strata)} clusters and {resamples} resamples: at least one of each is needed")
    names, stratum_of = np.unique(np.asarray(strata, dtype=object).astype(str), return_inverse=True)
    sizes = np.bincount(stratum_of, minlength=len(names))
    common = math.lcm(*(int(m) - 1 for m in sizes if 2 <= m <= _RESCALED_UP_TO))
    counts = np.empty((resamples, len(strata)), dtype=np.int32)
    for s, size in enumerate(sizes):
        m = int(size)
        draws = m - 1 if 2 <= m <= _RESCALED_UP_TO else m
        # Whole by construction: (m - 1) divides `common` where the draws fall one short.
        weight = common * m // draws
        counts[:, stratum_of == s] = rng.multinomial(draws, np.full(m, 1 / m), size=resamples) * weight
    return counts
