"""The serving lane: one child process per deployment, suites over HTTP, one request at a time.

Retry rule: a case is tried three times; an engine that died or hung is started again, at most three times an arm. What
still fails is recorded as failed, with its error, and never counts as an answer. A prompt that does not fit is not
tried again; a server that is no longer the one it was ends its arm.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime

from kvgate.campaign.arms import BASE, SERVING, Arm
from kvgate.campaign.context import RunContext
from kvgate.core.engine import Session
from kvgate.core.errors import BadAnswer, EngineChanged, EngineDied, EngineError, EngineTimeout
from kvgate.core.observation import Case, Raw, Work
from kvgate.core.suite import Suite
from kvgate.store.columns import NotJson

MAX_ATTEMPTS = 3
#: Deaths and hangs of one arm in one run, over all its sessions; then the arm is given up.
MAX_LOST = 4

WorkBySuite = Mapping[str, Sequence[Work]]


class ArmSession:
    """The session of one arm, started when first needed and again after a death."""

    def __init__(self, run: RunContext, arm: Arm) -> None:
        self._run, self._arm = run, arm
        self._stack = AsyncExitStack()
        self._session: Session | None = None

    async def get(self) -> Session:
        """The live session.

        Raises:
            EngineError: it cannot be started, or was started too often; the arm is then broken.
        """
        if self._session is None:
            name, lost = self._arm.name, self._run.lost
            if lost[name] >= MAX_LOST:
                raise EngineDied(f"{name}: the engine died or hung {lost[name]} times")
            self._run.progress.stage(f"{name}: starting the engine")
            session = await self._stack.enter_async_context(self._run.driver.open(self._arm.launch))
            self._run.record_arm(self._arm, SERVING, await session.deployment())
            self._session = session
        return self._session

    async def drop(self) -> None:
        """Close what is left of a dead or hung engine."""
        self._session = None
        self._run.lost[self._arm.name] += 1
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def __aenter__(self) -> ArmSession:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


def outstanding(run: RunContext, suite: Suite, arm: str) -> list[Work]:
    """First runs of every case that this arm has not answered; what failed before a kill gets its tries again."""
    done = run.store.done(run.run_id, suite.name, suite.version)
    return [w for c in run.cases[suite.name] if done.get(w := Work(arm, c, 0)) != "done"]


async def run_arm(run: RunContext, arm: Arm, work: WorkBySuite, held: ArmSession | None = None) -> None:
    """Do the work of one arm; an arm that cannot be used is marked broken and left."""
    if not any(work.values()) or not run.usable(arm.name, SERVING):
        return
    if held is not None:
        await _run_all(run, arm, work, held)
        return
    async with ArmSession(run, arm) as session:
        await _run_all(run, arm, work, session)


async def _run_all(run: RunContext, arm: Arm, work: WorkBySuite, session: ArmSession) -> None:
    for name, items in work.items():
        suite = run.suites[name]
        bases = _bases(run, suite) if items and arm.name != BASE and hasattr(suite, "run_beside") else {}
        for i, item in enumerate(items):
            if not run.usable(arm.name, SERVING):
                return
            run.progress.stage(f"{arm.name}: {name} {i + 1}/{len(items)}")
            await _run_one(run, arm, suite, item, session, bases.get(item.case_id))


def _bases(run: RunContext, suite: Suite) -> dict[str, Raw]:
    """The base's first answers by case, for suites that ask other arms in their light."""
    answered = run.store.answered(run.run_id, suite.name)
    return {a.work.case_id: a.raw for a in answered if a.work.arm == BASE and a.work.repeat == 0 and not a.raw.error}


async def _asked(run: RunContext, suite: Suite, live: Session, case: Case, work: Work, base: Raw | None) -> Raw:
    if base is None:
        return await suite.run(live, case, work.repeat, run.spec.seed)
    raw: Raw = await suite.run_beside(live, case, work.repeat, run.spec.seed, base)  # type: ignore[attr-defined]
    return raw


def keep_notes(run: RunContext, arm: Arm, live: Session, case_id: str = "") -> None:
    """What the session has to say beside answers: each wait for a busy server is recorded."""
    taken: list[str] = getattr(live, "take_notes", list)()
    if taken:
        run.store.add_evidence(run.run_id, "http", arm.name, {"case": case_id, "notes": taken})
        run.progress.note(f"{arm.name}: {taken[0]}" + (f" (and {len(taken) - 1} more)" if len(taken) > 1 else ""))


async def _run_one(
    run: RunContext, arm: Arm, suite: Suite, work: Work, session: ArmSession, base: Raw | None = None
) -> None:
    case = run.cases[suite.name][work.case_id]
    begun = time.monotonic()
    for attempt_left in range(MAX_ATTEMPTS - 1, -1, -1):
        try:
            live = await session.get()
        except EngineError as e:
            # Nothing of this arm can be measured any more; what was measured stays.
            run.broken[(arm.name, SERVING)] = f"engine: {e}"
            run.progress.note(f"{arm.name}: the engine cannot be used: {e}")
            return
        if not run.usable(arm.name, SERVING):
            return
        started, t0 = datetime.now(UTC).isoformat(), time.monotonic()
        attempt = run.store.start_work(run.run_id, suite.name, suite.version, work)
        final = False
        try:
            raw = await _asked(run, suite, live, case, work, base)
        except EngineError as e:
            raw = Raw(None, error=f"{type(e).__name__}: {e}", seed=run.spec.seed)
            final = isinstance(e, EngineChanged) or (isinstance(e, BadAnswer) and e.kind == "context_exceeded")
            if isinstance(e, EngineChanged):
                run.broken[(arm.name, SERVING)] = f"not the deployment it was: {e}"
            if isinstance(e, EngineDied | EngineTimeout):
                await session.drop()
        keep_notes(run, arm, live, case.id)
        raw = replace(raw, started=started, ms=(time.monotonic() - t0) * 1e3)
        try:
            run.store.finish_work(run.run_id, suite.name, suite.version, work, attempt, raw)
        except NotJson as e:
            # A server that answers NaN is a bad answer, not a broken store.
            raw = Raw(None, f"BadAnswer: {e}", raw.seed, raw.started, raw.ms)
            run.store.finish_work(run.run_id, suite.name, suite.version, work, attempt, raw)
        if not raw.error:
            break
        verb = "again" if attempt_left and not final else "given up"
        run.progress.note(f"{arm.name}: {suite.name} {case.id}: {raw.error}; {verb}")
        if final:
            break
    run.meter.done(suite.name, run.weight(suite, case), time.monotonic() - begun)
