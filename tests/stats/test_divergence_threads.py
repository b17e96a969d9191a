"""Scoring a position takes one thread: BLAS's own threads wait in loops for cores that others use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kvgate.stats import divergence

#: OpenBLAS splits products of more entries than this among threads (interface/dot.c of its x86-64 kernels).
BLAS_ONE_THREAD = 10_000


@pytest.mark.parametrize("vocab", [49_152, 8192, 8193, 100])
def test_no_product_is_long_enough_for_several_threads(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the vocabulary, BLAS is given pieces that it does on one thread; the divergence is the definition's."""
    lengths: list[int] = []
    dot = np.dot

    def watched(a: Any, b: Any) -> Any:
        lengths.append(len(a))
        return dot(a, b)

    rng = np.random.default_rng(1)
    base = rng.normal(0, 3, (2, vocab)).astype(np.float32)
    arm = (base + rng.normal(0, 0.05, base.shape)).astype(np.float32)
    monkeypatch.setattr(np, "dot", watched)

    scored = divergence.score_rows(base, arm, np.zeros(2, dtype=np.int64))

    assert lengths
    assert max(lengths) <= BLAS_ONE_THREAD
    for i in range(2):
        b, a = base[i].astype(np.float64), arm[i].astype(np.float64)
        p, lp = np.exp(b - b.max()), b - b.max() - math.log(math.fsum(np.exp(b - b.max())))
        lq = a - a.max() - math.log(math.fsum(np.exp(a - a.max())))
        assert scored["kl"][i] == pytest.approx(math.fsum(p / math.fsum(p) * (lp - lq)), rel=2**-20)
