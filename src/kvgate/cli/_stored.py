"""The ending of a check again, read from the store: nothing is measured, judged or written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvgate.campaign.evidence import caveats
from kvgate.campaign.measured import Measured, measured_of, stored_facts
from kvgate.campaign.published import published
from kvgate.cli._show import Ending
from kvgate.core.errors import UserError
from kvgate.core.estimate import Measure, measure_from_json
from kvgate.core.verdict import Verdict
from kvgate.report.json import SCHEMA
from kvgate.store.open import Store

#: A report that was written by a check is far smaller; whatever else lies at its path is not read.
MOST_BYTES = 64 * 2**20


def stored_ending(store: Store, run_id: str, verdicts: Sequence[tuple[Mapping[str, Any], str]]) -> Ending:
    """What the check of a run said at its end, from what it left in the store and beside its report.

    Args:
        verdicts: stored verdicts with what is said behind their headlines.
    """
    reports = [row.body for row in store.evidence(run_id, "report")]
    here = [body for body in reports if Path(str(body.get("report.html", ""))).is_file()] or reports
    results, floor = _numbers(run_id, [*_noted(here), *_usual(store, run_id)])
    facts, measured = _read(store, run_id)
    return Ending(
        run_id=run_id,
        duration_s=facts.duration_s if facts is not None else None,
        capacity=facts.capacity if facts is not None else (),
        logged_mib=_logged(store, run_id),
        results=results,
        floor=floor,
        verdicts=[(Verdict.from_json(v), whose) for v, whose in verdicts],
        published=published(measured) if measured is not None else {},
        caveats=caveats(measured) if measured is not None else (),
        report=str(here[-1].get("report.html", "")) if here else "",
        missing="" if results or not verdicts else f"not beside the report any more: kvgate report {run_id}",
    )


def _read(store: Store, run_id: str) -> tuple[Any, Measured | None]:
    """The facts of a run; of an earlier kvgate, which kept them in another form or not at all, nothing."""
    try:
        return stored_facts(store, run_id), measured_of(store, run_id)
    except UserError:
        return None, None


def _logged(store: Store, run_id: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in store.arms(run_id):
        mib = row.deployment.consequence.kv_mib if row.deployment is not None and row.role != "floor" else None
        if mib is not None:
            found.setdefault(row.recipe, mib)
    return found


Numbers = Mapping[str, Mapping[str, Measure]]


def _noted(reports: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Where each leg of the check has put its JSON document, the last first."""
    return [Path(str(body["check.json"])) for body in reversed(reports) if body.get("check.json")]


def _usual(store: Store, run_id: str) -> list[Path]:
    """Where it lies beside a store that was moved, and where `kvgate report` puts it."""
    folder = store.folder / "reports" / run_id
    return [folder / "check.json", folder / "again" / "check.json", folder / "no-outputs" / "check.json"]


def _numbers(run_id: str, paths: Sequence[Path]) -> tuple[Numbers, Numbers]:
    """Results by candidate and by floor arm, from the first of the documents that is the run's; else nothing."""
    for path in paths:
        try:
            if path.stat().st_size > MOST_BYTES:
                continue
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["schema"] == SCHEMA and document["run"] == run_id:
                return _by_arm(document["results"]), _by_arm(document["floor"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return {}, {}


def _by_arm(arms: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Numbers:
    return {
        arm: {metric: measure_from_json(m) for metrics in suites.values() for metric, m in metrics.items()}
        for arm, suites in arms.items()
    }
