"""Starts the system's PostgreSQL for the tests: a cluster in a temporary folder, on loopback, ended with them."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER, PASSWORD = "kvgate", "not-a-secret-a1b2"


class Server:
    """A running server. `restart` and `stop` are for tests of what happens then."""

    def __init__(self, folder: Path, port: int, become: list[str]) -> None:
        self.folder, self.port, self._become = folder, port, become

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        name = f"t{secrets.token_hex(6)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as c:
            done = c.execute(statement)
            return done.fetchall() if done.description else []

    def control(self, *words: str) -> None:
        command = [*self._become, str(_binaries() / "pg_ctl"), "-D", str(self.folder / "data"), "-w", *words]
        # Output to a file: a server that inherits a pipe would keep it open for ever.
        with open(os.devnull, "w") as nowhere:
            subprocess.run(command, check=True, stdout=nowhere, stderr=nowhere, timeout=120)

    def restart(self) -> None:
        self.control("-m", "immediate", "restart")


def _binaries() -> Path:
    """The folder of the newest installed server's programs; Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    if on_path:
        return Path(on_path).resolve().parent
    raise RuntimeError("the tests need a PostgreSQL server: run scripts/need-packages.sh (make test does)")


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server with one superuser; ended, and its folder removed, at the end of the block."""
    bin_folder = _binaries()
    become: list[str] = []
    if os.geteuid() == 0:
        # The server refuses to run as root; its folder must be reachable for another user.
        folder = Path(tempfile.mkdtemp(prefix="kvgate-pg-"))
        user = next(u for u in ("postgres", "nobody") if _exists(u))
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        become = ["setpriv", f"--reuid={user}", "--clear-groups"]
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    make = [str(bin_folder / "initdb"), "-D", str(folder / "data"), "-U", USER, "--pwfile", str(password)]
    made = subprocess.run(
        [*become, *make, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(folder / "data" / "postgresql.conf", "a") as config:
        config.write(f"\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\n")
        config.write("fsync = off\nmax_connections = 60\nlogging_collector = on\n")
    server = Server(folder, port, become)
    server.control("start")
    try:
        yield server
    finally:
        server.control("-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
