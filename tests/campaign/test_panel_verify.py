"""The comparison of panel and server before a panel is believed: which of the two failed decides what follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvgate.campaign.check import Outcome
from kvgate.core.errors import EngineDied, LaneUnavailable
from kvgate.engines.fake import DRIVER


def verify(monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> list[int]:
    """Let the comparison fail so often; returns the list in which each call leaves its mark."""
    left, calls = list(failures), []

    async def once(*given: object) -> None:
        calls.append(1)
        if left:
            raise left.pop(0)

    monkeypatch.setattr(type(DRIVER), "verify_panel", staticmethod(once))
    return calls


def test_a_panel_that_dies_while_it_is_compared_is_started_again(
    fake_check: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead worker is no fault of the server, and no reason to leave the lane."""
    calls = verify(monkeypatch, EngineDied("panel: the worker ended: killed by signal 9"))

    found = fake_check(suites=("fidelity",)).view.evidence["q8_0"]

    assert len(calls) == 2
    assert "fidelity" in found.summaries
    assert "fidelity" not in found.untested


def test_a_server_that_dies_while_the_panel_is_compared_is_started_again(
    fake_check: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's death, not a disagreement, is the cause of a comparison that could not be made."""
    lost = LaneUnavailable("the base's server gave no position to compare with")
    lost.__cause__ = EngineDied("killed by signal 9")
    calls = verify(monkeypatch, lost)

    found = fake_check(suites=("fidelity",)).view.evidence["q8_0"]

    assert len(calls) == 2
    assert "fidelity" not in found.untested


def test_a_panel_that_does_not_compute_what_the_server_does_is_untested(
    fake_check: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disagreement stays one however often it is asked for: once is enough."""
    calls = verify(monkeypatch, LaneUnavailable("panel and server disagree by 1 nat"))

    found = fake_check(suites=("fidelity",)).view.evidence["q8_0"]

    assert len(calls) == 1
    assert "disagree by 1 nat" in found.untested["fidelity"]
