"""KL and its companions against the definition, evaluated in 80-bit floats and by scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, rel_entr

from kvgate.core.errors import BadAnswer
from kvgate.core.observation import POSITION_FIELDS
from kvgate.stats import divergence
from kvgate.stats.divergence import BaseRows, perplexity, perplexity_ratio, score_arms, score_rows

#: Rounding of the float32 probabilities and of the float32 column is 2**-24 each, and each enters a second time through
#: the mean of d: 4 * 2**-24.
REL = 4 * 2.0**-24
#: Two roundings per term of a mean of terms near 0; see the module's docstring.
ABS = 2.0**-50


def rows(seed: int, n: int = 6, vocab: int = 700, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Peaked base rows, an arm `noise` away, and targets."""
    rng = np.random.default_rng(seed)
    base = rng.normal(0, 3, (n, vocab))
    base[np.arange(n), rng.integers(0, vocab, n)] += rng.uniform(0, 15, n)
    arm = base + rng.normal(0, noise, base.shape)
    return base.astype(np.float32), arm.astype(np.float32), rng.integers(0, vocab, n)


def exact_log_softmax(x: np.ndarray) -> np.ndarray:
    """In 80-bit floats (64 bits of mantissa on x86)."""
    x = x.astype(np.longdouble)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def exact_kl(base: np.ndarray, arm: np.ndarray) -> np.ndarray:
    p, q = exact_log_softmax(base), exact_log_softmax(arm)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=1), dtype=np.float64)


def assert_kl(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_less(np.abs(got.astype(np.float64) - want), REL * want + ABS)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 0.3, 3.0, 30.0])
def test_kl_is_the_definition(noise: float) -> None:
    """KL equals sum p (ln p - ln q) in extended precision, from nearly equal rows to rows far apart."""
    base, arm, targets = rows(1, noise=noise)
    assert_kl(score_rows(base, arm, targets)["kl"], exact_kl(base, arm))


def test_kl_agrees_with_scipy() -> None:
    """scipy's rel_entr of the two softmaxes gives the same sums, to its own rounding of 1e-13."""
    base, arm, targets = rows(2, noise=0.5)
    p, q = (np.exp(log_softmax(x.astype(np.float64), axis=1)) for x in (base, arm))
    np.testing.assert_allclose(score_rows(base, arm, targets)["kl"], rel_entr(p, q).sum(axis=1), rtol=REL, atol=1e-13)


def renormalised_top_k(base: np.ndarray, arm: np.ndarray, k: int = 20) -> np.ndarray:
    keep = np.argsort(-base, axis=1)[:, :k]
    return exact_kl(np.take_along_axis(base, keep, 1), np.take_along_axis(arm, keep, 1))


@pytest.mark.parametrize(
    "mutant",
    [lambda b, a: exact_kl(a, b), renormalised_top_k, lambda b, a: exact_kl(b, a) / np.log(2)],
    ids=["KL(arm||base)", "renormalised top-k", "bits instead of nats"],
)
def test_the_tolerance_notices_another_divergence(mutant) -> None:
    """A reversed, truncated or rescaled divergence does not pass the comparison used above."""
    base, arm, _ = rows(3, noise=0.3)
    with pytest.raises(AssertionError):
        assert_kl(mutant(base, arm).astype(np.float32), exact_kl(base, arm))


def test_equal_rows_give_exactly_zero() -> None:
    """Identical logits, on whatever scale, give KL 0.0 and equal log-probabilities, bit for bit."""
    for scale in (1e-3, 1.0, 1e3, 1e30):
        base = (rows(4)[0] * scale).astype(np.float32)
        out = score_rows(base, base.copy(), rows(4)[2])
        assert (out["kl"] == 0.0).all()
        assert (out["lp"] == out["base_lp"]).all()
        assert (out["base_top1_rank"] == 0).all()


def test_one_changed_bit_is_not_zero() -> None:
    """The smallest change of one likely token's logit shows as a KL above 0: zero means the same bits."""
    base, _, targets = rows(5)
    arm = base.copy()
    second = np.argsort(-base, axis=1)[:, 1]
    at = (np.arange(len(base)), second)
    arm[at] = np.nextafter(arm[at], np.float32(100))
    flat = score_rows(np.zeros((1, 8), np.float32), np.array([[1e-6] + [0.0] * 7], np.float32), np.array([0]))
    assert flat["kl"][0] > 0
    assert (score_rows(base, arm, targets)["kl"] >= 0).all()


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), noise=st.floats(0, 100), shift=st.floats(-100, 100), scale=st.floats(0.01, 30))
def test_kl_is_never_negative_nor_a_surprise(seed: int, noise: float, shift: float, scale: float) -> None:
    """For any noise, shift and scale KL is finite, at least 0 and the definition's."""
    rng = np.random.default_rng(seed)
    base = (rng.normal(0, scale, (2, 50))).astype(np.float32)
    arm = (base + rng.standard_t(2, base.shape) * noise + shift).astype(np.float32)
    got, want = score_rows(base, arm, np.array([0, 49]))["kl"], exact_kl(base, arm)
    assert (got >= 0).all()
    # The direct form subtracts log-probabilities as large as the logits: eps of those, times a few.
    tolerance = REL * want + 2.0**-50 * (1 + np.abs(base).max() + np.abs(arm).max())
    np.testing.assert_array_less(np.abs(got - want), tolerance)


def test_mass_moved_to_an_impossible_token() -> None:
    """An arm that puts everything on a token the base gives e**-95 has the right, finite KL."""
    base = np.full((1, 64), -95.0, np.float32)
    base[0, 3] = 0.0
    arm = np.full((1, 64), -95.0, np.float32)
    arm[0, 9] = 0.0
    out = score_rows(base, arm, np.array([9]))
    np.testing.assert_allclose(out["kl"], exact_kl(base, arm), rtol=REL)
    assert out["top1"][0] == 9
    assert out["lp"][0] == pytest.approx(0, abs=1e-6)


def test_log_probabilities_entropy_margin() -> None:
    """The other columns equal their float64 definitions within the float32 they are stored in."""
    base, arm, targets = rows(6, noise=0.5)
    out = score_rows(base, arm, targets)
    lp_b, lp_a = (log_softmax(x.astype(np.float64), axis=1) for x in (base, arm))
    at = np.arange(len(base))
    p = np.exp(lp_b)
    ordered = np.sort(p, axis=1)
    np.testing.assert_allclose(out["base_lp"], lp_b[at, targets], rtol=2**-23, atol=2**-23)
    np.testing.assert_allclose(out["lp"], lp_a[at, targets], rtol=2**-23, atol=2**-23)
    np.testing.assert_allclose(out["base_entropy"], -(p * lp_b).sum(1), rtol=2**-23)
    np.testing.assert_allclose(out["base_margin"], ordered[:, -1] - ordered[:, -2], rtol=2**-23, atol=2**-50)
    assert (out["covered"] == 1).all()
    assert (out["base_top1"] == base.argmax(1)).all()
    assert (out["top1"] == arm.argmax(1)).all()


def test_ranks_and_ties() -> None:
    """The lowest id wins a tie; the rank counts tokens that come before the base's top-1 in the arm's order."""
    base = np.array([[0, 5, 5, 1], [9, 0, 0, 0], [0, 0, 9, 0]], np.float32)
    arm = np.array([[0, 5, 5, 5], [1, 3, 2, 1], [4, 4, 4, 4]], np.float32)
    out = score_rows(base, arm, np.array([0, 0, 0]))
    assert out["base_top1"].tolist() == [1, 0, 2]
    assert out["top1"].tolist() == [1, 1, 0]
    assert out["base_top1_rank"].tolist() == [0, 2, 2]
    assert out["base_margin"][0] == 0


def test_rank_saturates() -> None:
    """A rank that does not fit 16 bits is stored as 65535, not wrapped."""
    arm = np.arange(70_000, dtype=np.float32)[None, :]
    assert score_rows(arm[:, ::-1].copy(), arm, np.array([5]))["base_top1_rank"].tolist() == [65_535]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 17])
@pytest.mark.parametrize("who", ["base", "arm", "both"])
def test_degenerate_logits_are_no_number(bad: float, column: int, who: str) -> None:
    """One NaN or infinity in either row raises BadAnswer, wherever it is."""
    base, arm, targets = rows(7, vocab=64)
    if who in ("base", "both"):
        base[3, column] = bad
    if who in ("arm", "both"):
        arm[3, column] = bad
    with pytest.raises(BadAnswer, match="degenerate"):
        score_rows(base, arm, targets)


def test_blocks_do_not_change_anything() -> None:
    """Scoring several arms in small blocks gives the same bits as one arm at a time."""
    base, arm, targets = rows(8, n=2 * divergence.BLOCK_ROWS + 3, vocab=90)
    other = rows(9, n=len(base), vocab=90)[1]
    together = score_arms(base, {"a": arm, "b": other}, targets)
    shared = BaseRows(base)
    for name, logits in (("a", arm), ("b", other)):
        assert together[name].dtype == np.dtype(POSITION_FIELDS)
        assert together[name].tobytes() == score_rows(shared, logits, targets).tobytes()
    assert len(score_arms(base[:0], {"a": arm[:0]}, targets[:0])["a"]) == 0


def test_rows_that_do_not_fit_are_refused() -> None:
    """Float64 rows, other shapes and targets outside the vocabulary are programming errors."""
    base, arm, targets = rows(10, vocab=32)
    for bad in (
        (base.astype(np.float64), arm, targets),
        (base, arm[:, :-1], targets),
        (base, arm, targets[:-1]),
        (base, arm, targets + 32),
        (base, arm, targets - 32),
    ):
        with pytest.raises(ValueError, match=r"expected float32|do not match|outside the vocabulary"):
            score_rows(*bad)


def test_perplexities() -> None:
    """Perplexity is exp(-mean lp), and the ratio of two perplexities is exp of the mean loss."""
    lp, base_lp = np.log([0.5, 0.25]), np.log([0.5, 0.5])
    assert perplexity(lp.mean()) == pytest.approx(8**0.5)
    assert perplexity_ratio((base_lp - lp).mean()) == pytest.approx(perplexity(lp.mean()) / perplexity(base_lp.mean()))
