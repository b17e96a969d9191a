"""How far two next-token distributions are apart where only their tops are known.

The tokens that both tops name are one bucket each; all others share one bucket. KL between the bucketed distributions
is a lower bound of the true KL (data processing inequality: merging outcomes never adds divergence), and grows to it
with k. `covered` is the base's mass in single buckets: what lies outside is only seen as one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvgate.core.engine import TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.core.observation import POSITION_FIELDS

if TYPE_CHECKING:
    from kvgate.core.observation import Positions

#: A server's softmax in float32 was seen to sum to 1.00018; a rest below this is rounding, not mass.
MASS_ERROR = 1e-3
#: Floor of a rest bucket, so that a rest that rounds to nothing gives a finite number.
LEAST_REST = 1e-9
#: Rank of a token that is not in the list at all.
NOT_LISTED = 65_535


def compare_rows(base: Sequence[TopKRow], arm: Sequence[TopKRow], targets: Sequence[int]) -> Positions:
    """Positions [n] of dtype POSITION_FIELDS from the tops of both.

    A target that a top does not name has log-probability NaN, the base's entropy is not known (0), and `covered` tells
    how much of the base stood in buckets of its own.

    Raises:
        BadAnswer: no token in common, or mass over 1.
        ValueError: other lengths.
    """
    if not len(base) == len(arm) == len(targets):
        raise ValueError(f"{len(base)} rows of the base, {len(arm)} of the arm, {len(targets)} targets")
    out = np.zeros(len(base), dtype=POSITION_FIELDS)
    for i, (b, a, target) in enumerate(zip(base, arm, targets, strict=True)):
        p, q = dict(zip(b.ids, b.logprobs, strict=True)), dict(zip(a.ids, a.logprobs, strict=True))
        out["kl"][i], out["covered"][i] = bucket_kl(p, q)
        ranked = sorted(p.values(), reverse=True)
        out["base_margin"][i] = math.exp(ranked[0]) - (math.exp(ranked[1]) if len(ranked) > 1 else 0.0)
        out["base_lp"][i], out["lp"][i] = p.get(target, math.nan), q.get(target, math.nan)
        top, other = max(p, key=lambda t: p[t]), max(q, key=lambda t: q[t])
        out["base_top1"][i], out["top1"][i] = top, other
        better = sum(x > q[top] for x in q.values()) if top in q else NOT_LISTED
        out["base_top1_rank"][i] = better if top != other else 0
    return out


def bucket_kl(p: dict[int, float], q: dict[int, float]) -> tuple[float, float]:
    """(KL in nat over the buckets, base mass in buckets of their own) from log-probabilities by token id.

    Raises:
        BadAnswer: no token in common, or mass over 1.
    """
    common = [t for t in p if t in q]
    if not common:
        raise BadAnswer("the two tops have no token in common", kind="degenerate_logprobs")
    listed_p = math.fsum(math.exp(p[t]) for t in common)
    listed_q = math.fsum(math.exp(q[t]) for t in common)
    if max(listed_p, listed_q) > 1 + MASS_ERROR:
        raise BadAnswer(f"a top sums to {max(listed_p, listed_q):.4g}", kind="degenerate_logprobs")
    rest_p, rest_q = max(1 - listed_p, 0.0), max(1 - listed_q, LEAST_REST)
    kl = math.fsum(math.exp(p[t]) * (p[t] - q[t]) for t in common)
    if rest_p > 0:
        kl += rest_p * (math.log(rest_p) - math.log(rest_q))
    return max(kl, 0.0), min(listed_p, 1.0)
