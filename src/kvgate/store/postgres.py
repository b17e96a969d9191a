"""PostgreSQL: the same store for a team, by URL. Needs the extra `postgres` (psycopg 3).

One writer at a time, as with SQLite: each writing transaction takes one advisory lock at its beginning, so that a
transaction waits at its start and cannot fail half-way. A lease is an advisory lock of a session of its own: the server
lets go of it as soon as that connection is gone, which is at once when its process dies.
Source: PostgreSQL 15 manual, 13.3.5 (advisory locks), 20.3.2 (TCP settings), appendix A (error codes).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from kvgate.core.errors import StoreBusy, StoreError, UserError
from kvgate.store.database import WRITES, Database
from kvgate.store.faults import BUSY_S, faults
from kvgate.store.lease import is_gone, owner_name
from kvgate.store.location import ServerUrl

#: A dead client whose network went silent is noticed after about this long, by both ends.
_SILENT_S = 60
_IDLE_S, _EVERY_S, _COUNT = _SILENT_S // 2, _SILENT_S // 6, 3
#: How long to wait for the server to notice that a holder, a process of this machine, is dead.
_RELEASE_S = 5.0
_WRITE_LOCK = "kvgate: one writer"
_MAX_NAME_BYTES = 63  # of application_name
#: The oldest release that is known to do, as libpq numbers them.
OLDEST = 130_000
#: Encodings of a database in which all text comes back: SQL_ASCII keeps bytes as they are.
_ENCODINGS = ("UTF8", "SQL_ASCII")


def postgres_database(url: ServerUrl) -> Database:
    """A database on a PostgreSQL server; nothing is contacted before the first transaction.

    Raises:
        UserError: not a URL that names a database, or psycopg is not installed.
    """
    engine = _engine(url, pool_pre_ping=True)
    database = Database(engine, url.shown)

    @sa.event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        if connection.get_execution_options().get(WRITES):
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (lock_number(_WRITE_LOCK),))
            for guard in database.guards:
                guard(connection)
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    return database


def check_server(database: Database) -> None:
    """Contact the server and see that a store can be kept there.

    Raises:
        UserError: an old server, an encoding that lacks characters, or a connection pooler in between.
        StoreError: it cannot be reached.
    """
    with database.read() as c:
        encoding, pid = c.exec_driver_sql("SELECT current_setting('server_encoding'), pg_backend_pid()").one()
        connection: Any = c.connection.dbapi_connection
    version, announced_pid = connection.info.server_version, connection.info.backend_pid
    if version < OLDEST:
        raise UserError(
            f"store {database.place!r} is on PostgreSQL {_release(version)}",
            allowed=[f"{_release(OLDEST)} and newer"],
            fix="name a database of a newer server",
        )
    if encoding not in _ENCODINGS:
        raise UserError(
            f"database {database.place!r} keeps text as {encoding}, which lacks characters that models write",
            allowed=_ENCODINGS,
            fix="make one with: createdb -E UTF8 -T template0 NAME",
        )
    if pid != announced_pid:
        raise UserError(
            f"store {database.place!r} is reached through a connection pooler, where a run's lock is not its own",
            fix="name the host and port of the PostgreSQL server itself",
        )


def _release(version: int) -> str:
    """ "12.3" of 120003, "9.6.1" of 90601."""
    first, rest = divmod(version, 10_000)
    return f"{first}.{rest // 100}.{rest % 100}" if first < 10 else f"{first}.{rest}"


def _engine(url: ServerUrl, **more: Any) -> sa.Engine:
    try:
        from kvgate.store.patience import PatientConnection

        parsed = sa.make_url(url.text).set(drivername="postgresql+psycopg")
        asked = parsed.normalized_query.get("options", (os.environ.get("PGOPTIONS", ""),))
        parsed = parsed.difference_update_query(["options"])
        settings = {"options": _options(" ".join(asked))} | _settings(parsed.query)
        engine = sa.create_engine(parsed, connect_args=settings, **more)
    except ModuleNotFoundError as e:
        raise UserError("a PostgreSQL store needs psycopg", fix="pip install 'kvgate[postgres]'") from e
    except (sa.exc.ArgumentError, ValueError) as e:
        raise UserError(
            f"store {url.shown!r} is not a database URL", fix="write postgresql://USER@HOST:PORT/DATABASE"
        ) from e

    @sa.event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, record: Any, words: Any, settings: Any) -> PatientConnection:
        connection = PatientConnection.connect(*words, **settings)
        connection.execute(_STAY)
        connection.commit()
        return connection

    return engine


def _options(asked: str) -> str:
    """Settings of the session on the server. What the person asked for (a search_path, say) comes last and wins."""
    ours = {
        "lock_timeout": BUSY_S * 1000,
        # Set for whole databases to guard against slow queries; ours may wait for another writer.
        "statement_timeout": 0,
        "tcp_keepalives_idle": _IDLE_S,
        "tcp_keepalives_interval": _EVERY_S,
        "tcp_keepalives_count": _COUNT,
    }
    return " ".join([*(f"-c {name}={value}" for name, value in ours.items()), asked]).strip()


def _settings(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of our end of the connection, without those that the URL has."""
    ours = {
        "connect_timeout": 10,
        "keepalives_idle": _IDLE_S,
        "keepalives_interval": _EVERY_S,
        "keepalives_count": _COUNT,
        # Keepalives say nothing while a sent query waits to be acknowledged; without this that takes 15 min.
        "tcp_user_timeout": _SILENT_S * 1000,
    }
    # PGCLIENTENCODING may name one that cannot carry what we send.
    return {k: v for k, v in ours.items() if k not in asked} | {"client_encoding": "utf8"}


def lock_number(text: str) -> int:
    """The 64-bit number under which PostgreSQL knows a lock."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


class AdvisoryLease:
    """A lease as a session-level advisory lock on a connection of its own, whose application name is the owner's.

    Every write of the store makes sure that the locks of this process are still held: a server that was restarted has
    forgotten them, and another process may be at work on the same run.
    """

    def __init__(self, url: ServerUrl, database: Database) -> None:
        self._url, self._held = url, dict[int, int]()  # lock -> pid of the server's process that holds it for us
        database.guards.append(self._still_held)

    @contextmanager
    def hold(self, key: str) -> Iterator[str]:
        owner = owner_name(os.getpid(), socket.gethostname())
        number = lock_number(f"kvgate run {key}")
        engine = _engine(self._url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with faults(self._url.shown):
            connection = engine.connect()
        try:
            with faults(self._url.shown):
                name = owner.encode("utf-8", "replace")[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
                connection.exec_driver_sql("SELECT set_config('application_name', %s, false)", (name,))
                _take(connection, number)
                pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            descriptor = _descriptor(connection)
            _descriptors.add(descriptor)
            self._held[number] = pid
            try:
                yield owner
            finally:
                _descriptors.discard(descriptor)
                del self._held[number]
        finally:
            # Closing the connection is what lets go; a server that has gone already did.
            with contextlib.suppress(Exception):
                connection.close()
            engine.dispose()

    def _still_held(self, connection: sa.Connection) -> None:
        for number, pid in self._held.items():
            if not connection.exec_driver_sql(_HOLDS, (pid, *_halves(number))).scalar():
                raise StoreError(
                    f"store {self._url.shown!r} has let go of this run's lock (a restart of the server, a broken "
                    "connection); what was recorded is kept: run the same command again"
                )


#: A lease's session says nothing for as long as its run takes, a writer's while an engine works.
#: The setting came with PostgreSQL 14.
_STAY = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
#: A 64-bit advisory lock shows its halves in pg_locks.
_HOLDS = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = %s "
    "AND classid::bigint = %s AND objid::bigint = %s AND objsubid = 1"
)
_HOLDER = (
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' "
    "AND l.granted AND l.classid::bigint = %s AND l.objid::bigint = %s AND l.objsubid = 1 "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def _halves(number: int) -> tuple[int, int]:
    unsigned = number & (1 << 64) - 1
    return unsigned >> 32, unsigned & (1 << 32) - 1


def _take(connection: sa.Connection, number: int) -> None:
    until = time.monotonic() + _RELEASE_S
    while not connection.exec_driver_sql("SELECT pg_try_advisory_lock(%s)", (number,)).scalar():
        holder = connection.exec_driver_sql(_HOLDER, _halves(number)).scalar() or ""
        if not (is_gone(holder) or holder == "") or time.monotonic() > until:
            raise StoreBusy(
                f"this check is already running{f' ({holder})' if holder else ''}", fix="wait for it, or end it"
            )
        time.sleep(0.05)


def _descriptor(connection: sa.Connection) -> int:
    raw = connection.connection.dbapi_connection
    return int(raw.fileno()) if raw is not None else -1


#: Sockets of held leases. A fork shares them; a child that outlives us would keep a run locked, so it lets go.
_descriptors: set[int] = set()


def _let_go() -> None:
    for fd in _descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)
    _descriptors.clear()


os.register_at_fork(after_in_child=_let_go)
