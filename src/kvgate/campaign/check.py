"""`kvgate check`, end to end: arms, cases, panel, serving, confirmation, judgement, report."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kvgate.campaign.arms import BASE, PANEL, SERVING, Role, serving_order
from kvgate.campaign.capacity import capacity_rows
from kvgate.campaign.confirm import confirm
from kvgate.campaign.context import RunContext
from kvgate.campaign.cost import announce, took
from kvgate.campaign.evidence import manifest
from kvgate.campaign.foresee import foreseen
from kvgate.campaign.futile import leave_futile
from kvgate.campaign.judgement import judged
from kvgate.campaign.measured import keep_facts, stored_facts
from kvgate.campaign.meeting import Lanes, meet, nothing_to_compare
from kvgate.campaign.panel import outstanding as panel_outstanding
from kvgate.campaign.panel import run_panel
from kvgate.campaign.prepare import Prepared, prepare
from kvgate.campaign.progress import Meter, Progress
from kvgate.campaign.serving import ArmSession, outstanding, run_arm
from kvgate.campaign.spec import CheckSpec
from kvgate.campaign.windows import largest_window
from kvgate.core.engine import Available, Lane, Missing, Tokens
from kvgate.core.errors import EngineError, EngineTimeout, KvgateError, LaneUnavailable, UserError
from kvgate.core.observation import Case
from kvgate.core.suite import Suite, SuiteContext
from kvgate.core.verdict import Decision, worst
from kvgate.engines._patience import naps
from kvgate.gate.policy import Policy
from kvgate.report.model import RunView
from kvgate.report.write import write_all
from kvgate.store.open import Store, open_store

#: A text of a book's length takes a second; a server that takes this long hangs.
TOKENIZE_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished check gives back."""

    view: RunView
    files: Mapping[str, Path]

    @property
    def exit_code(self) -> int:
        return worst([v.decision for v in self.view.verdicts]).exit_code


def reusable(spec: CheckSpec) -> tuple[str, str] | None:
    """Run id and policy digest of the finished run of the same key, if it was judged by the policy asked for."""
    ready = prepare(spec)
    digest = ready.policy.digest()
    with open_store(spec.store) as store:
        row = store.run_for(ready.key)
        if row is None or row.state not in ("finished", "invalid"):
            return None
        judged = any(v["policy_digest"] == digest for v in store.verdicts(row.run_id))
    return (row.run_id, digest) if judged else None


def check(spec: CheckSpec, progress: Progress) -> Outcome:
    """Run a whole check; resumes an unfinished run of the same key.

    Raises:
        UserError: wrong input (nothing started), or a run that cannot be resumed.
        StoreError: the record could not be written; what was measured before is kept.
    """
    ready = prepare(spec)
    begun = time.monotonic()
    with open_store(spec.store) as store, store.lease(ready.key):
        make_folder(_reports(spec, store))
        run = _begin(ready, store, progress)
        try:
            asyncio.run(_observe(run, ready.policy))
            outcome = _judge(run, ready.policy, time.monotonic() - begun)
        except UserError:
            # Found only with the model's tokenizer at hand, e.g. a prompt that does not fit; nothing was measured.
            if not run.seen_before:
                store.set_state(run.run_id, "invalid")
            raise
        except BaseException:
            # Nobody works on it any more; whether that can be noted depends on what happened (a full disk).
            with suppress(KvgateError):
                store.set_state(run.run_id, "interrupted")
            raise
        store.set_state(run.run_id, _end_state(run, outcome))
        took(run, time.monotonic() - begun)
        return outcome


def _reports(spec: CheckSpec, store: Store) -> Path:
    return spec.out or store.folder / "reports"


def make_folder(folder: Path) -> None:
    """A report that cannot be written must be known before minutes of work, not after.

    Raises:
        UserError: no folder, and none can be made there.
    """
    try:
        str(folder).encode("utf-8")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "Permission denied"
    except UnicodeEncodeError:
        reason = "its name is not valid UTF-8, which no document could repeat"
    except OSError as e:
        reason = e.strerror or str(e)
    if reason:
        raise UserError(f"reports cannot be written into {str(folder)[:200]!r}: {reason}", fix="name a folder by --out")


def _judge(run: RunContext, policy: Policy, leg_s: float) -> Outcome:
    """Everything after the engines; the facts are kept, so that a stored run can be judged again."""
    run.progress.stage("judging")
    before = stored_facts(run.store, run.run_id)
    measured = run.measured(max(leg_s + (before.duration_s if before is not None else 0.0), _answered_s(run)))
    view = judged(measured, policy)
    own = measured.facts.model_copy(update={"policy_digest": policy.digest(), "policy": run.spec.policy})
    keep_facts(replace(measured, facts=own))
    files = write_all(view, _reports(run.spec, run.store) / run.run_id)
    run.store.add_evidence(run.run_id, "report", "", {k: str(v) for k, v in files.items()})
    return Outcome(view, files)


def _answered_s(run: RunContext) -> float:
    """What the answers took that are in the store: a leg that was killed has left nothing else."""
    return sum(a.raw.ms for name in run.suites for a in run.store.answered(run.run_id, name)) / 1e3


def _end_state(run: RunContext, outcome: Outcome) -> str:
    """A run with holes that the engine tore stays open: the same command repeats just those."""
    torn = any("engine: " in reason for reason in run.broken.values()) or run.panel_failed
    if torn or any(e.errors for e in outcome.view.evidence.values()):
        return "interrupted"
    decisions = [v.decision for v in outcome.view.verdicts]
    return "invalid" if worst(decisions) is Decision.INVALID else "finished"


def _begin(ready: Prepared, store: Store, progress: Progress) -> RunContext:
    row = None if ready.spec.fresh else store.run_for(ready.key)
    resumed = row is not None and row.state in ("running", "interrupted")
    run_id = row.run_id if row is not None and resumed else ""
    run = RunContext(
        spec=ready.spec,
        store=store,
        run_id=run_id,
        driver=ready.driver,
        model=ready.model,
        arms=ready.arms,
        suites=ready.suites,
        params=ready.params,
        files=ready.files,
        progress=progress,
        meter=Meter(progress),
        context_tokens=ready.context_tokens,
        preset=ready.preset,
        untested=dict(ready.untested),
        short_context=bool(ready.untested),
    )
    for plan in capacity_rows(run.model.geometry, run.arms, {}):
        cells = sum(k + v for _, _, k, v in plan.predicted)
        progress.note(
            f"plan: {plan.recipe} runs as {plan.effective}: {plan.bytes_per_token:,} bytes a token, "
            f"{plan.ratio:.2f} x the tokens, {cells:.2f} MiB"
        )
    if not resumed:
        run.run_id = store.begin_run(ready.key, manifest(run))
        return run
    progress.note(f"resuming run {run_id}")
    store.set_state(run_id, "running")
    run.seen_before = True
    for arm_row in store.arms(run_id):
        run.seen[(arm_row.arm, arm_row.place)] = arm_row
    return run


async def _observe(run: RunContext, policy: Policy) -> None:
    """Everything that needs an engine."""
    base = run.arm(BASE)
    async with ArmSession(run, base) as session:
        try:
            met = await meet(run, session) if run.spec.against is not None else {}
            if nothing_to_compare(run):
                return
            lanes = await _make_cases(run, session)
        except EngineError as e:
            # Without a base there is nothing to compare with: every verdict is INVALID, with this reason.
            run.broken[(BASE, SERVING)] = f"engine: {e}"
            run.progress.note(f"base: the engine cannot be used: {e}")
            return
        if not run.usable(BASE, SERVING):
            return
        if lanes is not None:
            for line in foreseen(run, policy, {BASE: lanes, **met}):
                run.progress.note(line)
        work = {a.name: {s.name: outstanding(run, s, a.name) for s in run.suites_of(SERVING)} for a in run.arms}
        _plan_work(run, work)
        leave_futile(run, work)
        await announce(run, session, work)
        await run_panel(run, session)
        await run_arm(run, base, work[BASE], session)
        leave_futile(run, work)
    for arm in serving_order(run.arms):
        if arm.name != BASE:
            await run_arm(run, arm, work[arm.name])
    await confirm(run)


def _plan_work(run: RunContext, work: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
    """Tell the meter what is to be done."""
    arms = sum(PANEL in a.places for a in run.arms)
    for suite in run.suites_of(PANEL):
        for w in panel_outstanding(run, suite):
            run.meter.plan(suite.name, run.weight(suite, run.cases[suite.name][w.case_id]) * arms)
    for arm in serving_order(run.arms):
        for name, items in work[arm.name].items():
            for w in items:
                run.meter.plan(name, run.weight(run.suites[name], run.cases[name][w.case_id]))


async def _make_cases(run: RunContext, session: ArmSession) -> Lanes | None:
    """Cases of every suite: from the store when resumed, else made with the base's tokenizer and stored.

    Returns:
        The base's lanes; None when resumed.
    """
    stored = {n: dict(run.store.cases(run.run_id, n)) for n in run.suites}
    if run.seen and all(stored.values()):
        run.cases = stored
        return None
    live = await session.get()
    lanes = await live.lanes()
    loop = asyncio.get_running_loop()

    def tokenize(text: str, *, special: bool = False) -> Tokens:
        asked = asyncio.run_coroutine_threadsafe(live.tokenize(text, special=special), loop)
        for nap_s in naps(TOKENIZE_TIMEOUT_S):
            with suppress(TimeoutError):
                return asked.result(timeout=nap_s)
        raise EngineTimeout(f"no answer from the tokenizer within {TOKENIZE_TIMEOUT_S} s")

    run.suites = {n: s for n, s in run.suites.items() if not _replaced(run, s, lanes)}
    for name, suite in run.suites.items():
        missing = _missing_lanes(suite, lanes)
        if missing:
            run.untested[name] = "; ".join(missing)
            run.cases[name] = {}
            continue
        ctx = SuiteContext(
            run.params[name],
            run.spec.seed,
            tokenize,
            run.context_tokens,
            run.files,
            tokenize_document=partial(tokenize, special=True),
            window_tokens=largest_window(run.model.geometry),
        )
        try:
            cases = await asyncio.to_thread(_all_cases, suite, ctx)
        except LaneUnavailable as e:
            run.untested[name], run.cases[name] = str(e), {}
            continue
        except UserError as e:
            # Of a server that holds less than was asked for, what does not fit is untested; the rest is run.
            if not run.short_context:
                raise
            run.untested[name], run.cases[name] = str(e), {}
            continue
        run.store.add_cases(run.run_id, cases)
        run.cases[name] = {c.id: c for c in cases}
        cost = suite.cost(cases, run.params[name])
        run.progress.note(
            f"{name}: {cost.cases} cases; an arm reads {cost.prefill_tokens:,} and writes {cost.decode_tokens:,} tokens"
        )
    return lanes


def _replaced(run: RunContext, suite: Suite, lanes: Mapping[Lane, Available | Missing]) -> bool:
    """Whether a better lane than this suite's is served on every arm, so that it need not be run."""
    better: Lane | None = getattr(suite, "instead_of", None)
    if better is None or not isinstance(lanes.get(better), Available):
        return False
    # A floor of another build or environment cannot be in the panel, and is there to be seen.
    apart = any({"build", "env"} & set(a.perturb) for a in run.arms)
    everywhere = not apart and all(PANEL in a.places for a in run.arms if a.role is not Role.FLOOR)
    others = any(better in s.needs for s in run.suites.values())
    return everywhere and others


def _missing_lanes(suite: Suite, lanes: Mapping[Lane, Available | Missing]) -> list[str]:
    """Lanes that a suite needs and this deployment lacks, with the reasons; of `needs_any` one is enough."""
    absent = Missing("not offered by this engine")

    def reasons(wanted: frozenset[Lane]) -> list[str]:
        found = [(lane, lanes.get(lane, absent)) for lane in sorted(wanted)]
        return [f"{lane.value}: {served.reason}" for lane, served in found if isinstance(served, Missing)]

    choice = _needs_any(suite)
    none_of = reasons(choice)
    return reasons(suite.needs - {Lane.PANEL}) + (none_of if len(none_of) == len(choice) else [])


def _needs_any(suite: Suite) -> frozenset[Lane]:
    return getattr(suite, "needs_any", frozenset())


def _all_cases(suite: Suite, ctx: SuiteContext) -> list[Case]:
    return list(suite.cases(ctx))
