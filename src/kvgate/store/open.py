"""Opening the store: the right kind of file or server, the right revision."""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa

from kvgate.core.errors import StoreError, UserError
from kvgate.store.database import Database, sqlite_database
from kvgate.store.lease import FileLease
from kvgate.store.location import FIX, ServerUrl, data_folder, default_location, location_of, make_private
from kvgate.store.schema import HEAD, REVISIONS
from kvgate.store.store import Store
from kvgate.store.writer import Redact

__all__ = ["Store", "default_location", "open_store"]


def open_store(location: str | Path | None = None, *, create: bool = True, redact: Redact = lambda raw: raw) -> Store:
    """Open the store, and make it if it is not there: folder 0700, file 0600, migrated to our revision.

    Args:
        location: path, existing folder, sqlite:///PATH or postgresql://...; None or "" is `default_location()`.
        create: make a file that is not there; False refuses it, for verbs that only read.
        redact: applied to every answer before it is first written.

    Raises:
        UserError: a place that cannot be written or reached, a full disk, a file or database that is not a store, a
            store of a newer kvgate.
    """
    place = location_of(location) if location else default_location()
    if isinstance(place, ServerUrl):
        return _open_server(place, redact)
    if not create and not place.exists():
        fix = "start a run with `kvgate check`, or name another file"
        raise UserError(f"there is no store at {str(place)!r}", fix=fix)
    make_private(place, ours=not location and not os.environ.get("KVGATE_STORE"))
    database = sqlite_database(place)
    _prepare(database, fix=FIX)
    return Store(database, FileLease(place.with_name(place.name + ".leases")), place.parent, redact)


def _open_server(url: ServerUrl, redact: Redact) -> Store:
    from kvgate.store.postgres import AdvisoryLease, postgres_database  # its driver is an extra

    database = postgres_database(url)
    _prepare(database, fix="see docs/store.md for PostgreSQL")
    return Store(database, AdvisoryLease(url, database), data_folder(), redact)


def _prepare(database: Database, *, fix: str) -> None:
    try:
        _bring_to_head(database)
    except StoreError as e:
        database.close()
        raise UserError(str(e), fix="" if "KVGATE_STORE" in str(e) else fix) from e
    except BaseException:
        database.close()
        raise


def _bring_to_head(database: Database) -> None:
    """Migrate if needed, in one transaction; another process that opens at the same time waits, and finds it done."""
    with database.read() as c:
        if _revision(c, database.place) == HEAD:
            return
    with database.write() as c:
        if _revision(c, database.place) == HEAD:
            return
        _upgrade(c)


def _revision(c: sa.Connection, place: str) -> str | None:
    """Revision of the store, None if it is empty.

    Raises:
        UserError: tables that are not ours, or a revision that we do not know.
    """
    tables = set(sa.inspect(c).get_table_names())
    if not tables:
        return None
    if "alembic_version" not in tables:
        kind = "an SQLite file" if c.dialect.name == "sqlite" else "a database with other tables"
        raise UserError(f"{place!r} is {kind}, but not a kvgate store", fix=FIX)
    found = c.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    if len(found) != 1 or found[0] not in REVISIONS:
        raise UserError(
            f"store {place!r} was written by another kvgate (schema {', '.join(found)!r}, this one knows up to "
            f"{HEAD!r})",
            fix="upgrade kvgate, or name another file with KVGATE_STORE",
        )
    return str(found[0])


def _upgrade(c: sa.Connection) -> None:
    from alembic import command  # slow to import, and only needed when something changes

    from kvgate.store.migrations import config

    command.upgrade(config(c), "head")
