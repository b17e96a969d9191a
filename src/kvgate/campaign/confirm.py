"""Records with scores and comparisons, and the reruns that confirm what a first run showed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from kvgate.campaign.arms import BASE, SERVING
from kvgate.campaign.context import RunContext
from kvgate.campaign.measured import Measured, place_of
from kvgate.campaign.serving import run_arm
from kvgate.core.observation import PairScore, Records, Score, Work
from kvgate.core.suite import Suite

#: A suite that still asks after so many rounds has a fault; what it has shown by then stands.
MAX_ROUNDS = 12


def scored_records(run: Measured, suite: Suite) -> Records:
    """What the store holds for a suite, with every answer scored and every arm compared with the base."""
    records = run.store.records(
        run.run_id,
        suite.name,
        base=BASE,
        floors=run.floors(place_of(suite)),
        candidates=run.candidates(),
    )
    scores: dict[tuple[str, str], tuple[Score, ...]] = {}
    pairs: dict[tuple[str, str], PairScore] = {}
    for key, raws in records.raws.items():
        arm, case_id = key
        case = records.cases[case_id]
        scores[key] = tuple(suite.score(case, raw) for raw in raws)
        base = records.raws.get((BASE, case_id))
        if arm not in (BASE, "*") and base:
            pairs[key] = suite.compare(case, base, raws)
    return replace(records, scores=scores, pairs=pairs)


async def confirm(run: RunContext) -> None:
    """Run what the suites ask for after a first look, until none asks for more."""
    for _ in range(MAX_ROUNDS):
        wanted: dict[str, dict[str, list[Work]]] = defaultdict(lambda: defaultdict(list))
        measured = run.measured()
        for suite in run.suites_of(SERVING):
            done = run.store.done(run.run_id, suite.name, suite.version)
            for work in suite.next_work(scored_records(measured, suite)):
                if work not in done and run.usable(work.arm, SERVING):
                    wanted[work.arm][suite.name].append(work)
                    run.meter.plan(suite.name, run.weight(suite, run.cases[suite.name][work.case_id]))
        if not wanted:
            return
        n = sum(len(items) for per_suite in wanted.values() for items in per_suite.values())
        run.progress.note(f"confirming: {n} reruns")
        for arm in run.arms:
            if arm.name in wanted:
                await run_arm(run, arm, wanted[arm.name])


def keep_scores(run: Measured, suite: Suite, records: Records) -> None:
    """Write scores and comparisons to the store; they are derived, so this happens once, at the end."""
    rows = [
        (answer.work, suite.score(records.cases[answer.work.case_id], answer.raw))
        for answer in run.store.answered(run.run_id, suite.name)
    ]
    run.store.save_final(
        run.run_id,
        suite.name,
        suite.scorer_version,
        ref_arm=BASE,
        scores=rows,
        pairs=[(arm, case_id, pair) for (arm, case_id), pair in sorted(records.pairs.items())],
    )
