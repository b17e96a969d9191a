"""Several processes, and processes that are killed."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from store_samples import SUITE, VERSION, begin, block, case, child, read

from kvgate.core.errors import StoreBusy
from kvgate.core.observation import Work
from kvgate.store.open import Store, open_store

#: Writes answers with positions on its key and says each one that was committed.
WRITER = """
import sys
from store_samples import *
from kvgate.core.observation import Raw, Work
from kvgate.store.open import open_store
path, key, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open_store(path) as store, store.lease(key):
    old = store.run_for(key)
    run_id = old.run_id if old else begin(store, [case(i) for i in range(n)], key)
    print("run", run_id, flush=True)
    done = store.done(run_id, SUITE, VERSION)
    for i in range(n):
        work = Work("*", case(i).id)
        if work not in done:
            answer(store, run_id, work, Raw({"text": "x" * 2000}), [block(work.case_id, "q8_0", n=400, seed=i)])
            print(work.case_id, flush=True)
    store.set_state(run_id, "finished")
"""
#: Holds a lease until it is ended.
HOLDER = """
import sys, time
from kvgate.store.open import open_store
with open_store(sys.argv[1]) as store, store.lease(sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lease_is_for_one(store: Store, path: Path) -> None:
    """The second process on a key is told at once who has it; other keys are free."""
    holder = child(HOLDER, str(path), "key")
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(StoreBusy, match=f"pid {holder.pid} on ") as e, store.lease("key"):
            pass
        assert "\n" not in str(e.value)
        with store.lease("other"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with store.lease("key"):
        pass


def test_a_lease_is_for_one_within_a_process(store: Store, path: Path) -> None:
    """Two stores of one process exclude each other too; an exception sets the key free."""
    with open_store(path) as other:
        with store.lease("key"), pytest.raises(StoreBusy, match=f"pid {os.getpid()}"), other.lease("key"):
            pass
        with pytest.raises(RuntimeError), store.lease("key"):
            raise RuntimeError
        with other.lease("key"):
            pass
    assert list((path.parent / "kvgate.db.leases").iterdir()) == []


def test_many_who_want_one_lease(store: Store, path: Path) -> None:
    """However often the lock file is removed and made again, never two processes hold the key."""
    script = """
import os, sys
from kvgate.core.errors import StoreBusy
from kvgate.store.lease import FileLease
from pathlib import Path
lease, got = FileLease(Path(sys.argv[1])), 0
while got < 150:
    try:
        with lease.hold("key"):
            os.close(os.open(sys.argv[2], os.O_CREAT | os.O_EXCL))
            os.unlink(sys.argv[2])
            got += 1
    except StoreBusy:
        pass
"""
    folder = path.parent / "kvgate.db.leases"
    children = [child(script, str(folder), str(path.parent / "inside")) for _ in range(3)]

    assert [c.communicate(timeout=120)[1] for c in children] == [""] * 3
    assert list(folder.iterdir()) == []


def test_a_forked_child_does_not_keep_the_lease(store: Store, path: Path) -> None:
    """The lock is the process's own: a fork that outlives it leaves the key free."""
    script = """
import os, sys, time
from kvgate.store.open import open_store
with open_store(sys.argv[1]) as store, store.lease("key"):
    if os.fork() == 0:
        time.sleep(600)
    print("held", flush=True)
    os.kill(os.getpid(), 9)
"""
    holder = child(script, str(path))
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    holder.wait(timeout=30)
    survivors = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _runs(p, script)]
    try:
        assert len(survivors) == 1
        with store.lease("key"):
            pass
    finally:
        for pid in survivors:
            os.kill(pid, 9)
        holder.stdout.close()


def _runs(process: Path, script: str) -> bool:
    try:
        return script.encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_the_owner_is_noted_for_the_eye(store: Store) -> None:
    """The run's row says who works on it, and no longer than that."""
    old = begin(store)
    with store.lease("key"):
        assert f"pid {os.getpid()} on " in store.find_run(old).lease_owner
        new = begin(store)
        row = store.find_run(new)
        assert row.lease_owner.startswith(f"pid {os.getpid()}") and row.lease_until > row.created[:19]
    assert store.find_run(new).lease_owner == store.find_run(new).lease_until == ""


def test_signs_of_life_move_the_date(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work moves `lease_until` on, once a minute, and only that of our own run."""
    with store.lease("key"):
        run_id = begin(store, [case(i) for i in range(3)])
        stranger = begin(store, [case(0)], key="other")
        with store._db.write() as c:
            c.exec_driver_sql("UPDATE runs SET lease_until = 'old'")
        store.start_work(run_id, SUITE, VERSION, Work("a", case(0).id))
        first = store.find_run(run_id).lease_until
        with store._db.write() as c:
            c.exec_driver_sql("UPDATE runs SET lease_until = 'old'")
        store.start_work(run_id, SUITE, VERSION, Work("a", case(1).id))
        second = store.find_run(run_id).lease_until
        now = time.monotonic()
        monkeypatch.setattr("kvgate.store.store.time.monotonic", lambda: now + 61)
        store.start_work(run_id, SUITE, VERSION, Work("a", case(2).id))
        store.start_work(stranger, SUITE, VERSION, Work("a", case(0).id))

        assert first != "old" and second == "old"
        assert store.find_run(run_id).lease_until != "old"
        assert store.find_run(stranger).lease_until == "old"


def test_two_writers_in_one_store(store: Store, path: Path) -> None:
    """Two checks on different keys at once both succeed, and all they wrote is there."""
    children = [child(WRITER, str(path), key, "60") for key in ("a", "b")]
    said = [c.communicate(timeout=120) for c in children]

    assert [(c.returncode, err) for c, (_, err) in zip(children, said, strict=True)] == [(0, "")] * 2
    digests = set()
    for key in ("a", "b"):
        row = store.run_for(key)
        assert row is not None and row.state == "finished"
        found = read(store, row.run_id)
        assert len(found.positions) == len(found.raws) == 60
        digests.add(found.digest)
    assert len(digests) == 1


@pytest.mark.kill
def test_a_kill_at_any_instant_leaves_a_good_store(path: Path, tmp_path: Path) -> None:
    """Killed three times at random instants and resumed: everything said to be committed is there, once, and the
    records are those of a run that was never interrupted."""
    n = 80
    with open_store(tmp_path / "whole.db"):
        pass
    whole = child(WRITER, str(tmp_path / "whole.db"), "key", str(n))
    assert whole.communicate(timeout=120)[1] == "" and whole.returncode == 0
    with open_store(tmp_path / "whole.db") as s:
        want = read(s, s.find_run("last").run_id)

    moment = random.Random(os.getpid())
    committed: list[str] = []
    for _ in range(3):
        committed += killed(path, n, lambda: moment.randint(1, 20), moment.random() * 0.02)
        check_consistent(path, committed)
    last = child(WRITER, str(path), "key", str(n))
    out, err = last.communicate(timeout=120)
    assert (last.returncode, err) == (0, "")
    committed += out.split("\n")[1:-1]
    check_consistent(path, committed)

    with open_store(path) as s:
        assert len(s.runs()) == 1 and s.runs()[0].state == "finished"
        assert read(s, s.runs()[0].run_id).digest == want.digest
        # One more may have been committed than was said, at each of the three kills; none was done twice.
        assert len(committed) == len(set(committed)) and n - 3 <= len(committed) <= n


def killed(path: Path, n: int, lines: Callable[[], int], pause_s: float) -> list[str]:
    """Run the writer, kill it a moment after some lines; the ids that it said were committed."""
    process = child(WRITER, str(path), "key", str(n))
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(lines())]
    time.sleep(pause_s)
    process.kill()
    rest, err = process.communicate(timeout=30)
    assert err == "" and process.returncode == -9
    whole = "".join(said) + rest
    return [line for line in whole.split("\n")[:-1] if line and not line.startswith("run ")]


def check_consistent(path: Path, committed: list[str]) -> None:
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    with open_store(path) as s, s.lease("key"):
        run_id = s.runs()[0].run_id
        done = s.done(run_id, SUITE, VERSION)
        found = read(s, run_id)

        assert set(committed) <= {w.case_id for w in done}
        assert {b.case_id for b in found.positions} == {w.case_id for w in done} == {c for _, c in found.raws}
        for b in found.positions:
            assert b.data.tobytes() == block(b.case_id, "q8_0", n=400, seed=index(b.case_id)).data.tobytes()


def index(case_id: str) -> int:
    return next(i for i in range(1000) if case(i).id == case_id)
