"""Short transactions on one database; PostgreSQL's are in `postgres.py`.

SQLite: WAL, so that readers and a writer do not block each other; every write takes the write lock at its beginning
(BEGIN IMMEDIATE), so that a transaction waits at its start and cannot fail half-way; synchronous=FULL, so that what
was committed also survives a power cut.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kvgate.core.errors import StoreError
from kvgate.store.faults import BUSY_S, faults

# A connection that breaks while it is given back is logged with a traceback; whoever used it has been told already.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())

#: Execution option of a connection whose transaction writes.
WRITES = "kvgate_writes"
#: What a connection to an SQLite file has open: path -> its status then.
_FILES = "kvgate_files"


class Database:
    """An engine and the name it has in messages.

    Attributes:
        guards: called at the beginning of every writing transaction; raises where writing is no longer allowed.
    """

    def __init__(self, engine: sa.Engine, place: str) -> None:
        self.engine, self.place = engine, place
        self.guards: list[Callable[[sa.Connection], None]] = []

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction: all of it is kept, or nothing.

        Raises:
            StoreError: see `faults`.
        """
        with faults(self.place), self.engine.connect() as connection:
            writing = connection.execution_options(**{WRITES: True})
            with writing.begin():
                yield writing

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A consistent view: all that was committed before its first query."""
        with faults(self.place), self.engine.connect() as connection, connection.begin():
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def sqlite_database(path: Path) -> Database:
    """A database on an SQLite file; nothing is touched before the first transaction."""
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_S})
    database = Database(engine, str(path))
    opened: dict[Path, os.stat_result] = {}
    real = path.resolve()  # SQLite keeps its log beside the file, not beside a link to it

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        _use_wal(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA schema_version").fetchone()  # a first look opens the log, if nothing has yet
        logs = [p for p in (real.with_name(real.name + end) for end in ("-wal", "-shm")) if p.exists()]
        # Another connection may come later, and must not take a store that replaced ours for it.
        record.info[_FILES] = {path: opened.setdefault(path, path.stat())} | {p: p.stat() for p in logs}

    @sa.event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get(WRITES)
        if writes:
            _same_files(path, connection.info[_FILES])
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        for guard in database.guards if writes else ():
            guard(connection)

    return database


def _same_files(store: Path, opened: Mapping[Path, os.stat_result]) -> None:
    """SQLite writes on into a file that was removed, and all of it would be gone at the end.

    Without its -wal and -shm two processes would also no longer see each other's locks.

    Raises:
        StoreError: a name now stands for another file, or for none.
    """
    for path, before in opened.items():
        try:
            same = os.path.samestat(path.stat(), before)
        except (FileNotFoundError, NotADirectoryError):
            same = False
        if not same:
            its = "" if path == store else f" has lost its {path.name}: it"
            raise StoreError(
                f"store {str(store)!r}{its} was removed or replaced while it was in use; nothing more can be recorded "
                "in it: put it back, or run the same command again"
            )


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. The switch needs the file alone and does not wait by itself, so two first openers must retry."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
