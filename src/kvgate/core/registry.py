"""Discovery: one new file in a folder, or one entry point, is all that an addition needs.

Each folder in `KINDS` is scanned once, on the first look-up. A module takes part when it has the folder's attribute
(one object, or a tuple of them); modules whose name starts with "_" and modules without it are left alone. Outside
packages use entry points of group "kvgate" named "<kind>.<name>".
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from types import MappingProxyType
from typing import Any, NamedTuple

from kvgate.core.errors import UserError


class Kind(NamedTuple):
    """Where a kind of plug-in lives: package to scan, attribute to take."""

    package: str
    attribute: str


KINDS: Mapping[str, Kind] = {
    "codec": Kind("kvgate.formats.blocks", "CODECS"),
    "family": Kind("kvgate.models.families", "FAMILY"),
    "config_family": Kind("kvgate.models.families", "CONFIG_FAMILY"),
    "method": Kind("kvgate.methods", "METHOD"),
    "engine_rule": Kind("kvgate.plan.engine_rules", "ENGINE_RULE"),
    "engine": Kind("kvgate.engines", "DRIVER"),
    "server": Kind("kvgate.engines.servers", "SERVER"),
    "page_reader": Kind("kvgate.engines.pages", "PAGES"),
    "suite": Kind("kvgate.suites", "SUITE"),
    "rule": Kind("kvgate.gate.rules", "RULE"),
    "lint_rule": Kind("kvgate.lint.rules", "RULE"),
    "launch_writer": Kind("kvgate.launch.writers", "WRITER"),
    "calibrator": Kind("kvgate.launch.calibrators", "CALIBRATOR"),
}


@cache
def discover(kind: str) -> Mapping[str, Any]:
    """All registered objects of a kind, by name, in name order.

    Raises:
        ValueError: two objects of one kind share a name (a programming error).
    """
    package, attribute = KINDS[kind]
    found: dict[str, Any] = {}

    def add(objects: Any) -> None:
        for obj in objects if isinstance(objects, tuple) else (objects,):
            name = obj.name
            if name in found and found[name] is not obj:
                raise ValueError(f"two {kind}s are named {name!r}")
            found[name] = obj

    folder = importlib.import_module(package)
    for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
        if not module.startswith("_"):
            loaded = importlib.import_module(f"{package}.{module}")
            if hasattr(loaded, attribute):
                add(getattr(loaded, attribute))
    for point in _outside():
        if point.name.startswith(f"{kind}."):
            add(point.load())
    return MappingProxyType(dict(sorted(found.items())))


@cache
def _outside() -> EntryPoints:
    """Plug-ins of other packages; looking through all installed packages takes time, so once."""
    return entry_points(group="kvgate")


def get(kind: str, name: str) -> Any:
    """One registered object.

    Raises:
        UserError: no such name; the message lists what there is.
    """
    found = discover(kind)
    if name not in found:
        raise UserError(f"unknown {kind} {name!r}", allowed=found)
    return found[name]
