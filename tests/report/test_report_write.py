"""Files: whole or not at all, for the owner's eyes."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from report_runs import realistic

from kvgate.core.errors import StoreError
from kvgate.report import write
from kvgate.report.write import write_all

NAMES = ["check.json", "junit.xml", "report.html", "report.md"]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_four_private_files(tmp_path: Path) -> None:
    """A new folder is 0700, its files are 0600, and nothing else lies there, even under an open umask."""
    before = os.umask(0)
    try:
        paths = write_all(realistic(), tmp_path / "a" / "run")
    finally:
        os.umask(before)

    assert names(tmp_path / "a" / "run") == NAMES == sorted(paths)
    assert stat.S_IMODE((tmp_path / "a" / "run").stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in paths.values()} == {0o600}


def test_the_json_names_the_page(tmp_path: Path) -> None:
    """`report` in check.json is where the HTML lies."""
    paths = write_all(realistic(), tmp_path)

    assert json.loads(paths["check.json"].read_text())["report"] == str(paths["report.html"])


def test_a_full_disk_keeps_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No half file, no leftovers, and an error that says what happened."""
    write_all(realistic(), tmp_path)
    old = (tmp_path / "report.html").read_text()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write.os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_all(realistic(), tmp_path)

    assert (tmp_path / "report.html").read_text() == old
    assert names(tmp_path) == NAMES


def test_a_planted_link_is_replaced_not_followed(tmp_path: Path) -> None:
    """A symbolic link in the place of the report does not lead the write elsewhere."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.html").symlink_to(victim)

    write_all(realistic(), folder)

    assert victim.read_text() == "mine"
    assert not (folder / "report.html").is_symlink()


def test_the_choice_about_outputs_reaches_every_file(tmp_path: Path) -> None:
    """Without outputs no file holds a prompt or an answer."""
    paths: Any = write_all(realistic(), tmp_path, outputs=False)

    for path in paths.values():
        text = path.read_text()
        assert "Oslo" not in text
        assert "Prompt of" not in text
