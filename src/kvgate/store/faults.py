"""A database's errors as one line of ours."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from kvgate.core.errors import KvgateError, StoreError

#: How long a transaction waits for another process's before it gives up.
BUSY_S = 30

#: What to do after a fault that leaves the records whole, and after one that does not.
KEPT = "; what was recorded is kept: run the same command again"
RESTORE = "restore a copy, or name another one with KVGATE_STORE"

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def faults(place: str) -> Iterator[None]:
    """Turn what the database or the file system raises into a StoreError that names `place`.

    Raises:
        StoreError: a full disk, a lock held too long, a read-only or damaged file, a row that breaks a constraint.
    """
    try:
        yield
    except exc.StatementError as e:
        if isinstance(e.orig, KvgateError):
            raise e.orig from None  # ours, raised while a value was turned into a parameter
        raise StoreError(_line(place, e.orig)) from e
    except sqlite3.Error as e:
        raise StoreError(_line(place, e)) from e
    except OSError as e:
        if e.errno in _FULL:
            raise StoreError(full(place)) from e
        raise StoreError(f"store {place!r} cannot be written: {e.strerror or e}") from e


def full(place: str) -> str:
    """The line for a full disk."""
    return (
        f"the disk that holds the store {place!r} is full; nothing already recorded is lost: "
        "free space and run the same command again"
    )


def _line(place: str, error: BaseException | None) -> str:
    # The low byte is the primary code; extended codes say which system call failed.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if error is not None and hasattr(error, "sqlstate"):  # psycopg's errors carry it, sqlite3's do not
        return _server_line(place, str(error.sqlstate or ""), _server_said(error))
    said = " ".join(str(error).split())
    name = getattr(error, "sqlite_errorname", said)
    if code == sqlite3.SQLITE_FULL or name == "SQLITE_IOERR_SHMSIZE":  # the -shm file takes room before the log does
        return full(place)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"store {place!r} stayed locked by another process for {BUSY_S} s; end it or wait, and run again"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"store {place!r} cannot be written: {said}"
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return f"store {place!r} is damaged: {said}; {RESTORE}"
    if code == sqlite3.SQLITE_IOERR:
        return f"store {place!r}: {said} ({name}); see that its disk or network folder works{KEPT}"
    if code == sqlite3.SQLITE_CONSTRAINT:
        return f"store {place!r} refused a row: {said}"
    return f"store {place!r}: {said}"


def _server_said(error: BaseException) -> str:
    """The error's own sentences, without the statement and a caret below it, and without psycopg's heading."""
    told = getattr(error, "diag", None)
    primary, detail = getattr(told, "message_primary", None), getattr(told, "message_detail", None)
    said = " ".join(" ".join(x for x in (primary, detail) if x).split()) or " ".join(str(error).split())
    return said.removeprefix("connection failed: ").removeprefix("connection is bad: ")


def _server_line(place: str, state: str, said: str) -> str:
    """The line for an error of a database server, by its SQLSTATE; empty is a connection that was not made or broke."""
    if state == "53100":
        return full(place)
    if state in ("55P03", "40P01"):
        return f"store {place!r} stayed locked by another process for {BUSY_S} s; end it or wait, and run again"
    if state in ("25006", "42501"):
        return f"store {place!r} cannot be written: {said}"
    if state.startswith("XX"):
        return f"store {place!r} is damaged: {said}; {RESTORE}"
    if state.startswith("23"):
        return f"store {place!r} refused a row: {said}"
    if state == "57014":  # cancelled: by a timeout that somebody set, or by an administrator
        return f"store {place!r}: {said}{KEPT}"
    if not state or state.startswith(("08", "25P03", "25P04", "28", "3D", "53", "57P")):
        return f"store {place!r} cannot be reached: {said}{KEPT}"
    return f"store {place!r}: {said}"
