"""Parts of a campaign that need no engine: arms, the meter, capacity rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgate.campaign.arms import FLOORS, Role, build_arms, choose_floors, serving_order
from kvgate.campaign.capacity import capacity_rows
from kvgate.campaign.prepare import find_driver
from kvgate.campaign.progress import Meter
from kvgate.core.deployment import CachePart, Consequence, Deployment, Identity, Subject
from kvgate.core.engine import Settings
from kvgate.core.errors import UserError
from kvgate.models.resolve import resolve_model
from kvgate.store.rows import ArmRow


@pytest.fixture
def arms(smollm2: Path):
    settings = Settings(context_tokens=1024, threads=1)
    return build_arms(find_driver("llama.cpp"), resolve_model(str(smollm2)), "native", ["q8_0", "q4_0"], settings)


def test_base_runs_first_and_restart_last(arms) -> None:
    """A drift of the machine shows between the two."""
    order = [a.name for a in serving_order(arms)]

    assert order[0] == "base"
    assert order[-1] == "restart"
    assert set(order) == {"base", "batch", "q8_0", "q4_0", "restart"}


def test_floors_declare_what_they_change_and_nothing_else(arms) -> None:
    """A floor's settings differ from the base's in the declared fields only."""
    base = arms[0].launch.request.settings
    for arm in arms:
        if arm.role is Role.FLOOR:
            own = arm.launch.request.settings
            changed = {f for f in Settings.__slots__ if getattr(base, f) != getattr(own, f)}
            assert changed == set(arm.perturb)
            assert arm.recipe == arms[0].recipe


def test_an_unknown_floor_is_named(arms) -> None:
    """A typo in a policy's floor arms lists the known ones."""
    with pytest.raises(UserError, match="twin"):
        choose_floors(["twins"])
    assert choose_floors([f.name for f in FLOORS]) == FLOORS


class Told:
    stood_still_s = 0.0

    def __init__(self) -> None:
        self.updates: list[tuple[float, float, float | None]] = []

    def note(self, text: str) -> None: ...

    def stage(self, text: str) -> None: ...

    def update(self, done: float, total: float, remaining_s: float | None) -> None:
        self.updates.append((done, total, remaining_s))


def test_remaining_time_is_what_was_measured() -> None:
    """Unknown at first; then each kind at its own rate, and an unseen kind at the mean."""
    told = Told()
    meter = Meter(told)
    meter.plan("a", 100)
    meter.plan("b", 100)
    assert meter.remaining_s() is None

    meter.done("a", 50, 10.0)

    assert meter.remaining_s() == pytest.approx(50 * 0.2 + 100 * 0.2)
    meter.done("b", 50, 30.0)
    assert meter.remaining_s() == pytest.approx(50 * 0.2 + 50 * 0.6)
    assert told.updates[-1] == (100, 200, pytest.approx(40.0))


def test_time_that_a_check_was_stopped_is_no_work() -> None:
    """An hour of Ctrl-Z within a piece leaves the rate as it was; one before it takes nothing from it."""
    told = Told()
    meter = Meter(told)
    meter.plan("a", 100)

    told.stood_still_s += 3600
    meter.done("a", 25, 3600 + 10.0)
    assert meter.remaining_s() == pytest.approx(75 * 0.4)
    told.stood_still_s += 60
    meter.done("a", 25, 10.0)
    meter.done("a", 25, 10.0)
    assert meter.remaining_s() == pytest.approx(25 * 0.4)


def test_work_taken_away_twice_is_not_less_than_none() -> None:
    """What was done and is then not needed leaves the bar at 100 %, not above it."""
    told = Told()
    meter = Meter(told)
    meter.plan("needle", 100)
    meter.plan("golden", 50)
    meter.done("needle", 100, 10.0)
    meter.plan("needle", -100)
    meter.done("golden", 50, 5.0)

    assert told.updates[-1] == (150, 150, pytest.approx(0.0))


def seen(arm, k_mib: float, v_mib: float, cells: int = 1024) -> dict[tuple[str, str], ArmRow]:
    part = CachePart(
        kind="full_attention", cells=cells, layers=30, k_codec="q8_0", v_codec="q8_0", k_mib=k_mib, v_mib=v_mib
    )
    deployment = Deployment(
        identity=Identity(engine="llama_cpp"),
        subject=Subject(spelling="q8_0", requested="q8_0", effective="q8_0"),
        consequence=Consequence(parts=(part,)),
    )
    row = ArmRow(arm=arm.name, place="serving", role=arm.role.value, recipe=str(arm.recipe), deployment=deployment)
    return {(arm.name, "serving"): row}


@pytest.mark.parametrize(
    ("k_mib", "v_mib", "cells", "agrees"),
    [
        (5.98, 5.98, 1024, True),  # 5.9765625 MiB, as C prints it
        (5.99, 5.98, 1024, False),  # one hundredth more than the codec's size
        (5.98, 5.97, 1024, False),
        (5.98, 5.98, 1280, False),
    ],
)
def test_the_plan_is_held_against_the_log_to_its_last_digit(arms, k_mib, v_mib, cells, agrees) -> None:
    """A hundredth of a MiB or one block of cells too many is a disagreement."""
    arm = next(a for a in arms if a.name == "q8_0")
    geometry = arm.launch.request.model.geometry

    rows = capacity_rows(geometry, arms, seen(arm, k_mib, v_mib, cells))

    row = next(r for r in rows if r.recipe == "q8_0")
    assert row.agrees is agrees
    assert row.ratio == pytest.approx(32 / 17)
    assert next(r for r in rows if r.recipe == "q4_0").agrees is None
