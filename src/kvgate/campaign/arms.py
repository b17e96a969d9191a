"""The arms of a run: one base, its floors, and the candidates.

Floors run the base's recipe again: as it is (restart, twin), or with a declared perturbation of settings that a service
changes every day (batch sizes, slots). What they show is the noise that a candidate is judged against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvgate.campaign.overrides import Override, check_new_name
from kvgate.core.engine import Driver, Launch, Request, Settings
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelFiles
from kvgate.core.recipe import Recipe, parse

SERVING, PANEL = "serving", "panel"
BASE = "base"


class Role(StrEnum):
    BASE = "base"
    FLOOR = "floor"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm. `places` says where it runs; `perturb` names the identity fields it declares to be different."""

    name: str
    role: Role
    places: frozenset[str]
    recipe: Recipe
    perturb: tuple[str, ...]
    launch: Launch


@dataclass(frozen=True, slots=True)
class Floor:
    """A floor arm of every engine: where it runs, and the settings that differ from the base's."""

    name: str
    place: str
    change: Mapping[str, Any]


#: `restart` runs last and brackets drift. ubatch 32 makes llama.cpp's CPU path take another kernel for f16 (fewer than
#: 64 rows), which is why this floor is not zero there; on other engines it is a plain batch perturbation.
FLOORS: tuple[Floor, ...] = (
    Floor("batch", SERVING, {"slots": 2, "ubatch_tokens": 32}),
    Floor("restart", SERVING, {}),
    Floor("twin", PANEL, {}),
    Floor("ubatch32", PANEL, {"ubatch_tokens": 32}),
)


def choose_floors(names: Sequence[str]) -> tuple[Floor, ...]:
    """The floors that a policy names.

    Raises:
        UserError: no such floor arm.
    """
    known = {f.name: f for f in FLOORS}
    for name in names:
        if name not in known:
            raise UserError(f"the policy's floor arm {name!r} is not known", allowed=known)
    return tuple(f for f in FLOORS if f.name in names)


def build_arms(
    driver: Driver,
    model: ModelFiles,
    base: str,
    kv: Sequence[str],
    settings: Settings,
    *,
    floors: Sequence[Floor] = FLOORS,
    python: Path | None = None,
    overrides: Mapping[str, Override] | None = None,
) -> tuple[Arm, ...]:
    """All arms: the base, its floors, the candidates in the order they were asked for.

    Args:
        overrides: settings of single arms; a name that no arm has is one more floor.

    Raises:
        UserError: no candidate, the same candidate twice, or a recipe that the engine cannot run.
    """
    own = dict(overrides or {})
    if not kv:
        raise UserError("no candidate", fix="give at least one --kv RECIPE, e.g. --kv q8_0")
    both = frozenset({SERVING, PANEL})

    def launch(name: str, recipe: Recipe, spelling: str, changed: Settings) -> Launch:
        override = own.pop(name, None)
        if override is None:
            return driver.resolve(Request(model, recipe, changed, spelling, python))
        return driver.resolve(Request(model, recipe, override.settings(changed), spelling, override.python or python))

    def floor_arm(name: str, places: frozenset[str], perturb: Sequence[str], changed: Settings) -> Arm:
        declared = {*perturb, *(own[name].perturb if name in own else ())}
        launched = launch(name, base_recipe, base, changed)
        return Arm(name, Role.FLOOR, places, base_recipe, tuple(sorted(declared)), launched)

    base_recipe = parse(base)
    arms = [Arm(BASE, Role.BASE, both, base_recipe, (), launch(BASE, base_recipe, base, settings))]
    for floor in floors:
        changed = replace(settings, **floor.change)
        arms.append(floor_arm(floor.name, frozenset({floor.place}), tuple(floor.change), changed))
    for spelling in kv:
        recipe = parse(spelling)
        name = str(recipe)
        if any(a.name == name for a in arms):
            raise UserError(f"candidate {name!r} is given twice, or has the name of an arm", fix="name each once")
        places = frozenset({SERVING}) if name in own and own[name].alone else both
        arms.append(Arm(name, Role.CANDIDATE, places, recipe, (), launch(name, recipe, spelling, settings)))
    for name, override in list(own.items()):
        check_new_name(name, reserved=[f.name for f in FLOORS])
        arms.append(floor_arm(name, frozenset({SERVING}) if override.alone else both, (), settings))
    return tuple(arms)


def serving_order(arms: Sequence[Arm]) -> list[Arm]:
    """Base first, `restart` last: a drift of the machine or the engine shows between the two."""
    serving = [a for a in arms if SERVING in a.places]
    return sorted(serving, key=lambda a: (a.name == "restart", a.role is not Role.BASE))


def of_role(arms: Sequence[Arm], role: Role, place: str | None = None) -> list[Arm]:
    return [a for a in arms if a.role is role and (place is None or place in a.places)]
