"""What a check will take is said before it begins, and what it took at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvgate.campaign.cost import scoring_s
from kvgate.core.engine import Speed
from kvgate.core.errors import EngineDied
from kvgate.engines._llama_speed import speed_from
from kvgate.engines.fake import DRIVER


class Notes:
    """Progress that keeps what it is told."""

    stood_still_s = 0.0

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    def stage(self, text: str) -> None:
        self.said.append(f"stage: {text}")

    def update(self, done: float, total: float, remaining_s: float | None) -> None:
        """Not looked at."""


def test_a_request_takes_reading_attention_and_writing() -> None:
    """1 ms a token read, 0.001 for each pair, 10 a token written, each of which sees what was read."""
    speed = Speed(1.0, 0.001, 10.0)
    assert speed.seconds(100, 0) == pytest.approx((100 + 10) / 1e3)
    assert speed.seconds(100, 5) == pytest.approx((100 + 0.001 * 100 * 110 + 50) / 1e3)
    assert speed.seconds(0, 3) == pytest.approx(0.03)


@pytest.mark.parametrize("pair", [(0.002, 5.0), (0.0, 4.0), (0.01, 0.0)])
def test_two_points_give_the_curve_back(pair: tuple[float, float]) -> None:
    """a * n + b * n * n at 64 and 512 tokens gives a and b."""
    b, a = pair
    speed = speed_from(64, a * 64 + b * 64**2, 512, a * 512 + b * 512**2, 7.0)
    assert (speed.read_ms, speed.attend_ms, speed.write_ms) == pytest.approx((a, b, 7.0))


def test_a_busy_machine_makes_no_negative_speed() -> None:
    """A short request that took longer, token for token, than the long one: attention is called free, not negative."""
    speed = speed_from(64, 6400.0, 512, 5120.0, 7.0)
    assert (speed.read_ms, speed.attend_ms) == (10.0, 0.0)
    steep = speed_from(64, 6.4, 512, 5120.0, 7.0)
    assert steep.read_ms >= 0.0 and steep.seconds(512, 0) == pytest.approx(5.12, rel=0.01)


def test_scoring_takes_some_time() -> None:
    """Tried out on this machine; more for a longer vocabulary."""
    assert scoring_s(64) > 0


def test_minutes_are_said_before_the_first_case_and_the_truth_at_the_end(
    fake_check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each suite with its arms, the sum, then the work, then what it took."""

    async def speed(session: object) -> Speed:
        return Speed(60.0, 0.0, 600.0)

    monkeypatch.setattr(type(DRIVER), "speed", staticmethod(speed), raising=False)
    notes = Notes()
    fake_check(progress=notes, suites=("golden", "needle"))

    costs = [i for i, text in enumerate(notes.said) if text.startswith("cost: ")]
    first = next(i for i, text in enumerate(notes.said) if text.startswith("stage: base: golden 1/"))
    before, after = costs[:-1], costs[-1]
    assert all(i < first for i in before) and after > first
    assert "golden: about" in notes.said[before[0]] and "needle: about" in notes.said[before[1]]
    assert "3 arms" in notes.said[before[0]]
    total = notes.said[before[2]].removeprefix("cost: about ").split(" in all")[0]
    assert notes.said[after].startswith(f"cost: estimated {total}, took ")


@pytest.mark.parametrize("fails", [True, False])
def test_without_a_speed_the_check_goes_on(
    fails: bool, fake_check: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver whose measurement fails says why; one that has none says nothing; both are judged."""

    async def speed(session: object) -> Speed | None:
        if fails:
            raise EngineDied("gone")
        return None

    monkeypatch.setattr(type(DRIVER), "speed", staticmethod(speed), raising=False)
    notes = Notes()
    outcome = fake_check(progress=notes, suites=("needle",))

    said = [text for text in notes.said if text.startswith("cost")]
    assert said == (["cost: not estimated: gone"] if fails else [])
    assert outcome.view.verdicts
