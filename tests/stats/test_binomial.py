"""Rates, what a count of zero cannot exclude, and unpaired totals (real cases eval-03 and eval-04)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm

from kvgate.core.verdict import Status
from kvgate.stats.binomial import difference_of_rates, two_proportions, unseen_rate, wilson
from kvgate.stats.noninferiority import judge
from kvgate.stats.paired import mcnemar
from kvgate.stats.power import unpaired_items


@given(st.integers(1, 3000), st.data(), st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_wilson_is_scipys(n: int, data: st.DataObject, level: float) -> None:
    """The interval is scipy's Wilson interval without continuity correction."""
    k = data.draw(st.integers(0, n))
    theirs = binomtest(k, n).proportion_ci(level, method="wilson")

    mine = wilson(k, n, level)

    np.testing.assert_allclose([mine.lo, mine.hi], [theirs.low, theirs.high], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("k", "n"), [(0, 12), (3, 12), (12, 12), (1, 1319)])
def test_wilson_ends_solve_their_equation(k: int, n: int) -> None:
    """At each end the score z of the observed rate is the normal quantile; 0 and 1 are exact."""
    e, z = wilson(k, n, 0.90), norm.ppf(0.95)

    for end in (e.lo, e.hi):
        if 0 < end < 1:
            assert abs(k / n - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-12)
    assert (e.lo == 0) == (k == 0) and (e.hi == 1) == (k == n)


def test_wilson_of_nothing_is_unknown() -> None:
    """No trial gives no rate; a count over n raises."""
    assert wilson(0, 0).value is None
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


@pytest.mark.parametrize(
    ("n", "rate"), [(12, 0.2209), (24, 0.1173), (200, 0.0149), (300, 0.00994), (1000, 0.00299), (0, 1.0)]
)
def test_unseen_rate_reference_points(n: int, rate: float) -> None:
    """12 prompts: a 22 % break rate would go unseen; 200 prompts bound it at 1.5 %."""
    assert unseen_rate(n) == pytest.approx(rate, abs=6e-5)


@given(st.integers(1, 10_000), st.floats(0.5, 0.999))
def test_unseen_rate_is_the_rate_that_shows_nothing(n: int, confidence: float) -> None:
    """At that rate n trials are all clean with probability 1 - confidence."""
    assert binom.pmf(0, n, unseen_rate(n, confidence)) == pytest.approx(1 - confidence, rel=1e-6)


def test_newcombe_reference_point() -> None:
    """56/70 against 48/80: 0.2000, 95 % interval 0.0524 to 0.3339, as printed for method 10 in Newcombe (1998)."""
    e = difference_of_rates(56, 70, 48, 80, 0.95)

    assert (round(e.value, 4), round(e.lo, 4), round(e.hi, 4)) == (0.2, 0.0524, 0.3339)
    assert difference_of_rates(0, 0, 1, 2).value is None


HUMANEVAL = {"en": (68.293, 65.854, 67.683), "cn": (59.146, 59.146, 59.756)}


def test_eval_03_humaneval_deltas_are_noise() -> None:
    """HumanEval, 164 items: no pair differs, none is shown to be as good, and about 5,700 items an arm would tell.

    Percentages map to whole counts. The two-sided unpaired design for 112 against 108 needs z^2 (pq + pq) / d^2 =
    5,825 items an arm; the case says "about 5,700", 2.2 % away.
    """
    counts = {k: [round(x * 164 / 100) for x in v] for k, v in HUMANEVAL.items()}
    assert counts == {"en": [112, 108, 111], "cn": [97, 97, 98]}
    z = [two_proportions(112, 164, c, 164).statistic for c in (108, 111)]

    assert [round(x, 2) for x in z] == [0.47, 0.12]
    for base, *candidates in counts.values():
        for c in candidates:
            assert two_proportions(base, 164, c, 164).p > 0.5
            assert judge(difference_of_rates(c, 164, base, 164), -0.025).status is Status.INCONCLUSIVE
    needed = unpaired_items(112 / 164, 108 / 164)
    assert needed.n == pytest.approx(5700, rel=0.03)


def test_eval_04_same_server_twice_is_a_tie() -> None:
    """The A/A control: 91 against 86 discordant of 1,319 gives p = 0.764 and no FAIL; 5 of 1,319 is the 0.38 points.

    Byte-identical 22.7 % in A/A: a count of changed texts would call 77 % of the baseline's own answers broken.
    """
    test = mcnemar(91, 86, "two-sided")

    assert round(test.p, 3) == 0.764
    assert round(100 * test.statistic / 1319, 2) == 0.38
    assert mcnemar(91, 86).p > 0.05
    changed_aa, changed_ab = 1 - 0.227, 1 - 0.145
    assert changed_ab - changed_aa == pytest.approx(0.082)
    assert changed_aa / changed_ab > 0.9  # nine tenths of the "changes" are the server's own


def test_two_proportions_is_the_pooled_z() -> None:
    """z squared is the chi-square of the 2 x 2 table, by scipy."""
    from scipy.stats import chi2_contingency

    chi2 = chi2_contingency([[112, 52], [90, 74]], correction=False)
    test = two_proportions(112, 164, 90, 164)

    assert test.statistic**2 == pytest.approx(chi2.statistic, rel=1e-12)
    assert test.p == pytest.approx(chi2.pvalue, rel=1e-9)
    assert two_proportions(5, 5, 5, 5).p == 1.0
    with pytest.raises(ValueError, match="at least one trial"):
        two_proportions(0, 0, 1, 2)


def test_a_few_items_are_compared_exactly() -> None:
    """Five of five against two of five is no finding (z would say p = 0.04); 100 times as many are told apart."""
    few = two_proportions(5, 5, 2, 5)

    assert few.p == pytest.approx(1 / 6, rel=1e-12)  # 2 x C(5,2) C(5,5) / C(10,7)
    assert "Fisher" in few.method
    assert two_proportions(500, 500, 200, 500).p < 1e-6
    # 50 prompts without a loss on either side say nothing of the rates, nor do 50 against 49.
    assert two_proportions(50, 50, 50, 50).p == 1.0
    assert two_proportions(50, 50, 49, 50).p == 1.0


def test_no_comparison_is_decided_by_nothing() -> None:
    """Rates of 0 and 1 need four items an arm: 2 / C(8,4) is the first p value under 0.05."""
    assert unpaired_items(0.0, 1.0).n == 4
    assert unpaired_items(0.97, 0.95).n == 1504
