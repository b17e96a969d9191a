"""The files of an answer, written where a person says; what lies there already is left alone unless they insist."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kvgate.core.errors import UserError


def write_files(files: Mapping[str, str], folder: str, *, force: bool = False) -> tuple[Path, ...]:
    """Write each file into a folder, which is made if it is not there. Either all are new or, without `force`, none.

    Raises:
        UserError: there is nothing to write, one of them is there already, or the folder cannot be written.
    """
    if not files:
        raise UserError("this engine needs no files: everything is on the command line", fix="leave --write out")
    into = Path(folder).expanduser()
    targets = {into / name: text for name, text in files.items()}
    there = [str(t) for t in targets if os.path.lexists(t)]
    if there and not force:
        raise UserError(f"{', '.join(there)} is there already", fix="name another folder, or add --force")
    try:
        into.mkdir(parents=True, exist_ok=True)
        for target, text in targets.items():
            _write(target, text, force=force)
    except OSError as e:
        raise UserError(f"cannot write into {into}: {e.strerror or e}", fix="name another folder") from None
    return tuple(targets)


def _write(target: Path, text: str, *, force: bool) -> None:
    """One file; a link in its place is replaced, not followed."""
    if force and target.is_symlink():
        target.unlink()
    with target.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
        file.write(text)
