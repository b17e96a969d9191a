"""The store: runs, and what belongs to one."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from kvgate.core.errors import StoreError, UserError
from kvgate.store import schema as t
from kvgate.store.columns import canonical, without_passwords
from kvgate.store.database import Database
from kvgate.store.faults import RESTORE
from kvgate.store.judged import Judged
from kvgate.store.keys import at, now_text
from kvgate.store.lease import Lease, is_gone
from kvgate.store.reader import Reader
from kvgate.store.rows import RUN_STATES, RunRow
from kvgate.store.writer import Redact, Writer

#: A holder moves `lease_until` this far ahead, at most once a minute. It informs `kvgate runs`; nothing depends on it.
SIGN_OF_LIFE_S, AHEAD_S = 60.0, 600.0


class Store(Writer, Judged, Reader):
    """The record of all runs in one place. A context manager; made by `open_store`.

    Every method is one short transaction, so several processes may work in one store, each on its own run.

    Attributes:
        folder: where the database lies; reports may be put beside it.
    """

    def __init__(self, database: Database, lease: Lease, folder: Path, redact: Redact) -> None:
        super().__init__(database, redact)
        self._lease, self.folder = lease, folder
        self._held: dict[str, str] = {}
        self._last_sign: dict[str, float] = {}

    @property
    def place(self) -> str:
        """The store's name in messages: its path."""
        return self._db.place

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. What was committed is in the file."""
        self._db.close()

    # runs

    def run_for(self, key: str) -> RunRow | None:
        """The newest run with this key."""
        with self._db.read() as c:
            query = sa.select(t.runs).where(at(t.runs, key=key)).order_by(t.runs.c.serial.desc()).limit(1)
            row = c.execute(query).mappings().first()
        return _run(row) if row is not None else None

    def begin_run(self, key: str, manifest: Mapping[str, Any]) -> str:
        """Record a new run in state "running" and give its id: date, time (UTC) and six random hex digits.

        Raises:
            NotJson: the manifest is not a JSON value.
        """
        clean = without_passwords(manifest)
        canonical(clean, "the manifest")
        with self._db.write() as c:
            run_id = _new_id(c)
            serial = (c.execute(sa.select(sa.func.max(t.runs.c.serial))).scalar() or 0) + 1
            row = {"run_id": run_id, "key": key, "serial": serial, "created": now_text(), "manifest": clean}
            c.execute(sa.insert(t.runs).values(**row, state="running", **self._owner(key)))
        return run_id

    @contextmanager
    def lease(self, key: str) -> Iterator[None]:
        """Work on this key alone. The lock dies with the process; the owner is also noted in the newest run's row.

        Raises:
            StoreBusy: another process has it; its pid is named if it is known.
        """
        with self._lease.hold(key) as owner:
            self._held[key] = owner
            try:
                self._note_owner(key)
                yield
            finally:
                del self._held[key]
                self._note_owner(key)

    def set_state(self, run_id: str, state: str) -> None:
        """Set the state of a run.

        Raises:
            ValueError: not one of RUN_STATES. StoreError: the run is gone, another store was put into this one's place.
        """
        if state not in RUN_STATES:
            raise ValueError(f"state {state!r} is none of {', '.join(RUN_STATES)}")
        with self._db.write() as c:
            if c.execute(sa.update(t.runs).where(at(t.runs, run_id=run_id)).values(state=state)).rowcount != 1:
                raise StoreError(f"store {self.place!r} no longer has the run {run_id!r}; {RESTORE}")

    def runs(self) -> Sequence[RunRow]:
        """All runs, the newest first."""
        with self._db.read() as c:
            return [_run(r) for r in c.execute(sa.select(t.runs).order_by(t.runs.c.serial.desc())).mappings()]

    def find_run(self, prefix: str) -> RunRow:
        """The run whose id begins so; "last" is the newest.

        Raises:
            UserError: none, or more than one; the message lists ids.
        """
        runs = self.runs()
        if not runs:
            raise UserError(f"store {self.place!r} has no runs", fix="start one with `kvgate check`")
        found = runs[:1] if prefix == "last" else [r for r in runs if prefix and r.run_id.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        thing = f"{len(found)} runs begin with {prefix!r}" if found else f"no run begins with {prefix!r}"
        ids = [r.run_id for r in found or runs]
        shown = ids[:6] + ([f"and {len(ids) - 6} more"] if len(ids) > 6 else [])
        raise UserError(thing, allowed=["last", *shown], fix="`kvgate runs` lists all")

    # lease columns, for the eye only

    def _owner(self, key: str) -> dict[str, str | None]:
        owner = self._held.get(key)
        until = datetime.now(UTC) + timedelta(seconds=AHEAD_S)
        return {"lease_owner": owner, "lease_until": until.isoformat(timespec="seconds") if owner else None}

    def _note_owner(self, key: str) -> None:
        newest = sa.select(sa.func.max(t.runs.c.serial)).where(at(t.runs, key=key)).scalar_subquery()
        with self._db.write() as c:
            c.execute(sa.update(t.runs).where(t.runs.c.serial == newest).values(**self._owner(key)))

    def _sign_of_life(self, connection: sa.Connection, run_id: str) -> None:
        now = time.monotonic()
        if not self._held or now - self._last_sign.get(run_id, -SIGN_OF_LIFE_S) < SIGN_OF_LIFE_S:
            return
        self._last_sign[run_id] = now
        key = connection.execute(sa.select(t.runs.c.key).where(at(t.runs, run_id=run_id))).scalar()
        if key in self._held:
            connection.execute(sa.update(t.runs).where(at(t.runs, run_id=run_id)).values(**self._owner(key)))


def _run(row: Any) -> RunRow:
    state, owner = row["state"], row["lease_owner"] or ""
    # A killed process cannot say that it has stopped.
    killed = state == "running" and is_gone(owner)
    return RunRow(
        run_id=row["run_id"],
        key=row["key"],
        created=row["created"],
        state="interrupted" if killed else state,
        manifest=row["manifest"],
        lease_owner=owner,
        lease_until=row["lease_until"] or "",
    )


def _new_id(c: sa.Connection) -> str:
    while True:
        run_id = f"{datetime.now(UTC):%Y%m%d-%H%M}-{secrets.token_hex(3)}"
        if c.execute(sa.select(t.runs.c.run_id).where(at(t.runs, run_id=run_id))).first() is None:
            return run_id
