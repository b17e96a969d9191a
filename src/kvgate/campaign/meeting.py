"""Servers that somebody else runs are all looked at before any is measured: what cannot be compared ends there."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.campaign.arms import SERVING, Role
from kvgate.campaign.context import RunContext
from kvgate.campaign.serving import ArmSession, keep_notes
from kvgate.core.engine import Available, Lane, Missing
from kvgate.core.errors import EngineChanged, EngineError

Lanes = Mapping[Lane, Available | Missing]


async def meet(run: RunContext, base: ArmSession) -> dict[str, Lanes]:
    """Look at the base's server, then at each candidate's that this run has not seen; what differs breaks its arm.

    Returns:
        The lanes of each candidate that was looked at, where a suite's numbers depend on them.

    Raises:
        EngineError: the base's server gives nothing. UserError: it is not the one that this run began with.
    """
    await base.get()
    asked = any(getattr(suite, "needs_any", None) for suite in run.suites.values())
    found: dict[str, Lanes] = {}
    for arm in run.arms:
        if arm.role is not Role.CANDIDATE or (arm.name, SERVING) in run.seen:
            continue
        async with ArmSession(run, arm) as session:
            try:
                live = await session.get()
                if asked and run.usable(arm.name, SERVING):
                    found[arm.name] = await live.lanes()
                keep_notes(run, arm, live)
            except EngineError as e:
                what = "not the deployment it was" if isinstance(e, EngineChanged) else "engine"
                run.broken[(arm.name, SERVING)] = f"{what}: {e}"
                run.progress.note(f"{arm.name}: the engine cannot be used: {e}")
    return found


def nothing_to_compare(run: RunContext) -> bool:
    """Whether no candidate is left that could be held against the base."""
    return not any(run.usable(a.name, SERVING) for a in run.arms if a.role is Role.CANDIDATE)
