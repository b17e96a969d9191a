"""SIGKILL of the whole or of the engine alone, then the same command: only what was in flight is repeated."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from postgres_server import PASSWORD, Server

#: Slow enough that a kill lands in the middle, fast enough for CI.
SCRIPT = json.dumps({"ttft_ms": 25.0})
MARK = "KVGATE_TEST_MARK"


class Command:
    """`kvgate check` of q8_0 over an engine, in a process group of its own, with a mark in its environment."""

    def __init__(self, model: Path, folder: Path, *options: str, url: str = "") -> None:
        self.folder, self.store = folder, url or str(folder / "kvgate.db")
        self._started, self._ports = 0, set[int]()
        self.mark = f"{folder}-{random.random()}"
        self.argv = [sys.executable, "-m", "kvgate", "check", str(model), "--kv", "q8_0", "--policy", "smoke"]
        self.argv += ["--threads", "1", "--json", "--store", self.store, "--out", str(folder / "reports"), *options]

    def start(self) -> subprocess.Popen[bytes]:
        """Output goes into files: a pipe that nobody reads is full after 64 KiB, and the run would wait for ever."""
        self._started += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        env = os.environ | {MARK: self.mark}
        with self._output("out").open("wb") as out, self._output("err").open("wb") as err:
            return subprocess.Popen(self.argv, stdout=out, stderr=err, env=env)

    def _output(self, name: str) -> Path:
        return self.folder / f"{self._started}.{name}"

    def ended(self, process: subprocess.Popen[bytes], seconds: float = 240) -> tuple[int, dict, str]:
        """Wait for the process that was started last: exit code, document, stderr."""
        code = process.wait(timeout=seconds)
        out = self._output("out").read_text()
        return code, json.loads(out) if out.strip() else {}, self._output("err").read_text()

    def finish(self, seconds: float = 240) -> tuple[int, dict, str]:
        return self.ended(self.start(), seconds)

    def engines(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The children of a run, oldest first; the ports that they listen on are remembered for `gone`."""
        found = sorted((p for p in self.processes() if p.pid != process.pid), key=lambda p: p.create_time())
        for p in found:
            with contextlib.suppress(psutil.Error):
                self._ports |= {c.laddr.port for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
        return found

    def kill_an_engine(self, process: subprocess.Popen[bytes]) -> int:
        """SIGKILL of the oldest child; 1 if there was one, which may have ended by itself meanwhile."""
        for child in self.engines(process)[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
                return 1
        return 0

    def gone(self, seconds: float = 5.0) -> bool:
        """True once nothing with our mark lives, and nobody of ours listens where its engines did; else says what."""
        until = time.monotonic() + seconds
        while left := [*map(str, self.processes()), *(f"port {n}" for n in self._ports if self._listens(n))]:
            if time.monotonic() > until:
                print("left:", *left)
                return False
            time.sleep(0.05)
        return True

    def _listens(self, port: int) -> bool:
        """Whether the port is still taken, unless by a process of others, to whom the system gave it meanwhile."""
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return False
        here = [c.pid for c in psutil.net_connections("tcp") if c.laddr.port == port and c.status == psutil.CONN_LISTEN]
        ours = {p.pid for p in self.processes()}
        return any(pid is None or pid in ours for pid in here)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def processes(self) -> list[psutil.Process]:
        """Everything alive that carries our mark: kvgate, its servers, its panel worker."""
        return [p for p in psutil.process_iter() if self._is_ours(p)]

    def rows(self, query: str) -> list[tuple]:
        if self.store.startswith("postgresql:"):
            return self._server_rows(query)
        if not Path(self.store).exists():
            return []
        with sqlite3.connect(f"file:{self.store}?mode=ro", uri=True, timeout=10) as c:
            try:
                return c.execute(query).fetchall()
            except sqlite3.OperationalError:
                return []

    def _server_rows(self, query: str) -> list[tuple]:
        import psycopg

        with psycopg.connect(self.store, autocommit=True) as c:
            try:
                return c.execute(query).fetchall()
            except psycopg.errors.UndefinedTable:
                return []

    def locks(self) -> list[tuple]:
        """Locks that the database server still keeps for anybody."""
        if not self.store.startswith("postgresql:"):
            return [(str(p),) for p in Path(self.store + ".leases").glob("*") if _locked(p)]
        here = "(select oid from pg_database where datname = current_database())"
        return self.rows(f"select pid from pg_locks where locktype = 'advisory' and database = {here}")

    def done(self) -> int:
        return (self.rows("select count(*) from work where state = 'done'") or [(0,)])[0][0]

    def wait_done(self, n: int, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while self.done() < n and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)


def _locked(path: Path) -> bool:
    with path.open() as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def attempts(command: Command) -> Counter[tuple]:
    """(suite, arm, case, repeat) -> how often it was begun."""
    query = "select suite, arm, case_id, repeat from work"
    return Counter(command.rows(query))


def in_flight(command: Command) -> set[tuple]:
    """Attempts that were begun and have not ended: (suite, arm, case, repeat, attempt)."""
    return set(command.rows("select suite, arm, case_id, repeat, attempt from work where state = 'running'"))


def torn(command: Command) -> Counter[tuple]:
    """(suite, arm, case, repeat) -> attempts of it that came to nothing. Every case must have been finished once."""
    states = command.rows("select suite, arm, case_id, repeat, state from work")
    finished = Counter(row[:4] for row in states if row[4] == "done")
    assert set(finished.values()) == {1}, f"finished more than once: {[w for w, n in finished.items() if n > 1]}"
    assert set(finished) == {row[:4] for row in states}, "begun and never finished"
    return Counter(row[:4] for row in states if row[4] != "done")


@pytest.fixture(params=["fake"])
def engine_options(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    yield ["--engine", request.param, "--engine-env", f"KVGATE_FAKE_SCRIPT={SCRIPT}"]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The place of the store: a file, or a database server."""
    return "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def decisions(document: dict) -> list[tuple[str, str, str]]:
    return [(v["candidate"], v["decision"], v["records_digest"]) for v in document["verdicts"]]


def kill_whole_and_resume(command: Command, undisturbed: list, kills: int, rng: random.Random) -> None:
    """Kill the whole run at random instants, then let it end, and hold it against one that was left alone."""
    hit: set[tuple] = set()
    for _ in range(kills):
        process = command.start()
        command.wait_done(command.done() + rng.randint(1, 2 if kills > 5 else 6), process)
        time.sleep(rng.random() * 0.3)
        assert process.poll() is None, "the run ended before it was killed: kill it earlier"
        command.engines(process)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        assert command.gone(), [p.cmdline() for p in command.processes()]
        now = in_flight(command)
        assert len(now - hit) <= 1, f"more than one piece was in flight: {now - hit}"
        hit |= now

    code, document, err = command.finish()

    assert code in (0, 1, 3), err
    assert decisions(document) == undisturbed
    assert len(command.rows("select run_id from runs")) == 1
    assert "resuming run" in err
    print(f"{kills} kills, {len(attempts(command))} cases, {torn(command).total()} attempts repeated")
    # To the attempt: nothing is begun again but what a kill hit, once for each. A kill between the commit of an answer
    # and its showing to readers hits work that the next opening finds finished: that is not begun again.
    assert torn(command) <= Counter(attempt[:4] for attempt in hit)
    assert command.gone()
    assert command.locks() == []


@pytest.fixture(scope="module")
def undisturbed(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> list:
    """Verdicts of the same check left alone."""
    command = Command(
        smollm2,
        tmp_path_factory.mktemp("alone"),
        "--engine",
        "fake",
        "--engine-env",
        f"KVGATE_FAKE_SCRIPT={SCRIPT}",
    )
    code, document, err = command.finish()
    assert code in (0, 1, 3), err
    return decisions(document)


@pytest.mark.kill
def test_a_killed_run_resumes_to_the_same_verdict(
    smollm2: Path, tmp_path: Path, engine_options: list[str], undisturbed: list, url: str
) -> None:
    """Three kills of the whole: nothing is left running, only what was in flight is repeated, same verdict."""
    kill_whole_and_resume(Command(smollm2, tmp_path, *engine_options, url=url), undisturbed, 3, random.Random(1))


@pytest.mark.kill
def test_a_killed_engine_is_started_again(
    smollm2: Path, tmp_path: Path, engine_options: list[str], undisturbed: list, url: str
) -> None:
    """The engine alone is killed three times in mid-run: the run goes on by itself to the same verdict."""
    kill_engine_and_go_on(Command(smollm2, tmp_path, *engine_options, url=url), undisturbed, 3, random.Random(2))


def kill_engine_and_go_on(command: Command, undisturbed: list, kills: int, rng: random.Random) -> None:
    """Kill whatever child is there, at random moments of one run."""
    process, killed = command.start(), 0
    for _ in range(kills):
        command.wait_done(command.done() + rng.randint(13, 16), process)
        killed += command.kill_an_engine(process)
    code, document, err = command.ended(process)

    assert code in (0, 1, 3), err
    assert decisions(document) == undisturbed
    assert torn(command).total() <= killed
    assert command.gone()
    assert command.locks() == []


@pytest.mark.kill
def test_a_second_run_on_the_same_key_is_refused(
    smollm2: Path, tmp_path: Path, engine_options: list[str], url: str
) -> None:
    """Exit 2 and one line at once; the first run is not disturbed."""
    first_command = Command(smollm2, tmp_path, *engine_options, url=url)
    first = first_command.start()
    first_command.wait_done(2, first)
    second = Command(smollm2, tmp_path / "second", *engine_options, url=first_command.store)

    code, document, err = second.finish(30)

    assert (code, document) == (2, {})
    assert len(err.strip().splitlines()) == 1
    first_code, document, err = first_command.ended(first)
    assert first_code in (0, 1, 3), err
    assert document["verdicts"]


@pytest.mark.kill
def test_two_checks_at_once_in_one_store(smollm2: Path, tmp_path: Path, engine_options: list[str], url: str) -> None:
    """Two candidates in two processes on one store: both end with the verdict that each has alone."""
    first = Command(smollm2, tmp_path / "a", *engine_options, url=url or str(tmp_path / "shared.db"))
    second = Command(smollm2, tmp_path / "b", *engine_options, "--seed", "7", url=first.store)
    commands = [(first, first.start()), (second, second.start())]
    documents = []
    for command, process in commands:
        code, document, err = command.ended(process)
        assert code in (0, 1, 3), err
        documents.append(document)

    assert len({d["run"] for d in documents}) == 2
    assert len(first.rows("select run_id from runs where state = 'finished'")) == 2
    code, alone, err = Command(smollm2, tmp_path / "c", *engine_options).finish()
    assert code in (0, 1, 3), err
    assert decisions(documents[0]) == decisions(alone)
    assert first.locks() == []


@pytest.mark.kill
def test_an_interrupted_run_says_so_and_resumes(
    smollm2: Path, tmp_path: Path, engine_options: list[str], undisturbed: list
) -> None:
    """Ctrl-C ends with 130 and one line; the same command goes on."""
    command = Command(smollm2, tmp_path, *engine_options)
    process = command.start()
    command.wait_done(3, process)
    process.send_signal(signal.SIGINT)
    code, _, err = command.ended(process, 30)

    assert code == 130, err
    assert "Traceback" not in err
    assert command.gone()
    code, document, err = command.finish()
    assert code in (0, 1, 3), err
    assert decisions(document) == undisturbed


@pytest.mark.kill
@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_the_real_engine_killed_in_both_lanes_resumes(smollm2: Path, tmp_path: Path) -> None:
    """llama.cpp: a kill in the panel, one of a server alone, one of the whole; the verdict of a run left alone."""
    corpus = tmp_path / "corpus"
    (corpus / "prose").mkdir(parents=True)
    for i in range(3):
        text = " ".join(f"Sentence {n} of document {i} is about the number {n * 7 + i}." for n in range(60))
        (corpus / "prose" / f"{i}.txt").write_text(text)
    options = ["--suite", "fidelity", "--suite", "golden", "--corpus", str(corpus)]
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    code, document, err = Command(smollm2, alone, *options).finish(600)
    assert code in (0, 1, 3), err
    command = Command(smollm2, killed, *options)

    process = command.start()
    command.wait_done(1, process, 300)  # one panel case is in, the next one is being computed
    process.kill()
    process.wait(timeout=10)
    assert command.gone()
    process = command.start()
    command.wait_done(5, process, 300)
    servers = [p for p in command.processes() if any("llama_cpp_server" in a for a in p.cmdline())]
    assert len(servers) == 1
    servers[0].kill()
    command.wait_done(18, process, 300)
    process.kill()
    process.wait(timeout=10)
    assert command.gone()
    code, resumed, err = command.finish(600)

    assert code in (0, 1, 3), err
    assert decisions(resumed) == decisions(document)
    assert torn(command).total() <= 3
    assert command.gone()


#: Enough work that twenty kills all land in it: 80 prompts on each of four arms.
LONG = ["--preset", "default", "--suite", "golden", "--context", "4096"]


@pytest.mark.kill_long
@pytest.mark.timeout(3600)
def test_twenty_kills(smollm2: Path, tmp_path: Path, engine_options: list[str], url: str) -> None:
    """The same with twenty kills of the whole."""
    code, document, err = Command(smollm2, tmp_path / "alone", *engine_options, *LONG).finish()
    assert code in (0, 1, 3), err
    command = Command(smollm2, tmp_path, *engine_options, *LONG, url=url)
    kill_whole_and_resume(command, decisions(document), 20, random.Random(3))


@pytest.mark.kill_long
@pytest.mark.timeout(3600)
def test_twenty_kills_of_the_engine(smollm2: Path, tmp_path: Path, engine_options: list[str], url: str) -> None:
    """Twenty kills of the engine alone: an arm gives up after three, and the same command goes on from there."""
    code, document, err = Command(smollm2, tmp_path / "alone", *engine_options, *LONG).finish()
    assert code in (0, 1, 3), err
    undisturbed = decisions(document)
    command, rng, killed = Command(smollm2, tmp_path, *engine_options, *LONG, url=url), random.Random(4), 0
    code, starts = 4, 0
    while killed < 20 or code == 4:
        process, starts = command.start(), starts + 1
        while killed < 20 and process.poll() is None:
            command.wait_done(command.done() + rng.randint(1, 8), process)
            killed += command.kill_an_engine(process)
        code, document, err = command.ended(process)
        assert code in (0, 1, 3, 4), err
        assert command.gone()
    assert decisions(document) == undisturbed
    assert len(command.rows("select run_id from runs")) == 1
    cases, repeated = len(attempts(command)), torn(command).total()
    print(f"{killed} kills of an engine, {starts} starts of the command, {cases} cases, {repeated} attempts repeated")
    assert repeated <= killed
    assert command.locks() == []


@pytest.mark.kill_long
@pytest.mark.parametrize("again", [True, False], ids=["restarted", "stopped"])
def test_a_database_server_that_stops_in_mid_run(
    smollm2: Path, tmp_path: Path, engine_options: list[str], undisturbed: list, postgres: Server, again: bool
) -> None:
    """Exit 4 and one line, nothing left of the run; once the server is there again, the same command goes on."""
    command = Command(smollm2, tmp_path, *engine_options, url=postgres.new_database())
    process = command.start()
    command.wait_done(5, process)
    try:
        postgres.control("-m", "immediate", "restart" if again else "stop")
        code, document, err = command.ended(process, 60)
        ours = [line for line in err.splitlines() if line.startswith("kvgate: ")]
        assert (code, document, len(ours)) == (4, {}, 1), err
        assert "what was recorded is kept: run the same command again" in ours[0]
        assert "Traceback" not in err and PASSWORD not in err
        assert command.gone()
    finally:
        if not again:
            postgres.control("start")
    assert command.done() >= 5
    code, document, err = command.finish()
    assert code in (0, 1, 3), err
    assert decisions(document) == undisturbed
    assert torn(command).total() <= 1
