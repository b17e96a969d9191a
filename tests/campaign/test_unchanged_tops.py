"""A recipe that changes nothing shows in tops of distributions, as it does in a panel's positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvgate.campaign.evidence import _unchanged
from kvgate.core.estimate import Estimate


def said(value: float, *, lossless: bool = False, positions: tuple[str, ...] = ()) -> list[str]:
    arm: Any = SimpleNamespace(lossless=lossless, effective="fp8_e4m3@unit")
    mean = Estimate(value=value, lo=value, hi=value, level=0.9, n=1536, clusters=12, unit="nat", method="test")
    summary: Any = SimpleNamespace(metrics={"topk_prefill.kl_mean": mean, "golden.confirmed_breaks": mean})
    records: Any = SimpleNamespace(positions=positions)
    return list(_unchanged(arm, {"topk": summary}, {"topk": records}))


def test_a_mean_of_exactly_nothing_is_named() -> None:
    """FP8 that answers as the base to the last digit, everywhere, is not FP8."""
    (reason,) = said(0.0)

    assert "topk_prefill.kl_mean exactly 0 at all 1536 positions" in reason
    assert "not in force" in reason


@pytest.mark.parametrize(
    "plain", [{"value": 1e-9}, {"value": 0.0, "lossless": True}, {"value": 0.0, "positions": ("b",)}]
)
def test_what_may_be_nothing_is_not_named(plain: dict[str, Any]) -> None:
    """A small divergence, a lossless recipe, and a panel's positions, which are looked at one by one."""
    assert said(**plain) == []
