"""Opening the store: the right kind of file, the right revision."""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa

from kvgate.core.errors import StoreError, UserError
from kvgate.store.database import Database, sqlite_database
from kvgate.store.lease import FileLease
from kvgate.store.location import FIX, default_location, make_private, path_of
from kvgate.store.schema import HEAD, REVISIONS
from kvgate.store.store import Store
from kvgate.store.writer import Redact

__all__ = ["Store", "default_location", "open_store"]


def open_store(location: str | Path | None = None, *, redact: Redact = lambda raw: raw) -> Store:
    """Open the store, and make it if it is not there: folder 0700, file 0600, migrated to our revision.

    Args:
        location: path, existing folder or sqlite:///PATH; None or "" is `default_location()`.
        redact: applied to every answer before it is first written.

    Raises:
        UserError: a place that cannot be written, a full disk, a file that is not a store, a store of a newer kvgate.
    """
    path = path_of(location) if location else default_location()
    make_private(path, ours=not location and not os.environ.get("KVGATE_STORE"))
    database = sqlite_database(path)
    try:
        _bring_to_head(database, path)
    except StoreError as e:
        database.close()
        raise UserError(str(e), fix="" if "KVGATE_STORE" in str(e) else FIX) from e
    except BaseException:
        database.close()
        raise
    return Store(database, FileLease(path.with_name(path.name + ".leases")), path.parent, redact)


def _bring_to_head(database: Database, path: Path) -> None:
    """Migrate if needed, in one transaction; another process that opens at the same time waits, and finds it done."""
    with database.read() as c:
        if _revision(c, path) == HEAD:
            return
    with database.write() as c:
        if _revision(c, path) == HEAD:
            return
        _upgrade(c)


def _revision(c: sa.Connection, path: Path) -> str | None:
    """Revision of the store, None if it is empty.

    Raises:
        UserError: tables that are not ours, or a revision that we do not know.
    """
    tables = set(sa.inspect(c).get_table_names())
    if not tables:
        return None
    if "alembic_version" not in tables:
        raise UserError(f"{str(path)!r} is an SQLite file, but not a kvgate store", fix=FIX)
    found = c.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    if len(found) != 1 or found[0] not in REVISIONS:
        raise UserError(
            f"store {str(path)!r} was written by another kvgate (schema {', '.join(found)!r}, this one knows up to "
            f"{HEAD!r})",
            fix="upgrade kvgate, or name another file with KVGATE_STORE",
        )
    return str(found[0])


def _upgrade(c: sa.Connection) -> None:
    from alembic import command  # slow to import, and only needed when something changes

    from kvgate.store.migrations import config

    command.upgrade(config(c), "head")
