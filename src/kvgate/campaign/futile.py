"""Suites that the base's own answers make pointless: the other arms are then not asked, and the reason is kept.

Only what the suite itself says: of a base that finds no needle at all nothing can be lost, whatever the candidate does.
"""

from __future__ import annotations

from typing import Any

from kvgate.campaign.arms import BASE, SERVING
from kvgate.campaign.context import RunContext
from kvgate.core.observation import Raw


def leave_futile(run: RunContext, work: dict[str, dict[str, list[Any]]]) -> None:
    """Take the work of such suites away from every arm; needs all of the base's answers, none of them failed."""
    for suite in run.suites_of(SERVING):
        futile = getattr(suite, "futile", None)
        if futile is None or not run.cases[suite.name]:
            continue
        answers = _answers(run, suite.name)
        if answers.keys() != run.cases[suite.name].keys():
            continue
        reason = futile(run.cases[suite.name], answers)
        if reason is None:
            continue
        run.untested[suite.name] = reason
        run.progress.note(f"{suite.name}: the other arms are not asked: {reason}")
        for of_arm in work.values():
            for item in of_arm.pop(suite.name, []):
                run.meter.plan(suite.name, -run.weight(suite, run.cases[suite.name][item.case_id]))


def _answers(run: RunContext, suite: str) -> dict[str, Raw]:
    """The base's first answers by case, as far as they are answers."""
    answered = run.store.answered(run.run_id, suite)
    return {a.work.case_id: a.raw for a in answered if a.work.arm == BASE and a.work.repeat == 0 and not a.raw.error}
