"""The panel lane: every arm in one worker process, in lockstep, full vocabulary."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from kvgate.campaign.arms import BASE, PANEL
from kvgate.campaign.context import RunContext
from kvgate.campaign.serving import ArmSession
from kvgate.core.engine import Panel
from kvgate.core.errors import BadAnswer, EngineDied, EngineError, EngineTimeout, LaneUnavailable
from kvgate.core.observation import Case, Raw, Work
from kvgate.core.suite import Suite

MAX_STARTS = 3

#: Text that the panel and the server both read for the comparison: one decode, of more than 64 rows, since llama.cpp's
#: CPU path takes another kernel below that.
VERIFY_TOKENS = 128


def outstanding(run: RunContext, suite: Suite) -> list[Work]:
    """Panel cases not done yet; one row serves all arms."""
    done = run.store.done(run.run_id, suite.name, suite.version)
    return [w for c in run.cases[suite.name] if done.get(w := Work("*", c, 0)) != "done"]


async def run_panel(run: RunContext, base: ArmSession) -> None:
    """Run every panel suite; a lane that cannot be had makes its suites untested, with the reason.

    `base` is the base's server, which one position of the panel is held against. Steps block the loop on purpose: the
    worker is asked to die with the thread that started it, so that thread must be the main one.
    """
    for _ in range(MAX_STARTS):
        work = {s.name: outstanding(run, s) for s in run.suites_of(PANEL)}
        if not any(work.values()):
            return
        try:
            await _run_once(run, work, base)
            return
        except LaneUnavailable as e:
            reason = str(e)
            break
        except EngineError as e:
            reason = f"{type(e).__name__}: {e}"
            run.progress.note(f"panel: {reason}; starting it again")
    else:
        run.panel_failed = True
    for suite in run.suites_of(PANEL):
        run.untested[suite.name] = f"panel lane: {reason}"
    run.progress.note(f"panel: untested: {reason}")


async def _run_once(run: RunContext, work: dict[str, list[Work]], base: ArmSession) -> None:
    launches = {a.name: a.launch for a in run.arms if PANEL in a.places}
    run.progress.stage(f"panel: loading one model, {len(launches)} caches")
    with run.driver.open_panel(launches) as panel:
        for name, deployment in panel.deployments().items():
            run.record_arm(run.arm(name), PANEL, deployment)
        if not run.usable(BASE, PANEL):
            raise LaneUnavailable(f"base: {run.broken[(BASE, PANEL)]}")
        await _verify(run, panel, base, work)
        arms = [n for n in launches if n != BASE and run.usable(n, PANEL)]
        for name, items in work.items():
            suite = run.suites[name]
            for i, item in enumerate(items):
                run.progress.stage(f"panel: {name} {i + 1}/{len(items)}, {len(arms) + 1} arms")
                _run_case(run, panel, suite, run.cases[name][item.case_id], item, arms)


async def _verify(run: RunContext, panel: Panel, base: ArmSession, work: dict[str, list[Work]]) -> None:
    """One position of the panel against the server's, on the first text at hand.

    Raises:
        LaneUnavailable: they differ, or there is no server to hold the panel against.
        EngineError: the panel or the server failed; it can be started again.
    """
    case = next(run.cases[name][w.case_id] for name, items in work.items() for w in items)
    ids = list(case.body["ids"])[:VERIFY_TOKENS]
    try:
        server = await base.get()
    except EngineError as e:
        raise LaneUnavailable(f"the base's server gave no position to compare with: {e}") from e
    try:
        nat = await run.driver.verify_panel(panel, BASE, server, ids)
    except LaneUnavailable as e:
        if isinstance(e.__cause__, EngineDied | EngineTimeout):
            # The server was killed, which says nothing about the lane: both are started again.
            await base.drop()
            raise e.__cause__ from None
        raise
    if nat is not None:
        run.store.add_evidence(run.run_id, "panel", BASE, {"max_difference_nat": nat, "tokens": len(ids)})
        run.progress.note(f"panel and server agree at one position within {nat:.1e} nat")


def _run_case(run: RunContext, panel: Panel, suite: Suite, case: Case, item: Work, arms: list[str]) -> None:
    started, t0 = datetime.now(UTC).isoformat(), time.monotonic()
    attempt = run.store.start_work(run.run_id, suite.name, suite.version, item)
    try:
        blocks = suite.run_panel(panel, case, BASE, arms)
        raw = Raw({"arms": [BASE, *arms]}, seed=run.spec.seed)
    except BadAnswer as e:
        # Degenerate logits are the observation; the worker itself is alive and goes on.
        blocks, raw = (), Raw(None, error=f"{type(e).__name__}: {e}", seed=run.spec.seed)
        run.progress.note(f"panel: {suite.name} {case.id}: {raw.error}")
    seconds = time.monotonic() - t0
    raw = Raw(raw.body, raw.error, raw.seed, started, seconds * 1e3)
    run.store.finish_work(run.run_id, suite.name, suite.version, item, attempt, raw, blocks)
    run.meter.done(suite.name, run.weight(suite, case) * (len(arms) + 1), seconds)
