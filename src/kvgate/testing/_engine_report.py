"""What the checks of an engine share: the report, and how long a process may outlive its session."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvgate.core.deployment import Deployment
from kvgate.core.engine import Available, Lane, Missing

#: A child must be gone this long after its session.
GONE_S = 5.0


@dataclass
class EngineReport:
    """What was seen, for a plug-in's own tests.

    Attributes:
        checks: what was looked at and found right, in order. untested: what could not be looked at, and why.
    """

    deployment: Deployment | None = None
    lanes: dict[Lane, Available | Missing] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)

    def has(self, lane: Lane) -> bool:
        return isinstance(self.lanes.get(lane), Available)
