"""URLs of a PostgreSQL server: every way to write one that libpq has, and settings that the URL does not show."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from store_proxy import proxy
from store_samples import SUITE, VERSION, begin, case

from kvgate.core.errors import UserError
from kvgate.core.observation import Raw, Work
from kvgate.store.location import ServerUrl, location_of
from kvgate.store.open import open_store
from kvgate.store.postgres import postgres_database
from postgres_server import PASSWORD, Server


def refused(location: str, create: bool = True) -> str:
    """The one line with which a server is refused; it never holds a password."""
    with pytest.raises(UserError) as e:
        open_store(location, create=create)
    line = str(e.value)
    assert "\n" not in line and PASSWORD not in line and "s3cret" not in line
    return line


def server(url: str) -> ServerUrl:
    found = location_of(url)
    assert isinstance(found, ServerUrl)
    return found


@pytest.mark.parametrize(
    ("url", "text", "shown"),
    [
        ("postgresql://me:pw@a:1,b:2/db", "me:pw@/db?host=a,b&port=1,2", "me@a:1,b:2/db"),
        ("postgresql://me:pw@a,[::1]:2/db?x=y", "me:pw@/db?x=y&host=a,::1&port=,2", "me@a,[::1]:2/db"),
        ("postgresql://me:pw@a,b", "me:pw@/?host=a,b", "me@a,b"),
        ("postgresql://me@%2Frun%2Fpg:5433/db", "me@/db?host=%2Frun%2Fpg&port=5433", "me@%2Frun%2Fpg:5433/db"),
    ],
)
def test_hosts_are_read_as_libpq_reads_them(url: str, text: str, shown: str) -> None:
    """A list of hosts, and a socket's folder, in the place of a host."""
    assert location_of(url) == ServerUrl(f"postgresql://{text}", f"postgresql://{shown}")


@pytest.mark.parametrize("secret", ["%00s3cret", "%ffs3cret", "s3cret%c3"])
def test_a_password_that_is_no_text_is_refused(secret: str) -> None:
    """libpq would end the whole connection string at a NUL, and go to another port."""
    assert re.search("has a NUL|is not valid UTF-8", refused(f"postgresql://me:{secret}@127.0.0.1:1/db"))


@pytest.fixture(scope="module")
def role(postgres: Server) -> Iterator[str]:
    postgres.sql("CREATE ROLE someone LOGIN")
    yield "someone"
    postgres.sql("DROP OWNED BY someone; DROP ROLE someone")


@pytest.mark.parametrize("secret", ["p w", "a%41b", "a@b", "a/b:c", "pässß€", "a?b#c&d", "a\\b'\"", "50%"])
def test_a_password_may_hold_anything(postgres: Server, role: str, secret: str) -> None:
    """Percent-encoded, every password opens the database, also by a URL of SQLAlchemy's kind."""
    text = secret.replace("'", "''")
    postgres.sql(f"ALTER ROLE {role} PASSWORD E'{text.replace(chr(92), chr(92) * 2)}'")
    for scheme in ("postgresql", "postgresql+psycopg"):
        url = f"{scheme}://{role}:{quote(secret, safe='')}@127.0.0.1:{postgres.port}/postgres"
        database = postgres_database(server(url))
        with database.read() as c:
            assert c.exec_driver_sql("SELECT current_user").scalar() == role
        database.close()


def test_a_socket_and_a_list_of_hosts(postgres: Server, postgres_url: str) -> None:
    """A Unix socket in both spellings, and the second of two servers where the first is not there."""
    name = postgres_url.rpartition("/")[2]
    me = f"kvgate:{PASSWORD}"
    with tempfile.TemporaryDirectory(prefix="kvgate-s-") as folder:
        with proxy(postgres.port, Path(folder, ".s.PGSQL.5433")):
            for url in (
                f"postgresql://{me}@/{name}?host={folder}&port=5433",
                f"postgresql://{me}@{quote(folder, safe='')}:5433/{name}",
            ):
                open_store(url).close()
        gone = refused(f"postgresql:///{name}?host={folder}/none")
        assert "No such file or directory" in gone and "run the same command again" not in gone
    with open_store(f"postgresql://{me}@127.0.0.1:1,127.0.0.1:{postgres.port}/{name}") as s, s.lease("key"):
        assert s.runs() == []


def test_nobody_is_asked_for_a_password(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the line says where to put it."""
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    line = refused(f"postgresql://kvgate@127.0.0.1:{postgres.port}/postgres?passfile=/dev/null")

    assert "no password supplied" in line and "PGPASSWORD or ~/.pgpass" in line


def test_what_the_url_sets_is_not_set_again(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`connect_timeout` and the like in the URL win, and so does PGOPTIONS where the URL has no options."""
    name = postgres.new_database().rpartition("/")[2]
    postgres.sql("CREATE SCHEMA kv", name)
    monkeypatch.setenv("PGOPTIONS", "-csearch_path=kv")
    database = postgres_database(server(f"{postgres.url(name)}?connect_timeout=3&keepalives_idle=7"))
    with database.read() as c:
        raw = c.connection.dbapi_connection
        assert raw is not None
        asked = raw.info.get_parameters()
        path, waits = c.exec_driver_sql("SELECT current_setting('search_path'), current_setting('lock_timeout')").one()
    database.close()

    assert (asked["connect_timeout"], asked["keepalives_idle"], asked["tcp_user_timeout"]) == ("3", "7", "60000")
    assert (path, waits) == ("kv", "30s")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_the_terminals_encoding_does_not_matter(
    postgres_url: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGCLIENTENCODING is for psql; what models write comes back whole."""
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    round_trip(postgres_url)


def round_trip(url: str) -> None:
    text = "grüße \0 \x1b \ud800 日本 😀"
    with open_store(url) as s:
        run_id = begin(s, [case(0)])
        attempt = s.start_work(run_id, SUITE, VERSION, Work("q8_0", case(0).id))
        s.finish_work(run_id, SUITE, VERSION, Work("q8_0", case(0).id), attempt, Raw(None, text))
        assert list(s.errors(run_id, SUITE).values()) == [[text]]


def test_a_database_must_hold_every_text(postgres: Server) -> None:
    """SQL_ASCII keeps bytes, which will do; LATIN1 is refused at once and not at the first Japanese answer."""
    for encoding in ("SQL_ASCII", "LATIN1"):
        postgres.sql(f"CREATE DATABASE in_{encoding} ENCODING '{encoding}' TEMPLATE template0")
    round_trip(postgres.url("in_sql_ascii"))

    line = refused(postgres.url("in_latin1"))
    assert "keeps text as LATIN1" in line and "createdb -E UTF8" in line


def test_an_old_server_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both releases are named."""
    monkeypatch.setattr("kvgate.store.postgres.OLDEST", 990_000)

    assert re.search(r"is on PostgreSQL \d+\.\d+; allowed: 99\.0 and newer", refused(postgres_url))


def test_a_pooler_is_refused(postgres: Server, postgres_url: str) -> None:
    """Behind a pooler a lock is a connection's that others use too: two runs could both have it."""

    def other_key(data: bytes) -> bytes:  # a pooler has cancel keys of its own: 'K', length 12, pid, secret
        return re.sub(rb"K\0\0\0\x0c....", b"K\0\0\0\x0c\x01\x02\x03\x04", data, flags=re.DOTALL)

    with proxy(postgres.port) as pooler:
        url = postgres_url.replace(f":{postgres.port}/", f":{pooler.port}/")
        open_store(url).close()
        pooler.to_client = other_key
        line = refused(url)
    assert "connection pooler" in line and "name the host and port of the PostgreSQL server itself" in line


def test_tls_that_fails_is_one_line(postgres: Server, postgres_url: str, tmp_path: Path) -> None:
    """Without TLS, with a certificate that nobody knows, and with one of another name."""
    assert "server does not support SSL, but SSL was required" in refused(postgres_url + "?sslmode=require")

    data = postgres.folder / "data"
    words = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=elsewhere.example"]
    made = [str(tmp_path / n) for n in ("server.key", "server.crt")]
    subprocess.run(["openssl", "req", *words, "-keyout", made[0], "-out", made[1]], check=True, capture_output=True)
    owner = data.stat()
    for file in made:
        copy = data / Path(file).name
        copy.write_bytes(Path(file).read_bytes())
        copy.chmod(0o600)
        os.chown(copy, owner.st_uid, owner.st_gid)
    postgres.sql("ALTER SYSTEM SET ssl = on")
    try:
        postgres.control("reload")
        url = f"{postgres_url}?sslmode="
        open_store(url + "require").close()
        assert "does not exist" in refused(f"{url}verify-ca&sslrootcert={tmp_path}/none")
        assert "certificate verify failed" in refused(f"{url}verify-full&sslrootcert=system")
        assert 'certificate for "elsewhere.example"' in refused(f"{url}verify-full&sslrootcert={made[1]}")
        open_store(f"{url}verify-ca&sslrootcert={made[1]}").close()
    finally:
        postgres.sql("ALTER SYSTEM RESET ssl")
        postgres.control("reload")
