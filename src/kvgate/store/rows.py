"""Rows of the store as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.core.deployment import Deployment, Engaged

RUN_STATES = ("running", "finished", "invalid", "interrupted")
ROLES = ("base", "floor", "candidate")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run.

    Attributes:
        key: sha256 of what decides the observations. state: one of RUN_STATES.
        created: ISO time, UTC. manifest: what was asked for, as given to `begin_run`, without passwords in URLs.
        lease_owner: process that said it works on this run ("" if none). lease_until: ISO time of the next sign of
            life it promised. Both only inform: the lease itself is a lock of the operating system.
    """

    run_id: str
    key: str
    created: str
    state: str
    manifest: Mapping[str, Any]
    lease_owner: str = ""
    lease_until: str = ""


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One arm in one place ("serving", "panel"); `perturb` names the identity fields it declares to be different."""

    arm: str
    place: str
    role: str
    recipe: str
    perturb: tuple[str, ...] = ()
    deployment: Deployment | None = None
    engaged: Engaged | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role {self.role!r} is none of {', '.join(ROLES)}")


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """A document that supports a run: a log, a plan, a bench. `sha256` is the digest of its canonical JSON."""

    kind: str
    arm: str
    sha256: str
    body: Mapping[str, Any]
