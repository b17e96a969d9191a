"""Where the store lies, and its private rights. Loads no database library."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from kvgate.core.errors import UserError

_MAGIC = b"SQLite format 3\0"
_URL = "write postgresql://USER@HOST:PORT/DATABASE"
FIX = "name a file in a folder that you can write, with KVGATE_STORE"


class ServerUrl(NamedTuple):
    """A PostgreSQL URL as it was given, and without its password and options, as it may be shown."""

    text: str
    shown: str


def location_of(location: str | Path) -> Path | ServerUrl:
    """A file's path, or a server's URL.

    Raises:
        UserError: a URL of another database, or no path at all.
    """
    text = str(location) if isinstance(location, str) else ""
    if text.partition("://")[0] in ("postgres", "postgresql", "postgresql+psycopg"):
        return _server(text)
    if text.startswith(("postgres:", "postgresql:")):
        raise UserError("a database's URL has two slashes after the colon", fix=_URL)  # else a folder of that name
    return path_of(location)


def _server(url: str) -> ServerUrl:
    """The parts of a URL as SQLAlchemy reads them: a password may hold what would end it elsewhere.

    Raises:
        UserError: characters that must be escaped. Nothing of the URL is repeated, it may be the password's.
    """
    rest = url.partition("://")[2]
    _check_text(url)
    user, at, place = rest.rpartition("@")
    if "@" in user or ("/" in user.partition(":")[0]):
        raise UserError("the store's URL has an @ or a / that is not escaped", fix="write @ as %40 and / as %2F")
    options = place[len(place.partition("?")[0]) :]
    place = place.partition("?")[0].partition("#")[0]
    found = re.fullmatch(rf"({_HOST}(?:,{_HOST})*)(/.*)?", place)
    if found is None:
        return ServerUrl(url, "postgresql://...")
    shown = f"postgresql://{user.partition(':')[0]}{at}{place}"
    hosts, database = found[1], found[2] or ""
    if "," not in hosts and "%" not in hosts:
        return ServerUrl(url, shown)
    # SQLAlchemy knows neither several hosts nor a socket's folder here; to libpq this is the same.
    return ServerUrl(
        f"postgresql://{user}{at}{database or '/'}{options}{'&' if options else '?'}{_query(hosts)}", shown
    )


_HOST = r"(?:\[[0-9A-Fa-f:.]*\]|[^/:,]*)(?::[0-9]*)?"


def _query(hosts: str) -> str:
    """host=A,B&port=1,2 of A:1,B:2."""
    pairs = [host.rpartition(":") if re.search(r":[0-9]*$", host) else (host, "", "") for host in hosts.split(",")]
    names = ",".join(name.removeprefix("[").removesuffix("]") for name, _, _ in pairs)
    return f"host={names}" + (f"&port={','.join(port for _, _, port in pairs)}" if any(p for _, _, p in pairs) else "")


def _check_text(url: str) -> None:
    """libpq takes bytes that end in NUL: what follows one, the port for instance, would be lost.

    Raises:
        UserError: not UTF-8, also once %XX are bytes, or a NUL.
    """
    try:
        text = unquote(url, errors="strict")
        text.encode("utf-8")
    except UnicodeError:
        raise UserError("the store's URL is not valid UTF-8", fix="write each byte of its UTF-8 as %XX") from None
    if "\0" in text:
        raise UserError("the store's URL has a NUL in it", fix=_URL)


def default_location(env: Mapping[str, str] | None = None) -> Path | ServerUrl:
    """KVGATE_STORE (a path, a folder, sqlite:///PATH, or postgresql://...), else kvgate.db in the data folder.

    Raises:
        UserError: a URL of another database, or no home folder to be found.
    """
    wanted = (os.environ if env is None else env).get("KVGATE_STORE", "")
    return location_of(wanted) if wanted else data_folder() / "kvgate.db"


def data_folder() -> Path:
    """The person's own folder for kvgate's data.

    Raises:
        UserError: there is no home folder.
    """
    from platformdirs import user_data_path

    try:
        return user_data_path("kvgate").expanduser()
    except RuntimeError as e:
        raise UserError("there is no home folder to keep the store in", fix=FIX) from e


def path_of(location: str | Path) -> Path:
    """The absolute path of a location as a person gives it.

    Raises:
        UserError: a URL of another database, or no path at all.
    """
    text = str(location)
    scheme, sep, _ = text.partition("://")
    if isinstance(location, str) and sep:
        # Only the scheme is repeated: the rest may hold a password.
        if scheme != "sqlite" or not text.startswith("sqlite:///") or len(text) == len("sqlite:///"):
            raise UserError(
                f"store {scheme + '://...'!r} is not supported",
                allowed=["a path", "sqlite:///PATH", "postgresql://USER@HOST/DATABASE"],
            )
        text = text.removeprefix("sqlite:///")
    elif isinstance(location, str) and text.startswith(("sqlite:", "file:")):
        # As a path it would be a folder of that name here.
        raise UserError(
            f"store {text.partition(':')[0] + ':...'!r} is not supported", allowed=["a path", "sqlite:///PATH"]
        )
    if "\0" in text:
        raise UserError(f"store {text!r} is not a path", fix=FIX)
    try:
        path = Path(text).expanduser()
        return Path(os.path.abspath(path / "kvgate.db" if path.is_dir() else path))  # noqa: PTH100 - keeps links
    except RuntimeError as e:
        raise UserError(f"store {text!r}: {e}", fix=FIX) from e
    except OSError as e:
        raise UserError(f"store {text[:200]!r}: {e.strerror or e}", fix=FIX) from e


def make_private(path: Path, *, ours: bool) -> None:
    """Make folder and file before SQLite does, so that nobody else can read them at any instant.

    Args:
        ours: the folder is kvgate's own data folder, made private even if something else made it.

    Raises:
        UserError: it cannot be written, or is another kind of file.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ours:
            path.parent.chmod(0o700)  # a folder that a person chose keeps the rights they gave it
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as e:
        raise UserError(f"store {str(path)!r} cannot be opened for writing: {e.strerror}", fix=FIX) from e
    try:
        status = os.fstat(fd)
        start = os.pread(fd, len(_MAGIC), 0) if stat.S_ISREG(status.st_mode) else b""
        if not stat.S_ISREG(status.st_mode) or (status.st_size and start != _MAGIC):
            raise UserError(f"{str(path)!r} is not a kvgate store but another kind of file", fix=FIX)
    finally:
        os.close(fd)
