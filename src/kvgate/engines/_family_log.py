"""The load log of a server that we started, for engines that are told from each other by it (vLLM and its kin)."""

from __future__ import annotations

from collections.abc import Sequence

from kvgate.core.deployment import Deployment, Engaged, Engagement, Subject
from kvgate.core.engine import Launch
from kvgate.core.errors import UserError
from kvgate.enginefacts.log_patterns import load
from kvgate.engines._family_package import Family
from kvgate.plan.log_values import StartLog
from kvgate.plan.logs import read_log


def log_of(engine: str, lines: Sequence[str]) -> StartLog | None:
    """The load log; None where it is none of this engine's or says nothing."""
    try:
        log = read_log("\n".join(lines))
    except UserError:
        return None
    return log if log.engine == engine else None


def subject_of(launch: Launch) -> Subject:
    """What was asked for."""
    want = launch.request
    return Subject(
        spelling=want.spelling or str(want.recipe), requested=str(want.recipe), effective=str(launch.effective)
    )


def unread(of: Family, observed: Deployment) -> Engaged | None:
    """Why this version's log is held against nothing; None where somebody has read its lines."""
    version, known = observed.identity.version, load(of.engine)
    if version is None:
        return contradicted(f"the version of {of.title}'s package could not be read", observed.evidence)
    if known.knows(version):
        return None
    read = f"{known.known_since} up to {known.known_until}"
    reason = f"{of.title} {version} is outside of what was read ({read}): the meaning of its log is not certain"
    return Engaged(Engagement.UNOBSERVED, reason, observed.evidence)


def contradicted(reason: str, lines: Sequence[str]) -> Engaged:
    """The engine says otherwise."""
    return Engaged(Engagement.CONTRADICTED, reason, tuple(lines))
