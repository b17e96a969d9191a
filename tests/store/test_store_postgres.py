"""What is PostgreSQL's own: places and passwords, leases that the server keeps, a server that stops."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from store_samples import SUITE, VERSION, answer, begin, block, case, child, read
from test_store_processes import HOLDER, WRITER, index

from kvgate.core.errors import StoreBusy, StoreError, UserError
from kvgate.core.observation import Raw, Work
from kvgate.store.location import ServerUrl, default_location, location_of
from kvgate.store.open import Store, open_store
from kvgate.store.postgres import lock_number
from postgres_server import PASSWORD, Server


def refused(location: str) -> str:
    with pytest.raises(UserError) as e:
        open_store(location)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@host:5433/db", "postgresql://me@host:5433/db"),
        ("postgres://me:s3cret@host/db?password=s3cret&sslmode=require", "postgresql://me@host/db"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql://me:s3cret@[::1]:5/db", "postgresql://me@[::1]:5/db"),
        ("postgresql://me:s3cret@host:no-port/db", "postgresql://..."),
        ("postgresql://me:12/s3cret@host/db", "postgresql://me@host/db"),
        ("postgresql://me:12?s3cret@host/db", "postgresql://me@host/db"),
        ("postgresql://me:12#s3cret@host:5/db", "postgresql://me@host:5/db"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    """Neither password nor options are ever shown."""
    assert location_of(url) == ServerUrl(url, shown)
    assert default_location({"KVGATE_STORE": url}) == ServerUrl(url, shown)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:s3cr@et@host/db", "write @ as %40"),
        ("postgresql:/me:s3cret@host/db", "two slashes after the colon"),
        ("postgres:me:s3cret@host/db", "two slashes after the colon"),
        ("postgresql://me:s3cret\udcff@host/db", "not valid UTF-8"),
    ],
)
def test_a_mistyped_url_is_one_line_without_its_password(url: str, said: str) -> None:
    """Characters that must be escaped, a slash too few (which would be a folder's name), bytes that are no text."""
    line = refused(url)

    assert said in line and "s3cr" not in line and "host" not in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda u: u.replace(PASSWORD, "wrong-s3cret"), "cannot be reached: .*password authentication failed"),
        (lambda u: u + "-none", "cannot be reached: .*does not exist"),
        (lambda u: u.replace("127.0.0.1:", "127.0.0.1:1"), "cannot be reached|is not a database URL"),
        (lambda u: u.replace("127.0.0.1:", "127.0.0.1:x"), "is not a database URL"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line(postgres_url: str, change: object, said: str) -> None:
    """Wrong password, no such database, nobody there, no port: one line without the password."""
    line = refused(change(postgres_url))  # type: ignore[operator]

    assert __import__("re").search(said, line), line
    assert "s3cret" not in line and PASSWORD not in line


def test_a_database_of_others_is_refused_and_kept(postgres: Server, postgres_url: str) -> None:
    """Tables that are not ours are left alone."""
    name = postgres_url.rpartition("/")[2]
    postgres.sql("CREATE TABLE theirs (x int)", name)

    assert "is a database with other tables, but not a kvgate store" in refused(postgres_url)
    assert postgres.sql("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'", name) == [(1,)]


def test_a_schema_of_its_own_in_a_shared_database(postgres: Server, postgres_url: str) -> None:
    """?options=-csearch_path=... puts the store beside other tables."""
    name = postgres_url.rpartition("/")[2]
    postgres.sql("CREATE TABLE theirs (x int)", name)
    postgres.sql("CREATE SCHEMA kv", name)
    with open_store(postgres_url + "?options=-csearch_path%3Dkv") as s:
        assert begin(s)
    assert postgres.sql("SELECT count(*) FROM kv.runs", name) == [(1,)]


def test_the_password_is_in_no_row(postgres: Server, postgres_url: str) -> None:
    """A manifest that names the store does not carry its password into it."""
    with open_store(postgres_url) as s:
        run_id = s.begin_run("key", {"store": postgres_url, "nested": [postgres_url]})
        assert PASSWORD not in str(s.find_run(run_id).manifest)
        assert PASSWORD not in s.place
    dumped = postgres.sql("SELECT runs::text FROM runs", postgres_url.rpartition("/")[2])
    assert PASSWORD not in str(dumped)


def test_a_lease_is_for_one(postgres_url: str) -> None:
    """The second process on a key is told at once who has it; other keys are free; death sets it free."""
    with open_store(postgres_url) as store:
        holder = child(HOLDER, postgres_url, "key")
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
        with store.lease("key"), pytest.raises(StoreBusy, match=f"pid {os.getpid()}"), store.lease("key"):
            pass
        with store.lease("key"):
            pass


def test_a_forked_child_does_not_keep_the_lease(postgres_url: str) -> None:
    """The lock is the process's own: a fork that outlives it leaves the key free."""
    script = """
import os, sys, time
from kvgate.store.open import open_store
with open_store(sys.argv[1]) as store, store.lease("key"):
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(child, flush=True)
    os.kill(os.getpid(), 9)
"""
    with open_store(postgres_url) as store:
        holder = child(script, postgres_url)
        assert holder.stdout is not None
        survivor = int(holder.stdout.readline())
        holder.wait(timeout=30)
        try:
            with store.lease("key"):
                pass
        finally:
            os.kill(survivor, 9)
            holder.stdout.close()


def test_a_restarted_server_has_forgotten_the_lease(postgres: Server, postgres_url: str) -> None:
    """Writing on without the lock is refused; a new lease goes on with what was committed."""
    with open_store(postgres_url) as store:
        run_id = begin(store, [case(0), case(1)])
        with pytest.raises(StoreError, match="has let go of this run's lock") as e, store.lease("key"):
            answer(store, run_id, Work("a", case(0).id), Raw({"text": "x"}))
            postgres.restart()
            answer(store, run_id, Work("a", case(1).id), Raw({"text": "y"}))
        assert "\n" not in str(e.value)
        with store.lease("key"):
            assert len(store.done(run_id, SUITE, VERSION)) == 1
            answer(store, run_id, Work("a", case(1).id), Raw({"text": "y"}))


def test_the_holder_that_is_named_holds_this_database(postgres: Server, postgres_url: str) -> None:
    """The same check in another database of the server is another check, and its process is not the one to wait for."""
    places = [postgres.new_database() for _ in range(3)]
    with ExitStack() as stack:
        # The lock table has no order that is promised, so that there are processes of others on both sides.
        others = [stack.enter_context(open_store(place)) for place in places]
        for other in others[:2]:
            stack.enter_context(other.lease("key"))
        holder = child(HOLDER, postgres_url, "key")
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            stack.enter_context(others[2].lease("key"))
            store = stack.enter_context(open_store(postgres_url))
            with pytest.raises(StoreBusy, match=f"pid {holder.pid} on "), store.lease("key"):
                pass
        finally:
            holder.kill()
            holder.communicate()


def test_first_openers_do_not_disturb_each_other(postgres_url: str) -> None:
    """Four processes open an empty database at once: one migrates, all of them work."""
    script = (
        "import sys; from kvgate.store.open import open_store\nwith open_store(sys.argv[1]) as s: s.begin_run('k', {})"
    )
    children = [child(script, postgres_url) for _ in range(4)]

    assert [c.communicate(timeout=120)[1] for c in children] == [""] * 4
    with open_store(postgres_url) as s:
        assert len({r.run_id for r in s.runs()}) == 4


def test_two_writers_in_one_store(postgres_url: str) -> None:
    """Two checks on different keys at once both succeed, and all they wrote is there."""
    with open_store(postgres_url) as store:
        children = [child(WRITER, postgres_url, key, "30") for key in ("a", "b")]
        said = [c.communicate(timeout=120) for c in children]

        assert [(c.returncode, err) for c, (_, err) in zip(children, said, strict=True)] == [(0, "")] * 2
        digests = {read(store, row.run_id).digest for row in store.runs()}
    assert len(digests) == 1


def test_a_lock_held_too_long_is_one_line(postgres: Server, postgres_url: str) -> None:
    """A writer that never ends makes the other give up with a reason."""
    import psycopg

    impatient = postgres_url + "?options=-clock_timeout%3D50"
    with open_store(impatient) as store, psycopg.connect(postgres_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number("kvgate: one writer"),))
        with pytest.raises(StoreError, match="stayed locked by another process"):
            begin(store)
        assert store.runs() == []
        other.rollback()
        assert begin(store)


def test_a_database_that_only_reads_is_one_line(postgres: Server, postgres_url: str) -> None:
    """A standby, or a role without the right to write."""
    with open_store(postgres_url):
        pass
    with (
        open_store(postgres_url + "?options=-cdefault_transaction_read_only%3Don") as store,
        pytest.raises(StoreError, match="cannot be written"),
    ):
        begin(store)


@pytest.mark.kill
def test_a_kill_at_any_instant_leaves_a_good_store(postgres_url: str, tmp_path: Path) -> None:
    """Killed three times at random instants and resumed: everything said to be committed is there, once."""
    n, moment = 60, random.Random(os.getpid())
    committed: list[str] = []
    with open_store(postgres_url) as store:
        for _ in range(3):
            process = child(WRITER, postgres_url, "key", str(n))
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(moment.randint(1, 12))]
            time.sleep(moment.random() * 0.02)
            process.kill()
            rest, err = process.communicate(timeout=30)
            assert (err, process.returncode) == ("", -9)
            whole = "".join(said) + rest
            committed += [x for x in whole.split("\n")[:-1] if x and not x.startswith("run ")]
            check_consistent(store, committed)
        last = child(WRITER, postgres_url, "key", str(n))
        out, err = last.communicate(timeout=120)
        assert (last.returncode, err) == (0, "")
        committed += out.split("\n")[1:-1]
        check_consistent(store, committed)

        assert len(store.runs()) == 1 and store.runs()[0].state == "finished"
        assert len(committed) == len(set(committed)) and n - 3 <= len(committed) <= n


def check_consistent(store: Store, committed: list[str]) -> None:
    with store.lease("key"):
        run_id = store.runs()[0].run_id
        done = {w.case_id for w in store.done(run_id, SUITE, VERSION)}
        found = read(store, run_id)

        assert set(committed) <= done
        assert {b.case_id for b in found.positions} == done == {c for _, c in found.raws}
        for b in found.positions:
            assert b.data.tobytes() == block(b.case_id, "q8_0", n=400, seed=index(b.case_id)).data.tobytes()
