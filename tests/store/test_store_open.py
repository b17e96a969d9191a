"""Opening: place, rights, the right kind of file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from store_samples import SRC, begin, child

from kvgate.core.errors import StoreError, UserError
from kvgate.store.open import default_location, open_store


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(location: object) -> str:
    """The one line with which a place is refused."""
    with pytest.raises(UserError) as e:
        open_store(location)  # type: ignore[arg-type]
    assert "\n" not in str(e.value)
    return str(e.value)


def test_rights_are_private_whatever_the_umask(path: Path) -> None:
    """Folder 0700; database, log and lock files readable by their owner alone."""
    before = os.umask(0)
    try:
        with open_store(path) as s, s.lease("key"):
            begin(s)
            files = [p for p in path.parent.rglob("*") if p.is_file()]
            folders = [path.parent, *(p for p in path.parent.rglob("*") if p.is_dir())]

            assert {p.name for p in files} >= {"kvgate.db", "kvgate.db-wal"} and len(folders) == 2
            assert [p for p in files if mode(p) != 0o600] == []
            assert [p for p in folders if mode(p) != 0o700] == []
    finally:
        os.umask(before)


def test_rights_are_private_from_the_first_instant(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before SQLite has opened it, the file is already for its owner alone."""
    seen = []
    monkeypatch.setattr("kvgate.store.open._bring_to_head", lambda database, create: seen.append(mode(path)))
    open_store(path).close()

    assert seen == [0o600]


def test_a_folder_of_the_person_keeps_its_rights(tmp_path: Path) -> None:
    """Only folders that kvgate makes, and its own data folder, are made private."""
    tmp_path.chmod(0o755)
    with open_store(tmp_path / "x.db"):
        assert mode(tmp_path) == 0o755
        assert mode(tmp_path / "x.db") == 0o600


def test_the_own_data_folder_is_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default folder becomes 0700 even if something else made it first."""
    monkeypatch.delenv("KVGATE_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "kvgate").mkdir(mode=0o755)

    with open_store("") as s:
        assert s.folder == tmp_path / "kvgate" == default_location().parent
        assert mode(s.folder) == 0o700


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("/x/y.db", "/x/y.db"),
        ("sqlite:////x/y.db", "/x/y.db"),
        ("~/y.db", str(Path("~/y.db").expanduser())),
        (str(SRC), str(SRC / "kvgate.db")),
        ("y.db", str(Path.cwd() / "y.db")),
    ],
)
def test_the_environment_names_the_place(value: str, path: str) -> None:
    """KVGATE_STORE may be a path, an existing folder, or an SQLite URL."""
    assert default_location({"KVGATE_STORE": value}) == Path(path)


@pytest.mark.parametrize("url", ["mysql://me:s3cret@h", "sqlite://", "sqlite:///", "http://u:s3cret@x/"])
def test_another_database_is_refused_without_its_password(url: str) -> None:
    """A URL that is not an SQLite file is one line that does not repeat the password."""
    said = refused(url)

    assert "is not supported" in said and "sqlite:///PATH" in said
    assert "s3cret" not in said


def test_another_kind_of_file_is_refused_and_kept(tmp_path: Path) -> None:
    """A file that is not SQLite is not touched."""
    for i, content in enumerate([b"x", b"hello, this is text\n" * 100, b"GGUF" + bytes(5000), b"SQLite"]):
        file = tmp_path / f"{i}"
        file.write_bytes(content)
        file.chmod(0o644)

        assert "not a kvgate store but another kind of file" in refused(file)
        assert file.read_bytes() == content and mode(file) == 0o644


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    """A FIFO does not hang the opening."""
    os.mkfifo(tmp_path / "pipe")

    assert "another kind of file" in refused(tmp_path / "pipe")


def test_another_sqlite_file_is_refused_and_kept(tmp_path: Path) -> None:
    """Somebody else's SQLite database gets none of our tables."""
    file = tmp_path / "mail.db"
    with sqlite3.connect(file) as c:
        c.execute("CREATE TABLE mails (id)")

    assert "an SQLite file, but not a kvgate store" in refused(file)
    with sqlite3.connect(file) as c:
        assert c.execute("SELECT name FROM sqlite_master").fetchall() == [("mails",)]


def test_a_newer_schema_is_refused(path: Path) -> None:
    """A store of a newer kvgate is not opened, and says what to do."""
    open_store(path).close()
    with sqlite3.connect(path) as c:
        c.execute("UPDATE alembic_version SET version_num = '9999'")

    said = refused(path)

    assert "'9999'" in said and "upgrade kvgate" in said


def test_a_damaged_file_is_refused(path: Path) -> None:
    """A store whose pages are overwritten is one line, not a traceback."""
    with open_store(path) as s:
        begin(s)
    size = path.stat().st_size
    with path.open("r+b") as f:
        f.seek(24)
        f.write(os.urandom(size - 24))

    assert "kvgate.db" in refused(path)


def test_a_folder_that_cannot_be_written(ordinary_folder: Path) -> None:
    """A read-only folder is one line with the way out."""
    ordinary_folder.chmod(0o500)

    said = refused(ordinary_folder / "new" / "x.db")

    assert "cannot be opened for writing: Permission denied" in said and "KVGATE_STORE" in said


def test_a_file_that_cannot_be_written(ordinary_folder: Path) -> None:
    """So is a read-only store in a folder that can be written."""
    file = ordinary_folder / "x.db"
    open_store(file).close()
    file.chmod(0o400)

    assert "cannot be opened for writing: Permission denied" in refused(file)


def test_a_store_in_a_read_only_folder(ordinary_folder: Path) -> None:
    """So is a writable store whose folder takes no log file."""
    open_store(ordinary_folder / "x.db").close()
    ordinary_folder.chmod(0o500)

    said = refused(ordinary_folder / "x.db")

    assert "KVGATE_STORE" in said


def test_a_path_below_a_file(tmp_path: Path) -> None:
    """A file where a folder should be is one line."""
    (tmp_path / "f").write_text("")

    assert "cannot be opened for writing" in refused(tmp_path / "f" / "x.db")
    assert "is not a path" in refused("a\0b")


def test_awkward_names_work(tmp_path: Path) -> None:
    """Blanks, percent signs, question marks and non-ASCII letters may stand in the path."""
    file = tmp_path / "ü % b?mode=ro #1" / "läufe.db"
    with open_store(file) as s:
        run_id = begin(s)
    with open_store(str(file)) as s:
        assert s.find_run("last").run_id == run_id


def test_a_moved_store_opens(path: Path, tmp_path: Path) -> None:
    """After closing, the one file holds everything."""
    with open_store(path) as s:
        run_id = begin(s)
    shutil.copy(path, tmp_path / "copy.db")

    with open_store(tmp_path / "copy.db") as s:
        assert s.find_run("last").run_id == run_id


def test_first_openers_do_not_disturb_each_other(path: Path) -> None:
    """Four processes that make the same store at once all get it."""
    code = "import sys; from kvgate.store import open_store; s = open_store(sys.argv[1]); s.begin_run('k', {})"
    children = [child(code, str(path)) for _ in range(4)]
    said = [(c.communicate(timeout=60)[1], c.returncode) for c in children]

    assert said == [("", 0)] * 4
    with open_store(path) as s:
        assert len(s.runs()) == 4


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_is_not_written_on(path: Path, replaced: bool) -> None:
    """SQLite would go on in a file without a name: the next write is refused, and says what happened."""
    with open_store(path) as store:
        run_id = store.begin_run("key", {})
        for part in path.parent.glob(path.name + "*"):
            if part.is_file():
                part.unlink()
        if replaced:
            with open_store(path) as other:
                other.begin_run("other", {})
        with pytest.raises(StoreError, match="was removed or replaced while it was in use") as e:
            store.set_state(run_id, "finished")
    assert "\n" not in str(e.value)
