"""Where the store lies, and opening it: private rights, the right kind of file, the right revision."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa

from kvgate.core.errors import StoreError, UserError
from kvgate.store.database import Database, sqlite_database
from kvgate.store.lease import FileLease
from kvgate.store.schema import HEAD, REVISIONS
from kvgate.store.store import Store
from kvgate.store.writer import Redact

__all__ = ["Store", "default_location", "open_store"]

_MAGIC = b"SQLite format 3\0"
_FIX = "name a file in a folder that you can write, with KVGATE_STORE"


def default_location(env: Mapping[str, str] | None = None) -> Path:
    """KVGATE_STORE (a path, a folder, or sqlite:///PATH), else kvgate.db in the person's data folder.

    Raises:
        UserError: a URL of another database, or no home folder to be found.
    """
    wanted = (os.environ if env is None else env).get("KVGATE_STORE", "")
    if wanted:
        return _path_of(wanted)
    from platformdirs import user_data_path

    try:
        return user_data_path("kvgate").expanduser() / "kvgate.db"
    except RuntimeError as e:
        raise UserError("there is no home folder to keep the store in", fix=_FIX) from e


def open_store(location: str | Path | None = None, *, redact: Redact = lambda raw: raw) -> Store:
    """Open the store, and make it if it is not there: folder 0700, file 0600, migrated to our revision.

    Args:
        location: path, existing folder or sqlite:///PATH; None is `default_location()`.
        redact: applied to every answer before it is first written.

    Raises:
        UserError: a place that cannot be written, a full disk, a file that is not a store, a store of a newer kvgate.
    """
    path = default_location() if location is None else _path_of(location)
    _make_private(path, ours=location is None and not os.environ.get("KVGATE_STORE"))
    database = sqlite_database(path)
    try:
        _bring_to_head(database, path)
    except StoreError as e:
        database.close()
        raise UserError(str(e), fix="" if "KVGATE_STORE" in str(e) else _FIX) from e
    except BaseException:
        database.close()
        raise
    return Store(database, FileLease(path.with_name(path.name + ".leases")), path.parent, redact)


def _path_of(location: str | Path) -> Path:
    text = str(location)
    scheme, sep, _ = text.partition("://")
    if isinstance(location, str) and sep:
        # Only the scheme is repeated: the rest may hold a password.
        if scheme != "sqlite" or not text.startswith("sqlite:///") or len(text) == len("sqlite:///"):
            raise UserError(f"store {scheme + '://...'!r} is not supported", allowed=["a path", "sqlite:///PATH"])
        text = text.removeprefix("sqlite:///")
    if "\0" in text:
        raise UserError(f"store {text!r} is not a path", fix=_FIX)
    try:
        path = Path(text).expanduser()
        return Path(os.path.abspath(path / "kvgate.db" if path.is_dir() else path))  # noqa: PTH100 - keeps links
    except RuntimeError as e:
        raise UserError(f"store {text!r}: {e}", fix=_FIX) from e


def _make_private(path: Path, *, ours: bool) -> None:
    """Make folder and file before SQLite does, so that nobody else can read them at any instant."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ours:
            path.parent.chmod(0o700)  # a folder that a person chose keeps the rights they gave it
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as e:
        raise UserError(f"store {str(path)!r} cannot be opened for writing: {e.strerror}", fix=_FIX) from e
    try:
        status = os.fstat(fd)
        start = os.pread(fd, len(_MAGIC), 0) if stat.S_ISREG(status.st_mode) else b""
        if not stat.S_ISREG(status.st_mode) or (status.st_size and start != _MAGIC):
            raise UserError(f"{str(path)!r} is not a kvgate store but another kind of file", fix=_FIX)
    finally:
        os.close(fd)


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
        raise UserError(f"{str(path)!r} is an SQLite file, but not a kvgate store", fix=_FIX)
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
