"""Conformance of an engine: what every Driver and Session must do, whatever runs behind it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgate.core.deployment import Deployment, Engagement
from kvgate.core.engine import Available, Driver, Generate, Lane, Launch, Missing, Request, Session
from kvgate.core.errors import BadAnswer, EngineDied, EngineError, EngineTimeout
from kvgate.testing._need import need

#: A child must be gone this long after its session.
GONE_S = 5.0
_TEXTS = ("", "Hello", "Numbers: 1 10 100 1000 1000000.", "Grüße, 日本, 🙂\nline")
_ASK: Sequence[dict[str, Any]] = ({"role": "user", "content": "Name three colours, please."},)


@dataclass
class EngineReport:
    """What was seen, for a plug-in's own tests."""

    deployment: Deployment | None = None
    lanes: dict[Lane, Available | Missing] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)


async def check_engine(driver: Driver, request: Request, *, max_tokens: int = 8) -> EngineReport:
    """Start `request` with `driver` (three times) and hold it to the engine contract.

    Raises:
        AssertionError: what is wrong, in one sentence.
    """
    report = EngineReport()
    launch = driver.resolve(request)
    _check_launch(driver, request, launch, report)
    async with driver.open(launch) as session:
        await _check_deployment(driver, launch, session, report)
        await _check_lanes(session, report)
        await _check_key(report)
        if isinstance(report.lanes[Lane.TOKENIZE], Available):
            await _check_tokens(session, report)
        if isinstance(report.lanes[Lane.CHAT], Available):
            await _check_chat(session, max_tokens, report)
        if isinstance(report.lanes[Lane.DECODE_TOPK], Available):
            await _check_topk(session, max_tokens, report)
        await _check_overflow(session, request, report)
        await _check_timeout(session, report)
    await _check_gone(report)
    await _check_death(driver, launch, report)
    return report


def _check_launch(driver: Driver, request: Request, launch: Launch, report: EngineReport) -> None:
    need(launch.engine == driver.name, f"resolve() returned engine {launch.engine!r}, the driver is {driver.name!r}")
    need(launch == driver.resolve(request), "resolve() is not pure: two calls with one request differ")
    need(launch.expected.bytes_per_token > 0, "Expected.bytes_per_token is not positive")
    need(isinstance(launch.argv, tuple), "argv must be a tuple of arguments, never a shell line")
    report.checks.append("resolve is pure")


async def _check_deployment(driver: Driver, launch: Launch, session: Session, report: EngineReport) -> None:
    seen = report.deployment = await session.deployment()
    need(seen.identity.engine == driver.name, f"deployment() says engine {seen.identity.engine!r}")
    need(seen.subject.requested and seen.subject.effective, "deployment() does not say what recipe was requested")
    need(seen.identity.version or seen.identity.build, "deployment() knows neither version nor build")
    need(seen.consequence.k_codec and seen.consequence.v_codec, "deployment() observed no KV cache types")
    need(seen.evidence, "deployment() has no evidence lines")
    again = await session.deployment()
    need(seen.digest() == again.digest(), "deployment() changed between two calls on one server")
    engaged = driver.engaged(launch.expected, seen)
    need(engaged.level is Engagement.CONFIRMED, f"engaged() says {engaged.level.value}: {engaged.reason}")
    report.checks.append("deployment observed, recipe confirmed")


async def _check_lanes(session: Session, report: EngineReport) -> None:
    report.lanes = dict(await session.lanes())
    absent = [lane.value for lane in Lane if lane not in report.lanes]
    need(not absent, f"lanes() says nothing about {absent}; say Available or Missing(reason)")
    for lane, found in report.lanes.items():
        need(isinstance(found, Available) or found.reason.strip(), f"lane {lane.value} is missing without a reason")
    report.checks.append("every lane probed")


async def _check_key(report: EngineReport) -> None:
    """A server of ours answers nobody without the key, on loopback only."""
    note = report.deployment.note if report.deployment else None
    if note is None or note.port is None:
        return
    need(note.host in ("127.0.0.1", "::1", "localhost"), f"the server listens on {note.host}, not on loopback")
    reader, writer = await asyncio.open_connection(note.host, note.port)
    body = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {note.host}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    status = (await asyncio.wait_for(reader.readline(), GONE_S)).split()[1:2]
    writer.close()
    need(status in ([b"401"], [b"403"]), f"a request without the key was answered {status}, not 401 or 403")
    report.checks.append("the key is required")


async def _check_tokens(session: Session, report: EngineReport) -> None:
    for text in _TEXTS:
        tokens = await session.tokenize(text)
        need(tokens == await session.tokenize(text), f"tokenize({text!r}) differs between two calls")
        need(all(isinstance(i, int) and i >= 0 for i in tokens.ids), f"tokenize({text!r}) returned no token ids")
        need(bool(tokens.ids) == bool(text), f"tokenize({text!r}) returned {len(tokens.ids)} ids")
    short, long = [len((await session.tokenize("1000 tokens " * n)).ids) for n in (10, 100)]
    # Pieces may merge at the joints, but ten times the text is about ten times the tokens.
    need(9 * short <= long <= 11 * short, f"tokenize: {short} ids for a text, {long} for ten times the text")
    report.checks.append("tokenize is deterministic and grows with the text")


async def _check_chat(session: Session, max_tokens: int, report: EngineReport) -> None:
    ask = Generate(messages=_ASK, max_tokens=max_tokens, temperature=0.0, seed=1)
    first, second = await session.generate(ask), await session.generate(ask)
    need(first.text == second.text, f"temperature 0 gave two answers: {first.text!r} and {second.text!r}")
    need(first.finish_reason in ("length", "stop"), f"finish_reason is {first.finish_reason!r}")
    said = first.usage.get("completion_tokens")
    need(said is None or 0 < said <= max_tokens, f"usage counts {said} tokens where {max_tokens} were allowed")
    streamed = await session.generate(Generate(messages=_ASK, max_tokens=max_tokens, seed=1, stream=True))
    need(streamed.text == first.text, f"streamed {streamed.text!r}, whole {first.text!r}")
    times = [t for t, _ in streamed.events]
    need(times and times == sorted(times), "a stream must report the arrival of its events, in order")
    counts = [n for _, n in streamed.events if n is not None]
    need(counts == sorted(counts), f"token counts of a stream run backwards: {counts}")
    report.checks.append("chat is deterministic at temperature 0, whole and streamed")


async def _check_topk(session: Session, max_tokens: int, report: EngineReport) -> None:
    got = await session.generate(Generate(prompt="The sea is", max_tokens=max_tokens, top_logprobs=3))
    need(got.topk, "DECODE_TOPK is available, but no logprobs came")
    for p in got.topk:
        need(len(p.top) <= 3, f"3 alternatives were asked for, {len(p.top)} came")
        need(all(math.isfinite(x) and x <= 1e-3 for _, x in p.top), f"no log-probabilities: {p.top}")
        values = [x for _, x in p.top]
        need(values == sorted(values, reverse=True), f"top logprobs are not in order: {values}")
    report.checks.append("top logprobs are in order and plausible")


async def _check_overflow(session: Session, request: Request, report: EngineReport) -> None:
    """A prompt that cannot fit is refused, not answered."""
    if not isinstance(report.lanes[Lane.COMPLETE], Available):
        return
    text = "one two three four five six seven eight " * (request.settings.context_tokens // 4)
    try:
        got = await session.generate(Generate(prompt=text, max_tokens=4))
    except BadAnswer:
        report.checks.append("a prompt over the context is refused")
        return
    raise AssertionError(f"a prompt over the context was answered: {got.text[:80]!r}")


async def _check_timeout(session: Session, report: EngineReport) -> None:
    ask = Generate(messages=_ASK, max_tokens=64, timeout_s=1e-4)
    if not isinstance(report.lanes[Lane.CHAT], Available):
        return
    try:
        await session.generate(ask)
    except EngineTimeout:
        report.checks.append("too slow is EngineTimeout")
        return
    except EngineError as e:
        raise AssertionError(f"a request over its time raised {type(e).__name__}, not EngineTimeout: {e}") from e
    raise AssertionError("a request was answered within 0.1 ms: timeout_s is not observed")


async def _check_gone(report: EngineReport) -> None:
    pid = report.deployment.note.pid if report.deployment else None
    if pid is None:
        return
    need(await _gone(pid), f"process {pid} still runs {GONE_S:g} s after its session was closed")
    report.checks.append("no process outlives its session")


async def _check_death(driver: Driver, launch: Launch, report: EngineReport) -> None:
    """A killed engine is EngineDied, on the next request at the latest, and leaves nothing behind."""
    async with driver.open(launch) as session:
        pid = (await session.deployment()).note.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        try:
            await session.generate(Generate(messages=_ASK, max_tokens=4))
        except EngineDied:
            report.checks.append("a killed engine is EngineDied")
        except EngineError as e:
            raise AssertionError(f"a killed engine raised {type(e).__name__}, not EngineDied: {e}") from e
        else:
            raise AssertionError("a killed engine still answered: requests do not go to the process that was named")
    need(await _gone(pid), f"killed process {pid} was not reaped")


async def _gone(pid: int) -> bool:
    for _ in range(int(GONE_S / 0.05)):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.05)
    return False
