"""Divergence between tops of distributions: definitions by brute force, and that it is a lower bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.engine import TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.stats.topk import bucket_kl, compare_rows


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()


def top(lp: np.ndarray, k: int) -> TopKRow:
    order = np.argsort(-lp)[:k]
    return TopKRow(tuple(int(i) for i in order), tuple(float(lp[i]) for i in order))


def full_kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((np.exp(p) * (p - q)).sum())


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.floats(0.0, 3.0))
def test_it_is_a_lower_bound_that_grows_with_k(seed: int, k: int, noise: float) -> None:
    """Never above the divergence over the whole vocabulary; equal to it when the tops hold all of it."""
    rng = np.random.default_rng(seed)
    p = log_softmax(rng.normal(0, 3, 40))
    q = log_softmax(p + rng.normal(0, noise, 40))
    # The same tokens on both sides, so that a longer list is a finer partition.
    order = np.argsort(-p)

    def bound(n: int) -> float:
        chosen = order[:n]
        return bucket_kl({int(i): p[i] for i in chosen}, {int(i): q[i] for i in chosen})[0]

    true = full_kl(p, q)
    assert bound(k) <= true + 1e-9
    assert bound(k) <= bound(40) + 1e-9
    assert bound(40) == pytest.approx(true, abs=1e-9)


def test_the_buckets_by_hand() -> None:
    """Two tokens in common, everything else in one bucket, also what only one side lists."""
    p = {1: math.log(0.6), 2: math.log(0.2), 3: math.log(0.1)}
    q = {1: math.log(0.5), 2: math.log(0.3), 4: math.log(0.15)}
    want = 0.6 * math.log(0.6 / 0.5) + 0.2 * math.log(0.2 / 0.3) + 0.2 * math.log(0.2 / 0.2)

    kl, covered = bucket_kl(p, q)

    assert kl == pytest.approx(want, rel=1e-12)
    assert covered == pytest.approx(0.8, rel=1e-12)


def test_equal_tops_are_exactly_zero() -> None:
    """The same numbers give 0.0, as with the whole vocabulary."""
    row = top(log_softmax(np.arange(10.0)), 4)

    got = compare_rows([row], [row], [9])

    assert got["kl"][0] == 0.0 and got["top1"][0] == got["base_top1"][0] == 9
    assert got["base_lp"][0] == got["lp"][0] == np.float32(row.logprobs[0])


def test_columns_of_a_flip() -> None:
    """Margin, both argmaxes, the rank of the base's in the arm, NaN where a target is not listed."""
    base = TopKRow((7, 8), (math.log(0.7), math.log(0.2)))
    arm = TopKRow((8, 7), (math.log(0.5), math.log(0.4)))
    unseen = TopKRow((8, 9), (math.log(0.5), math.log(0.4)))

    got = compare_rows([base, base], [arm, unseen], [8, 3])

    assert got["base_margin"][0] == pytest.approx(0.5, abs=1e-6)
    assert (got["base_top1"][0], got["top1"][0], got["base_top1_rank"][0]) == (7, 8, 1)
    assert got["base_top1_rank"][1] == 65_535
    assert np.isnan(got["base_lp"][1]) and np.isnan(got["lp"][1])


def test_rests_that_round_to_nothing() -> None:
    """A mass a little over 1 is 1; a rest of the arm below it is as small as a rest can be; a KL is never negative."""
    full = {1: math.log(0.6), 2: math.log(0.4005)}
    part = {1: math.log(0.5), 2: math.log(0.4)}

    assert bucket_kl(full, full) == (0.0, 1.0)
    assert bucket_kl(full, {1: math.log(0.6005), 2: math.log(0.4)})[0] >= 0.0
    want = 0.5 * math.log(0.5 / 0.6) + 0.4 * math.log(0.4 / 0.4005) + 0.1 * math.log(0.1 / 1e-9)
    assert bucket_kl(part, full)[0] == pytest.approx(want, rel=1e-9)
    slight = {1: full[1] + 2e-4, 2: full[2] + 2e-4}
    assert bucket_kl(full, slight)[0] == 0.0


@pytest.mark.parametrize(
    ("p", "q"), [({1: -0.1}, {2: -0.1}), ({1: math.log(0.9), 2: math.log(0.3)}, {1: -1.0, 2: -1.0})]
)
def test_nonsense_is_refused(p: dict[int, float], q: dict[int, float]) -> None:
    """No token in common, or more mass than there is."""
    with pytest.raises(BadAnswer):
        bucket_kl(p, q)


def test_rows_must_match() -> None:
    """Lengths that differ are a programming error."""
    row = TopKRow((1,), (-0.1,))
    with pytest.raises(ValueError, match="1 rows of the base, 2 of the arm"):
        compare_rows([row], [row, row], [1])
