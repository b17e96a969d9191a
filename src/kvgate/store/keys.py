"""Keys of the tables, and the few statements that several modules need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from kvgate.core.observation import Work
from kvgate.store import schema as t


def now_text() -> str:
    """ISO time, UTC, microseconds: sorts as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def later_text(before: str | None) -> str:
    """Now, or a microsecond after `before` (a text of this function) if the clock was set back meanwhile."""
    now = now_text()
    if before is None or now > before:
        return now
    return (datetime.fromisoformat(before) + timedelta(microseconds=1)).isoformat(timespec="microseconds")


def suite_version_of(c: sa.Connection, run_id: str, suite: str) -> int:
    """The suite version of a run: its key holds it, so a run has one (0 before its first work)."""
    column = t.work.c.suite_version
    return c.execute(sa.select(sa.func.max(column)).where(at(t.work, run_id=run_id, suite=suite))).scalar() or 0


def at(table: sa.Table, **equal: Any) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == value for name, value in equal.items()))


def at_work(table: sa.Table, run_id: str, suite: str, version: int, work: Work) -> sa.ColumnElement[bool]:
    return at(
        table,
        run_id=run_id,
        suite=suite,
        suite_version=version,
        arm=work.arm,
        case_id=work.case_id,
        repeat=work.repeat,
    )


def work_key(run_id: str, suite: str, version: int, work: Work, attempt: int) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "suite": suite,
        "suite_version": version,
        "arm": work.arm,
        "case_id": work.case_id,
        "repeat": work.repeat,
        "attempt": attempt,
    }


def fetch(c: sa.Connection, query: sa.Select[*tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows as dicts by column name."""
    return [{str(k): v for k, v in r.items()} for r in c.execute(query).mappings()]


def insert(c: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        c.execute(sa.insert(table), rows)
