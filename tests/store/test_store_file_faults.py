"""What other hands do to the files of an SQLite store: removed, damaged, linked, on a full or broken disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_samples import SUITE, VERSION, answer, begin, case, child, read

from kvgate.core.errors import StoreBusy, StoreError, UserError
from kvgate.core.observation import Raw, Work
from kvgate.store.open import open_store

CASES = [case(i) for i in range(12)]
WORK = [Work("q8_0", c.id) for c in CASES]


def refused(location: object, create: bool = True) -> str:
    with pytest.raises(UserError) as e:
        open_store(location, create=create)  # type: ignore[arg-type]
    assert "\n" not in str(e.value)
    return str(e.value)


def fails(do: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as e:
        do()
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_a_log_that_was_removed_is_not_written_on(path: Path, end: str) -> None:
    """Another process would make a new one, and neither would see the other's locks: the next write is refused."""
    with open_store(path) as s:
        run_id = begin(s, CASES)
        answer(s, run_id, WORK[0], Raw({}))
        path.with_name(path.name + end).unlink()
        line = fails(lambda: answer(s, run_id, WORK[1], Raw({})))
        assert f"has lost its kvgate.db{end}: it was removed or replaced while it was in use" in line
    with open_store(path) as s:
        assert s.done(run_id, SUITE, VERSION) == {WORK[0]: "done"}
        answer(s, run_id, WORK[1], Raw({}))


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_that_was_removed_stops_the_writer(path: Path, again: bool) -> None:
    """Never two writers: whoever lost the file of its lease writes no more, also where another process has a new one,
    whose file it leaves alone."""
    leases = path.parent / "kvgate.db.leases"
    with open_store(path) as first, open_store(path) as second:
        with pytest.raises(StoreError, match=r"this run's lock .* was removed"), first.lease("key"):
            run_id = begin(first, CASES)
            shutil.rmtree(leases)
            if again:
                with second.lease("key"):
                    assert "was removed, and another process may be at work" in fails(
                        lambda: answer(first, run_id, WORK[0], Raw({}))
                    )
                    answer(second, run_id, WORK[0], Raw({}))
        with second.lease("key"), pytest.raises(StoreBusy), first.lease("key"):
            pass


def test_the_end_of_a_lost_lease_leaves_anothers_lock(path: Path) -> None:
    """The new holder's file is not removed by the old one."""
    with open_store(path) as first, open_store(path) as second:
        with pytest.raises(StoreError), first.lease("key"):
            shutil.rmtree(path.parent / "kvgate.db.leases")
            held = second.lease("key")
            held.__enter__()
        with pytest.raises(StoreBusy), first.lease("key"):
            pass
        held.__exit__(None, None, None)


def test_a_link_is_the_file_it_leads_to(path: Path, tmp_path: Path) -> None:
    """By whatever name it is opened, one process works on a run, and a removed log is noticed."""
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with open_store(path) as s, open_store(link) as linked:
        with s.lease("key"), pytest.raises(StoreBusy), linked.lease("key"):
            pass
        path.with_name("kvgate.db-wal").unlink()
        assert "has lost its kvgate.db-wal" in fails(lambda: linked.begin_run("other", {}))
        path.with_name("kvgate.db-wal").touch()
        assert "has lost its kvgate.db-wal" in fails(lambda: s.begin_run("other", {}))


@contextmanager
def much(path: Path) -> Iterator[Callable[[], object]]:
    """An open store of some MB in the file itself; gives what reads it all."""
    with open_store(path) as s:
        run_id = begin(s, CASES)
        for work in WORK[:-1]:
            answer(s, run_id, work, Raw({"text": os.urandom(100_000).hex()}))
    with open_store(path) as s:
        yield lambda: read(s, run_id)


@pytest.mark.parametrize("left", [0, 5000, 400_000])
def test_a_file_that_was_cut_off(path: Path, left: int) -> None:
    """In use and when it is opened: damaged, with one way out, not two."""
    with much(path) as everything:
        os.truncate(path, left)
        line = fails(everything)
        assert "is damaged: " in line and line.endswith("restore a copy, or name another one with KVGATE_STORE")


def test_a_file_that_was_overwritten(path: Path) -> None:
    """Random bytes in its pages are found while it is used, and when it is opened."""
    with much(path) as everything:
        with path.open("r+b") as f:
            f.seek(4096)
            f.write(os.urandom(path.stat().st_size - 4096))
        assert "is damaged: " in fails(everything)
    line = refused(path)
    assert "is damaged: " in line and line.endswith("; restore a copy, or name another one with KVGATE_STORE")


def test_an_empty_file_is_no_store_yet(path: Path) -> None:
    """What an opening that was killed leaves: a check goes on from there, a verb that reads does not make it one."""
    path.parent.mkdir()
    path.touch()
    assert "there is no store at" in refused(path, create=False)
    assert path.stat().st_size == 0 or not path.with_name("kvgate.db-wal").exists()

    open_store(path).close()
    open_store(path, create=False).close()


@pytest.mark.parametrize("url", ["file:x.db?mode=ro", "sqlite:x.db", "sqlite:/x.db"])
def test_a_url_of_a_file_is_not_a_folders_name(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file:x.db` is refused, and does not become a file of that name here."""
    monkeypatch.chdir(tmp_path)

    assert "is not supported; allowed: a path, sqlite:///PATH" in refused(url)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_at_every_step(small_disk: Path | None, tmp_path: Path) -> None:
    """Making a store, opening one, taking a lease: each is one line that says so, and works with room again."""
    if small_disk is None:
        pytest.skip("no file system can be mounted here")
    place, junk = small_disk / "kvgate.db", small_disk / "junk"
    fill(junk)
    assert "is full; nothing already recorded is lost" in refused(place)
    junk.unlink()
    with open_store(place) as s:
        run_id = begin(s, CASES)
    fill(junk)
    assert "is full; nothing already recorded is lost" in refused(place)
    junk.unlink()
    with open_store(place) as s:
        fill(junk)
        assert "is full; nothing already recorded is lost" in fails(lambda: s.lease("key").__enter__())
        junk.unlink()
        with s.lease("key"):
            answer(s, run_id, WORK[0], Raw({}))


def fill(file: Path) -> None:
    fd = os.open(file, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        os.close(fd)


LIMITED = """
import resource, sys
from store_samples import *
from kvgate.core.errors import StoreError
from kvgate.core.observation import Raw, Work
from kvgate.store.open import open_store
with open_store(sys.argv[1]) as s:
    run_id = begin(s, [case(i) for i in range(12)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    for i in range(12):
        try:
            answer(s, run_id, Work("q8_0", case(i).id), Raw({"text": np.random.default_rng(i).bytes(100_000).hex()}))
        except StoreError as e:
            print(i)
            print(e)
            break
"""


def test_a_disk_that_fails_is_named(path: Path) -> None:
    """Not full and not damaged: the system's error, what to look at, and all that was accepted is there."""
    out, err = child(LIMITED, str(path)).communicate(timeout=60)
    accepted, line = out.splitlines()

    assert err == "" and int(accepted) > 3
    assert "disk I/O error (SQLITE_IOERR_WRITE); see that its disk or network folder works; what was recorded" in line
    with open_store(path) as s:
        run_id = s.runs()[0].run_id
        assert len(read(s, run_id).raws) == int(accepted)
        answer(s, run_id, WORK[int(accepted)], Raw({}))
