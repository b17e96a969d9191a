"""Opening the store: the right kind of file or server, the right revision."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from kvgate.core.errors import StoreError, UserError
from kvgate.store.database import Database, sqlite_database
from kvgate.store.faults import KEPT, RESTORE
from kvgate.store.lease import FileLease
from kvgate.store.location import FIX, ServerUrl, data_folder, default_location, location_of, make_private
from kvgate.store.schema import HEAD, REVISIONS, metadata
from kvgate.store.store import Store
from kvgate.store.writer import Redact

__all__ = ["Store", "default_location", "open_store"]


def open_store(location: str | Path | None = None, *, create: bool = True, redact: Redact = lambda raw: raw) -> Store:
    """Open the store, and make it if it is not there: folder 0700, file 0600, migrated to our revision.

    Args:
        location: path, existing folder, sqlite:///PATH or postgresql://...; None or "" is `default_location()`.
        create: make a store where there is none; False refuses that, for verbs that only read.
        redact: applied to every answer before it is first written.

    Raises:
        UserError: a place that cannot be written or reached, a full disk, a file or database that is not a store, a
            store of a newer kvgate.
    """
    place = location_of(location) if location else default_location()
    if isinstance(place, ServerUrl):
        return _open_server(place, create, redact)
    if not create and not place.exists():
        raise _no_store(str(place))
    make_private(place, ours=not location and not os.environ.get("KVGATE_STORE"))
    database = sqlite_database(place)
    with _refusing(database, fix=FIX):
        _bring_to_head(database, create)
    real = place.resolve()  # by whatever link the file is named, its leases are the same
    lease = FileLease(real.with_name(real.name + ".leases"))
    database.guards.append(lease.still_held)
    return Store(database, lease, place.parent, redact)


def _open_server(url: ServerUrl, create: bool, redact: Redact) -> Store:
    from kvgate.store.postgres import AdvisoryLease, check_server, postgres_database  # its driver is an extra

    database = postgres_database(url)
    with _refusing(
        database, fix="check the URL, PGPASSWORD or ~/.pgpass, and the server; docs/store.md lists the rest"
    ):
        check_server(database)
        _bring_to_head(database, create)
    return Store(database, AdvisoryLease(url, database), data_folder(), redact)


def _no_store(place: str) -> UserError:
    return UserError(f"there is no store at {place!r}", fix="start a run with `kvgate check`, or name another one")


@contextmanager
def _refusing(database: Database, *, fix: str) -> Iterator[None]:
    """Nothing has been started: what fails now is a matter of the place that was named."""
    try:
        yield
    except StoreError as e:
        database.close()
        raise UserError(str(e).removesuffix(KEPT), fix="" if "KVGATE_STORE" in str(e) else fix) from e
    except BaseException:
        database.close()
        raise


def _bring_to_head(database: Database, create: bool) -> None:
    """Migrate if needed, in one transaction; another process that opens at the same time waits, and finds it done.

    Raises:
        UserError: a database without tables, and none are to be made.
    """
    with database.read() as c:
        revision = _revision(c, database.place)
    if revision == HEAD:
        return
    if revision is None and not create:
        raise _no_store(database.place)
    with database.write() as c:
        if _revision(c, database.place) == HEAD:
            return
        _upgrade(c)


def _revision(c: sa.Connection, place: str) -> str | None:
    """Revision of the store, None if it is empty.

    Raises:
        UserError: tables that are not ours, a revision that we do not know, or tables that ours should have.
    """
    tables = set(sa.inspect(c).get_table_names())
    if not tables:
        return None
    if not tables >= {"alembic_version", "runs", "work"}:  # other programs are migrated by Alembic too
        kind = "an SQLite file" if c.dialect.name == "sqlite" else "a database with other tables"
        raise UserError(f"{place!r} is {kind}, but not a kvgate store", fix=FIX)
    found = c.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    if len(found) != 1 or found[0] not in REVISIONS:
        raise UserError(
            f"store {place!r} was written by another kvgate (schema {', '.join(found)!r}, this one knows up to "
            f"{HEAD!r})",
            fix="upgrade kvgate, or name another store with KVGATE_STORE",
        )
    missing = sorted(set(metadata.tables) - tables) if found[0] == HEAD else []
    if missing:
        raise UserError(f"store {place!r} is damaged: without the table {missing[0]}", fix=RESTORE)
    return str(found[0])


def _upgrade(c: sa.Connection) -> None:
    from alembic import command  # slow to import, and only needed when something changes

    from kvgate.store.migrations import config

    command.upgrade(config(c), "head")
