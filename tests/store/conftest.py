"""Fixtures of the store's tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgate.store.open import Store, open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "data" / "kvgate.db"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of an open store runs on both databases, unless it looks at the file or is about SQLite itself."""
    if "store" in metafunc.fixturenames:
        about_the_file = "path" in metafunc.fixturenames or metafunc.definition.get_closest_marker("sqlite")
        metafunc.parametrize("store", ["sqlite"] if about_the_file else ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An open, empty store."""
    name = "path" if request.param == "sqlite" else "postgres_url"
    with open_store(request.getfixturevalue(name)) as s:
        yield s


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    """A folder of a person who is not root. A test run as root becomes `nobody` for its duration."""
    with tempfile.TemporaryDirectory(prefix="kvgate-test-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if os.getuid() == 0:
                os.seteuid(0)
            folder.chmod(0o700)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 1 MiB; None where the system does not let us mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
