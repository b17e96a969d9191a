"""Puts the four documents into a folder: all rendered first, then each moved into place whole."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kvgate.core.errors import StoreError
from kvgate.report.html import html
from kvgate.report.json import check_json
from kvgate.report.junit import junit
from kvgate.report.markdown import markdown
from kvgate.report.model import RunView


def write_all(view: RunView, folder: Path, *, outputs: bool = True) -> Mapping[str, Path]:
    """Write report.html, report.md, junit.xml and check.json (mode 0600) into `folder`.

    A folder that does not exist is made with mode 0700; one that does keeps its mode. A reader never sees half a file:
    each is written beside its place and renamed.

    Returns:
        Name of the document -> its path.

    Raises:
        StoreError: the disk is full or the folder cannot be written.
    """
    paths = {name: folder / name for name in ("report.html", "report.md", "junit.xml", "check.json")}
    documents = {
        "report.html": html(view, outputs=outputs),
        "report.md": markdown(view, outputs=outputs),
        "junit.xml": junit(view),
        "check.json": json.dumps(check_json(view, str(paths["report.html"])), indent=2, allow_nan=False) + "\n",
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in documents.items():
            _replace(paths[name], text)
    except OSError as error:
        raise StoreError(
            f"cannot write the report into {folder}: {error.strerror or error}; "
            "what was measured is kept: make room, or name another folder with --out, and run the same command again"
        ) from error
    return paths


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600, and nobody's symlink
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
