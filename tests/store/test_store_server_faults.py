"""A PostgreSQL server in other hands: rights, limits, other programs' tables, connections that are cut or ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import psycopg
import pytest
from store_proxy import Proxy, proxy
from store_samples import SUITE, VERSION, answer, begin, case, read

from kvgate.core.errors import StoreBusy, StoreError, UserError
from kvgate.core.observation import Raw, Work
from kvgate.store.open import Store, open_store
from kvgate.store.postgres import lock_number
from postgres_server import PASSWORD, Server

CASES = [case(i) for i in range(3)]
WORK = [Work("q8_0", c.id) for c in CASES]


def refused(location: str, create: bool = True) -> str:
    with pytest.raises(UserError) as e:
        open_store(location, create=create)
    assert "\n" not in str(e.value) and PASSWORD not in str(e.value)
    return str(e.value)


def fails(do: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as e:
        do()
    assert "\n" not in str(e.value) and PASSWORD not in str(e.value)
    return str(e.value)


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def tables(server: Server, url: str) -> set[object]:
    return {row[0] for row in server.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name_of(url))}


def end_sessions(server: Server, url: str, which: str) -> int:
    """End the sessions of a database whose application name matches; how many there were."""
    return len(
        server.sql(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name_of(url)}' "
            f"AND backend_type = 'client backend' AND {which}"
        )
    )


LEASE, WRITER = "application_name LIKE 'pid %'", "application_name NOT LIKE 'pid %'"


# what is there


def test_looking_makes_no_tables(postgres: Server, postgres_url: str) -> None:
    """A verb that only reads does not turn another empty database into a store."""
    assert "there is no store at" in refused(postgres_url, create=False)
    assert tables(postgres, postgres_url) == set()

    open_store(postgres_url).close()
    open_store(postgres_url, create=False).close()


@pytest.mark.parametrize("revision", ["0001", "ae1027a6acf1"])
def test_another_program_with_alembic_is_not_a_newer_kvgate(postgres: Server, postgres_url: str, revision: str) -> None:
    """Also where its revision happens to be called as ours is."""
    postgres.sql(
        f"CREATE TABLE alembic_version (version_num varchar(32)); INSERT INTO alembic_version VALUES ('{revision}');"
        "CREATE TABLE users (id int)",
        name_of(postgres_url),
    )

    assert "is a database with other tables, but not a kvgate store" in refused(postgres_url)
    assert tables(postgres, postgres_url) == {"alembic_version", "users"}


def test_a_newer_schema_and_a_lost_table(postgres: Server, postgres_url: str) -> None:
    """Both revisions and what to do; the table's name."""
    open_store(postgres_url).close()
    postgres.sql("DROP TABLE observations CASCADE", name_of(postgres_url))
    assert "is damaged: without the table observations; restore a copy" in refused(postgres_url)

    postgres.sql("UPDATE alembic_version SET version_num = '9999'", name_of(postgres_url))
    line = refused(postgres_url)
    assert "(schema '9999', this one knows up to '0001'); upgrade kvgate, or name another store" in line


# rights and limits


@pytest.fixture
def reader(postgres: Server, postgres_url: str) -> Iterator[str]:
    """URL of a role that may connect and nothing else."""
    postgres.sql("CREATE ROLE reader LOGIN PASSWORD 'r'")
    yield postgres_url.replace(f"kvgate:{PASSWORD}", "reader:r")
    postgres.sql("DROP OWNED BY reader", name_of(postgres_url))
    postgres.sql("DROP ROLE reader")


def test_a_role_that_only_reads(postgres: Server, postgres_url: str, reader: str) -> None:
    """It may list and show; an empty database, tables it may not see and a check are one line each."""
    line = refused(reader)
    assert "cannot be written: permission denied for schema public; " in line and "CREATE TABLE" not in line

    with open_store(postgres_url) as s:
        run_id = begin(s, CASES)
    assert "permission denied for table alembic_version" in refused(reader)

    postgres.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", name_of(postgres_url))
    with open_store(reader, create=False) as s:
        assert [r.run_id for r in s.runs()] == [run_id] and len(read(s, run_id).cases) == 3
        assert "cannot be written: permission denied" in fails(lambda: leased(s))


def leased(store: Store) -> None:
    with store.lease("key"):
        pass


def test_no_connection_left(postgres: Server, postgres_url: str, reader: str) -> None:
    """A limit that is reached when opening, and one that leaves none for the run's lock."""
    with open_store(postgres_url):
        postgres.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", name_of(postgres_url))
    postgres.sql("ALTER ROLE reader CONNECTION LIMIT 1")
    with open_store(reader) as s:
        line = fails(lambda: leased(s))
        assert 'too many connections for role "reader"; what was recorded is kept: run the same command again' in line
        assert 'too many connections for role "reader"' in refused(reader)


def test_timeouts_of_the_database_are_not_ours(postgres: Server, postgres_url: str) -> None:
    """A limit for quick queries would end the wait for another writer, one for idle sessions the run's lock."""
    for setting in ("statement_timeout = 1", "idle_session_timeout = 150"):
        postgres.sql(f"ALTER DATABASE {name_of(postgres_url)} SET {setting}")
    with open_store(postgres_url) as s, s.lease("key"):
        run_id = begin(s, CASES)
        postgres.sql("SELECT pg_sleep(0.6)")
        answer(s, run_id, WORK[0], Raw({}))


def test_a_statement_that_is_cancelled_says_so(postgres_url: str) -> None:
    """It is not told as another process's lock."""
    open_store(postgres_url).close()
    with (
        open_store(postgres_url + "?options=-cstatement_timeout%3D50") as s,
        psycopg.connect(postgres_url) as other,
    ):
        other.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number("kvgate: one writer"),))
        line = fails(lambda: begin(s))
    assert "canceling statement due to statement timeout; what was recorded is kept" in line


# sessions that are ended


def test_a_lost_lease_stops_the_writer_and_only_it(postgres: Server, postgres_url: str) -> None:
    """An administrator ends the lease's session alone: another process may take the run, the first writes no more."""
    with open_store(postgres_url) as first, open_store(postgres_url) as second:
        with pytest.raises(StoreError, match="has let go of this run's lock"), first.lease("key"):
            run_id = begin(first, CASES)
            with pytest.raises(StoreBusy), second.lease("key"):
                pass
            assert end_sessions(postgres, postgres_url, LEASE) == 1
            with second.lease("key"):
                assert "has let go of this run's lock" in fails(lambda: answer(first, run_id, WORK[0], Raw({})))
                answer(second, run_id, WORK[0], Raw({}))
        assert second.done(run_id, SUITE, VERSION) == {WORK[0]: "done"}


def test_an_ended_session_of_the_writer(postgres: Server, postgres_url: str) -> None:
    """Between two writes it is made anew, as the lock is still held; within one, nothing of that one is kept."""
    with open_store(postgres_url) as s, s.lease("key"):
        run_id = begin(s, CASES)
        assert end_sessions(postgres, postgres_url, WRITER) == 1
        answer(s, run_id, WORK[0], Raw({}))

        def ended_within() -> None:
            with s._db.write() as c:
                c.exec_driver_sql("UPDATE work SET state = 'lost'")
                assert end_sessions(postgres, postgres_url, f"{WRITER} AND state LIKE 'idle in transaction%'") == 1
                c.exec_driver_sql("SELECT 1")

        assert "cannot be reached: terminating connection due to administrator command; what was" in fails(ended_within)
        assert s.done(run_id, SUITE, VERSION) == {WORK[0]: "done"}


# networks


@pytest.fixture
def through(postgres: Server, postgres_url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server, and the database's URL by it."""
    with proxy(postgres.port) as p:
        yield p, postgres_url.replace(f":{postgres.port}/", f":{p.port}/")


@pytest.mark.parametrize(("direction", "kept"), [("to_server", False), ("to_client", True)])
def test_a_connection_cut_in_a_transaction(
    through: tuple[Proxy, str], postgres_url: str, direction: str, kept: bool
) -> None:
    """Cut before the server hears COMMIT, nothing is kept; cut before we hear its answer, all is. Never a half."""
    p, url = through
    with open_store(url) as s:
        run_id = begin(s, CASES)
        attempt = s.start_work(run_id, SUITE, VERSION, WORK[0])
        setattr(p, direction, lambda data: None if b"COMMIT" in data else data)
        line = fails(lambda: s.finish_work(run_id, SUITE, VERSION, WORK[0], attempt, Raw({"text": "x"})))
        assert "cannot be reached: " in line and line.endswith("what was recorded is kept: run the same command again")

    with open_store(postgres_url) as s:
        assert s.done(run_id, SUITE, VERSION) == ({WORK[0]: "done"} if kept else {})
        assert len(read(s, run_id).raws) == kept
        for work in WORK[kept:]:
            answer(s, run_id, work, Raw({"text": "x"}))


def test_a_cut_lease_stops_the_run(through: tuple[Proxy, str], postgres_url: str) -> None:
    """A proxy that drops all its connections: the lock is gone, and the same command goes on from what is there."""
    p, url = through
    with open_store(url) as s:
        with pytest.raises(StoreError, match="has let go of this run's lock"), s.lease("key"):
            run_id = begin(s, CASES)
            p.cut()
            answer(s, run_id, WORK[0], Raw({}))
        with s.lease("key"):
            answer(s, run_id, WORK[0], Raw({}))


def test_a_server_that_says_nothing_any_more(through: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen server, or a proxy that passes nothing on, is given up; so is one that does not even greet."""
    p, url = through
    with open_store(url) as s:
        monkeypatch.setattr("kvgate.store.patience.MUTE_S", 0.3)

        def frozen() -> None:
            with s._db.read() as c:
                p.mute = True
                c.exec_driver_sql("SELECT 1")

        assert "cannot be reached: the server has said nothing for 0.3 s; what was recorded is kept" in fails(frozen)
        p.mute = False
        assert s.runs() == []
    p.mute = True
    assert "connection timeout expired" in refused(url + "?connect_timeout=1")


def test_something_else_listens_there(through: tuple[Proxy, str]) -> None:
    """A web server on the port of the URL."""
    p, url = through
    p.to_client = lambda data: b"HTTP/1.1 400 Bad Request\r\n\r\n"

    assert "cannot be reached: connection to server at" in refused(url)


def test_drivers_log_into_nothing(postgres_url: str) -> None:
    """A logger without a handler prints to standard error, where there is to be one line of ours."""
    open_store(postgres_url).close()

    assert all(logging.getLogger(name).handlers for name in ("psycopg", "sqlalchemy"))
