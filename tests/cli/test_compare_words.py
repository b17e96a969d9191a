"""What `kvgate compare` says to somebody who asks: what changed, and is it noise?"""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.campaign.rejudge import MetricDelta
from kvgate.cli.compare import _decided, _moved, _noise
from kvgate.core.estimate import Estimate
from kvgate.core.verdict import Decision


def moved(a: tuple[float, Any, Any] | None, b: tuple[float, Any, Any] | None, apart: bool | None) -> MetricDelta:
    """One metric that was `a` (value, lo, hi) and is `b`."""
    one, two = (None if x is None else Estimate(*x, 0.9, 9, 9, "nat", "m", "open") for x in (a, b))
    return MetricDelta("q8_0", "fidelity", "prefill.kl_mean", one, two, apart)


SAME = moved((1, 0.9, 1.1), (1, 0.9, 1.1), False)
NEAR = moved((1, 0.9, 1.1), (1.05, 0.95, 1.15), False)
FAR = moved((1, 0.9, 1.1), (2, 1.9, 2.1), True)
OPEN = moved((1, None, None), (2, 1.9, 2.1), None)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ([SAME, SAME], "all 2 are exactly equal"),
        ([SAME, NEAR], "all 2 that have them touch: noise can explain every change"),
        ([NEAR, OPEN], "all 1 that have them touch"),
        ([FAR, NEAR, OPEN], "1 of 2 lies apart"),
        ([FAR, FAR], "2 of 2 lie apart"),
        ([OPEN], "none of 1 has an interval in both runs"),
    ],
)
def test_noise_is_a_sentence(metrics: list[MetricDelta], said: str) -> None:
    """Equal, within noise, apart, and not known are four answers."""
    assert said in _noise(metrics)


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        (SAME, "equal"),
        (NEAR, "higher, may be noise"),
        (FAR, "higher, apart"),
        (moved((2, 1.9, 2.1), (1, 0.9, 1.1), True), "lower, apart"),
        (OPEN, "higher"),
        (moved(None, (1, 0.9, 1.1), None), ""),
    ],
)
def test_each_number_says_which_way_it_went(delta: MetricDelta, said: str) -> None:
    """Of the second run against the first; without both numbers nothing is claimed."""
    assert _moved(delta) == said


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("PASS", "PASS", "PASS in both"),
        ("PASS", "INCONCLUSIVE", "PASS -> INCONCLUSIVE, worse"),
        ("INVALID", "FAIL", "INVALID -> FAIL, better"),
    ],
)
def test_decisions_are_better_or_worse(first: str, second: str, said: str) -> None:
    """By the order that the exit code has too."""
    assert _decided(Decision(first), Decision(second)) == said
