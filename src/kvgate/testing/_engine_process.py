"""Of the processes behind a session: a key that nobody sees, no process and no port left, a death that is named."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from kvgate.core.deployment import Note
from kvgate.core.engine import Driver, Generate, Launch
from kvgate.core.errors import EngineDied, EngineError
from kvgate.testing._engine_answers import ASK
from kvgate.testing._engine_report import GONE_S, EngineReport
from kvgate.testing._engine_resolve import SECRET
from kvgate.testing._need import need


@dataclass(frozen=True)
class Traces:
    """What must be gone after a session: processes and a port."""

    pids: tuple[int, ...]
    host: str | None
    port: int | None


def traces_of(note: Note) -> Traces:
    """The process that was named and all of its group, if that is not ours."""
    if note.pid is None:
        return Traces((), note.host, note.port)
    pids = {note.pid}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            group = os.getpgid(int(process.name))
        except ProcessLookupError:
            continue
        if group == note.pid:
            pids.add(int(process.name))
    return Traces(tuple(sorted(pids)), note.host, note.port)


async def check_key(driver: Driver, report: EngineReport) -> None:
    """A server of ours answers nobody without the key, on loopback only; the key is on no command line.

    A driver whose engine takes no key says `takes_key = False`; then it must at least listen on loopback.
    """
    note = report.deployment.note if report.deployment else None
    if note is None or note.port is None or note.host is None:
        return
    need(note.host in ("127.0.0.1", "::1", "localhost"), f"the server listens on {note.host}, not on loopback")
    report.checks.append("only loopback is listened on")
    _check_command_line(note)
    if not getattr(driver, "takes_key", True):
        report.untested.append(f"{driver.name} takes no key")
        return
    reader, writer = await asyncio.open_connection(note.host, note.port)
    body = b'{"model":"model","messages":[{"role":"user","content":"hi"}],"max_tokens":1}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {note.host}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    status = (await asyncio.wait_for(reader.readline(), GONE_S)).split()[1:2]
    writer.close()
    need(status in ([b"401"], [b"403"]), f"a request without the key was answered {status}, not 401 or 403")
    report.checks.append("the key is required")


def _check_command_line(note: Note) -> None:
    """Anybody on the machine reads command lines; variables are the same user's, and held to be private enough."""
    for pid in traces_of(note).pids:
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        for word in words:
            # Paths are full of long names.
            need("/" in word or SECRET.search(word) is None, f"process {pid} has what looks like a key among its words")


async def check_gone(traces: Traces, report: EngineReport) -> None:
    """After close: no process of the family, and nobody at the port."""
    if traces.pids:
        for pid in traces.pids:
            need(await _gone(pid), f"process {pid} still runs {GONE_S:g} s after its session was closed")
        report.checks.append("no process outlives its session")
    if traces.port is not None and traces.host is not None and traces.pids:
        need(not await _listens(traces.host, traces.port), f"port {traces.port} is still listened on after the session")
        report.checks.append("no port outlives its session")


async def check_death(driver: Driver, launch: Launch, report: EngineReport) -> None:
    """A killed engine is EngineDied, on the next request at the latest, and leaves nothing behind."""
    async with driver.open(launch) as session:
        note = (await session.deployment()).note
        if note.pid is None:
            report.untested.append("the engine has no process that could be killed")
            return
        traces = traces_of(note)
        os.kill(note.pid, signal.SIGKILL)
        try:
            await session.generate(Generate(messages=ASK, max_tokens=4))
        except EngineDied:
            report.checks.append("a killed engine is EngineDied")
        except EngineError as e:
            raise AssertionError(f"a killed engine raised {type(e).__name__}, not EngineDied: {e}") from e
        else:
            raise AssertionError("a killed engine still answered: requests do not go to the process that was named")
    for pid in traces.pids:
        need(await _gone(pid), f"process {pid} of a killed engine is still there")


async def _gone(pid: int) -> bool:
    for _ in range(int(GONE_S / 0.05)):
        if _has_ended(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def _has_ended(pid: int) -> bool:
    """Gone, or a zombie that another process has yet to collect; a zombie of ours was not reaped, and counts."""
    try:
        os.kill(pid, 0)
        state, parent = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[:2]
    except (ProcessLookupError, FileNotFoundError):
        return True
    except OSError:
        return False
    return state in "ZX" and int(parent) != os.getpid()


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
