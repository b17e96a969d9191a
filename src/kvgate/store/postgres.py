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
from collections.abc import Iterator
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
#: How long to wait for the server to notice that a holder, a process of this machine, is dead.
_RELEASE_S = 5.0
_WRITE_LOCK = "kvgate: one writer"
_MAX_NAME_BYTES = 63  # of application_name


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


def _engine(url: ServerUrl, **more: Any) -> sa.Engine:
    idle, every, count = _SILENT_S // 2, _SILENT_S // 6, 3
    server_side = f"-c tcp_keepalives_idle={idle} -c tcp_keepalives_interval={every} -c tcp_keepalives_count={count}"
    try:
        parsed = sa.make_url(url.text).set(drivername="postgresql+psycopg")
        # What a person put into ?options= (a search_path, say) comes last and wins.
        options = f"-c lock_timeout={BUSY_S * 1000} {server_side} {parsed.query.get('options', '')}".strip()
        parsed = parsed.difference_update_query(["options"])
        return sa.create_engine(
            parsed,
            connect_args={
                "options": options,
                "connect_timeout": 10,
                "keepalives_idle": idle,
                "keepalives_interval": every,
                "keepalives_count": count,
                # Keepalives say nothing while a sent query waits to be acknowledged; without this that takes 15 min.
                "tcp_user_timeout": _SILENT_S * 1000,
            },
            **more,
        )
    except ModuleNotFoundError as e:
        raise UserError("a PostgreSQL store needs psycopg", fix="pip install 'kvgate[postgres]'") from e
    except (sa.exc.ArgumentError, ValueError) as e:
        raise UserError(
            f"store {url.shown!r} is not a database URL", fix="write postgresql://USER@HOST:PORT/DATABASE"
        ) from e


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
