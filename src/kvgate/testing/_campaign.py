"""A campaign in memory, for conformance checks: arms of the fake engine, one suite, no store, no gate."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from kvgate.core.engine import ArmId, Driver, Session
from kvgate.core.errors import EngineError
from kvgate.core.observation import Case, PositionBlock, Raw, Records, Work, content_digest
from kvgate.core.suite import Suite
from kvgate.testing._need import need
from kvgate.testing.requests import fake_request

BASE = "base"
_MAX_ROUNDS = 12

Script = Mapping[str, Any]
Raws = dict[tuple[str, str], list[Raw]]


class Servers:
    """One live session per arm; an arm is a script of the fake engine."""

    def __init__(self, driver: Driver, scripts: Mapping[ArmId, Script], context_tokens: int) -> None:
        self._driver, self._scripts, self._context_tokens = driver, scripts, context_tokens
        self._stack = AsyncExitStack()
        self.sessions: dict[ArmId, Session] = {}

    async def __aenter__(self) -> Servers:
        for arm, script in self._scripts.items():
            launch = self._driver.resolve(fake_request(script=script, context_tokens=self._context_tokens))
            self.sessions[arm] = await self._stack.enter_async_context(self._driver.open(launch))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


async def serve(
    suite: Suite,
    cases: Sequence[Case],
    sessions: Mapping[ArmId, Session],
    *,
    floors: Sequence[ArmId],
    candidate: ArmId,
    seed: int,
) -> Records:
    """Every case on every arm once, then what the suite asks for, until it asks no more."""
    by_id = {c.id: c for c in cases}
    raws: Raws = defaultdict(list)
    done: set[Work] = set()

    async def run(work: Work) -> None:
        done.add(work)
        try:
            raw = await suite.run(sessions[work.arm], by_id[work.case_id], work.repeat, seed)
        except EngineError:
            return  # failed work is no observation; the store leaves it out too
        raws[work.arm, work.case_id].append(raw)

    for arm in (BASE, candidate, *floors):
        for case in cases:
            await run(Work(arm, case.id))
    for _ in range(_MAX_ROUNDS):
        records = assemble(suite, cases, raws, floors, candidate)
        wanted = list(suite.next_work(records))
        need(wanted == list(suite.next_work(records)), f"{suite.name}: next_work is not deterministic in its records")
        fresh = [w for w in wanted if w not in done]
        if not fresh:
            return records
        for work in fresh:
            need(work.case_id in by_id, f"{suite.name}: next_work names an unknown case {work.case_id!r}")
            need(work.arm in sessions, f"{suite.name}: next_work names an unknown arm {work.arm!r}")
            await run(work)
    raise AssertionError(f"{suite.name}: next_work still asks for more after {_MAX_ROUNDS} rounds; [] must end it")


def assemble(
    suite: Suite,
    cases: Sequence[Case],
    raws: Mapping[tuple[str, str], Sequence[Raw]],
    floors: Sequence[ArmId],
    candidate: ArmId,
    positions: Sequence[PositionBlock] = (),
) -> Records:
    """Records as the store would give them back, scored and compared."""
    by_id = {c.id: c for c in cases}
    arms = (BASE, candidate, *floors)
    ordered = {(arm, c.id): tuple(raws[arm, c.id]) for c in cases for arm in arms if raws.get((arm, c.id))}
    pairs = {
        (arm, case_id): suite.compare(by_id[case_id], ordered[BASE, case_id], answers)
        for (arm, case_id), answers in ordered.items()
        if arm != BASE and (BASE, case_id) in ordered
    }
    return Records(
        suite=suite.name,
        base=BASE,
        floors=tuple(floors),
        candidates=(candidate,),
        cases=by_id,
        raws=ordered,
        scores={key: tuple(suite.score(by_id[key[1]], raw) for raw in got) for key, got in ordered.items()},
        pairs=pairs,
        positions=tuple(positions),
        digest=_digest(cases, ordered, positions),
    )


def panel(
    suite: Suite,
    cases: Sequence[Case],
    driver: Driver,
    scripts: Mapping[ArmId, Script],
    *,
    floors: Mapping[ArmId, Mapping[str, Any]],
    candidate: ArmId,
) -> Records:
    """Every case on one panel. `floors` holds the settings in which a floor arm differs from the base."""
    launches = {
        arm: driver.resolve(fake_request(script=script, **floors.get(arm, {}))) for arm, script in scripts.items()
    }
    blocks: list[PositionBlock] = []
    with driver.open_panel(launches) as live:
        for case in cases:
            blocks += suite.run_panel(live, case, BASE, tuple(scripts))
    return assemble(suite, cases, {}, tuple(floors), candidate, blocks)


def _digest(cases: Sequence[Case], raws: Mapping[Any, Sequence[Raw]], positions: Sequence[PositionBlock]) -> str:
    answers = [[list(key), [[r.body, r.error] for r in got]] for key, got in raws.items()]
    rows = [[b.case_id, b.lane, b.arm, b.start, hashlib.sha256(b.data.tobytes()).hexdigest()] for b in positions]
    return content_digest([[c.id for c in cases], answers, rows])
