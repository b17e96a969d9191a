"""Where marks and ticks stand in a chart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.estimate import Estimate
from kvgate.report.charts import Series, bar_percent, scale_for, strip_chart

POSITIVE = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=8)


@given(POSITIVE, st.booleans())
def test_order_is_kept_and_everything_is_inside(values: list[float], log: bool) -> None:
    """A larger number is never left of a smaller one, and no mark leaves the strip."""
    scale = scale_for(values, log=log)
    at = [scale.at(v) for v in sorted(values)]

    assert at == sorted(at)
    assert all(0 <= x <= 100 for x in at)


@given(POSITIVE, st.booleans())
def test_an_axis_has_few_ticks_but_some(values: list[float], log: bool) -> None:
    """One to seven labels: enough to read, few enough for a phone."""
    assert 1 <= len(scale_for(values, log=log).ticks("nat", "prefill.kl_mean")) <= 7


def test_a_zero_is_marked_on_a_logarithmic_axis() -> None:
    """The exact zero of a second context is drawn as outside, not as a small number."""
    series = Series("twin", "floor: twin", "f0")
    zero = Estimate(0.0, 0.0, 0.0, 0.9, 10, 10, "nat", "m")
    chart = strip_chart("t", "nat", [("a", [(series, zero)])], metric="prefill.kl_mean", log=True)

    assert chart is not None
    assert chart.rows[0].marks[0].off == "left"


def test_unknown_values_are_named_and_unbounded_ones_hollow() -> None:
    """A ? is said in the strip's text, and an unbounded interval has no line."""
    one, two = Series("a", "a", "s0"), Series("b", "b", "s1")
    unbounded = Estimate(0.5, None, None, 0.9, 4, 2, "1", "m", "2 clusters")
    cells = [(one, unbounded), (two, Estimate.unknown("not run"))]
    chart = strip_chart("t", "x", [("row", cells)], metric="needle.accuracy", log=False)

    assert chart is not None
    assert chart.has_open
    assert "b: ?" in chart.rows[0].aria
    assert "2 clusters" in chart.rows[0].aria


def test_nothing_to_draw_is_no_chart() -> None:
    """Only unknown numbers make no empty picture."""
    assert strip_chart("t", "x", [("r", [(Series("a", "a", "s0"), None)])], metric="m.x", log=True) is None


@pytest.mark.parametrize(("value", "largest", "percent"), [(5, 10, 50.0), (10, 10, 100.0), (0, 0, 0.0)])
def test_bars_are_shares_of_the_largest(value: float, largest: float, percent: float) -> None:
    """The largest bar is whole; without a largest there is none."""
    assert bar_percent(value, largest) == percent
