"""sha256 of big files, remembered in the user's cache by real path, size and modification time; where that cache is."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_cache_path

from kvgate.core.errors import UserError

CACHE_VARIABLE = "KVGATE_CACHE"
#: A file changed so recently may change again within one tick of its clock; its digest is not remembered.
_SETTLED_NS = 2_000_000_000


def cache_root() -> Path:
    """The folder for models and digests; $KVGATE_CACHE wins over the platform's cache folder. It may not exist."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else user_cache_path("kvgate")


def file_sha256(path: Path) -> str:
    """Digest of a file's content; read only once as long as path, size and modification time stay.

    A cache that cannot be read or written is as good as none.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        before = path.stat()
        key = {"path": os.path.realpath(path), "size": before.st_size, "mtime_ns": before.st_mtime_ns}
        note = cache_root() / "digests" / (hashlib.sha256(str(key["path"]).encode()).hexdigest() + ".json")
        known = _recall(note, key)
        if known is not None:
            return known
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = path.stat()
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from None
    unchanged = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    if unchanged and time.time_ns() - after.st_mtime_ns > _SETTLED_NS:
        _remember(note, {**key, "sha256": digest})
    return digest


def _recall(note: Path, key: Mapping[str, object]) -> str | None:
    try:
        body = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(body, dict) or {k: body.get(k) for k in key} != dict(key):
        return None
    digest = body.get("sha256")
    return digest if isinstance(digest, str) and len(digest) == 64 else None


def _remember(note: Path, body: Mapping[str, object]) -> None:
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=note.parent, prefix=".part-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(body, file)
        Path(name).replace(note)
    except OSError:
        # A read-only or full cache costs time, not the answer.
        return
