"""One process a run. The lock belongs to the operating system, so it is free as soon as its holder is dead."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from kvgate.core.errors import StoreBusy, StoreError
from kvgate.store.faults import KEPT, faults


def owner_name(pid: int, host: str) -> str:
    """What a holder is called, in messages and in the run's row."""
    return f"pid {pid} on {host}"


def is_gone(owner: str) -> bool:
    """True if `owner` was a process of this machine that has ended; for the eye only, a pid may be given again."""
    found = re.fullmatch(r"pid (\d+) on (.*)", owner, re.DOTALL)
    if found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


class Lease(Protocol):
    """What a store needs: SQLite takes a file lock, a database server would take an advisory lock."""

    def hold(self, key: str) -> AbstractContextManager[str]:
        """Hold `key` alone until the end of the block; gives the owner's name as it may be shown.

        Raises:
            StoreBusy: another process holds it; found out at once, without waiting.
        """
        ...


class FileLease:
    """`flock` on one small file a key, in a folder beside the database. The file holds the owner's pid."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, dict[int, Path]()  # descriptor -> the locked file's name

    def still_held(self, connection: object) -> None:
        """Called before every write: a lock on a file that was removed excludes nobody.

        Raises:
            StoreError: the file is gone, or another process has made one of that name.
        """
        for fd, path in self._held.items():
            if not _is_current(fd, path):
                raise StoreError(
                    f"this run's lock {str(path)!r} was removed, and another process may be at work on the run{KEPT}"
                )

    @contextmanager
    def hold(self, key: str) -> Iterator[str]:
        path = self._folder / (hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32] + ".lock")
        with faults(str(self._folder)):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = _take(path)
        _descriptors.add(fd)
        self._held[fd] = path
        try:
            pid, host = os.getpid(), socket.gethostname()
            with faults(str(self._folder)):
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps({"pid": pid, "host": host}).encode(), 0)
            yield owner_name(pid, host)
        finally:
            del self._held[fd]
            if fd in _descriptors:
                _descriptors.discard(fd)
                # Removed while it is still locked: whoever opened it meanwhile sees that the name has gone.
                with contextlib.suppress(OSError):
                    if _is_current(fd, path):  # else it is another's
                        path.unlink()
                os.close(fd)


#: Locks of this process. A fork shares them; a child that outlives us would keep a run locked, so it lets go.
_descriptors: set[int] = set()


def _let_go() -> None:
    for fd in _descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)
    _descriptors.clear()


os.register_at_fork(after_in_child=_let_go)


def _take(path: Path) -> int:
    """A locked descriptor of the file that `path` names now."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_current(fd, path):
                return fd
        except BlockingIOError:
            busy = StoreBusy(f"this check is already running{_holder(fd)}", fix="wait for it, or end it")
            os.close(fd)
            raise busy from None
        except OSError as e:
            os.close(fd)
            if e.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise StoreError(
                    f"the file system of {str(path.parent)!r} has no file locks; name a local file with KVGATE_STORE"
                ) from e
            raise
        os.close(fd)  # its last holder removed it between our open and our lock


def _is_current(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    """' (pid 12 on host)' if the holder has said so."""
    try:
        owner = json.loads(os.pread(fd, 1000, 0))
        return f" (pid {int(owner['pid'])} on {owner['host']})"
    except (ValueError, KeyError, TypeError, OSError):
        return ""
