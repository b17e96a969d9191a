"""Conformance of an engine: what every Driver and Session must do, whatever runs behind it.

`check_engine` starts it (three times); `check_attached` holds a session with a running server to what is left of that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kvgate.core.deployment import Engagement, Expected
from kvgate.core.engine import Attach, Driver, Generate, Lane, Request, Session
from kvgate.core.errors import EngineDied, EngineError, UserError
from kvgate.testing._engine_answers import ASK, check_answers, check_lanes
from kvgate.testing._engine_deployment import check_deployment, check_evidence
from kvgate.testing._engine_panel import check_panel
from kvgate.testing._engine_process import check_death, check_gone, check_key, traces_of
from kvgate.testing._engine_report import GONE_S, EngineReport
from kvgate.testing._engine_resolve import check_resolve
from kvgate.testing._engine_scores import check_scores
from kvgate.testing._need import need

__all__ = ["GONE_S", "EngineReport", "check_attached", "check_engine"]


async def check_engine(driver: Driver, request: Request, *, max_tokens: int = 8) -> EngineReport:
    """Start `request` with `driver` (twice, and its panel) and hold it to the engine contract.

    Args:
        request: of a quantized type, so that a misspelling of it can be tried, with a short context.

    Raises:
        AssertionError: what is wrong, in one sentence.
    """
    report = EngineReport()
    launch = check_resolve(driver, request, report)
    async with driver.open(launch) as session:
        await check_deployment(driver, launch, session, report)
        await check_lanes(session, report)
        await check_key(driver, report)
        ids = (await session.tokenize("A few words for the panel.")).ids
        await check_answers(session, request, max_tokens, report)
        await check_scores(session, request, report)
        traces = traces_of((await session.deployment()).note)
    await check_gone(traces, report)
    check_panel(driver, launch, ids, report)
    await check_death(driver, launch, report)
    return report


async def check_attached(
    driver: Driver, attach: Attach, *, end: Callable[[], Awaitable[None]] | None = None, max_tokens: int = 8
) -> EngineReport:
    """Attach `driver` to a running server and hold the session to what such a one can promise.

    Args:
        end: ends the server, so that the session's next request finds nobody; None leaves that untested.

    Raises:
        AssertionError: what is wrong, in one sentence.
    """
    report = EngineReport()
    _check_address(driver)
    async with driver.open(attach) as session:
        seen = report.deployment = await session.deployment()
        need(seen.subject.spelling == attach.spelling, f"deployment() says {seen.subject.spelling!r} was spelled")
        need(seen.note.pid is None, "a server that somebody else started has no process of ours")
        check_evidence(seen)
        _check_nothing_claimed(driver, session, attach, report)
        await check_lanes(session, report)
        need(not report.has(Lane.PANEL) or driver.name == "fake", "an attached server has no panel")
        await check_answers(session, None, max_tokens, report)
        await check_scores(session, None, report)
        if end is not None:
            await end()
            await _check_nobody(session, report)
    return report


def _check_address(driver: Driver) -> None:
    for url in ("ftp://127.0.0.1/", "127.0.0.1:8000", "http://user:hunter2@127.0.0.1:1"):
        try:
            driver.open(Attach(url))
        except UserError as e:
            need("hunter2" not in str(e), "a refused address shows the password in it")
            continue
        raise AssertionError(f"the address {url!r} was taken")


def _check_nothing_claimed(driver: Driver, session: Session, attach: Attach, report: EngineReport) -> None:
    """Without a log nobody knows what an attached server stores."""
    seen = report.deployment
    if seen is None or attach.log is not None:
        return
    expected = Expected(k_codec="fp8_e4m3", v_codec="fp8_e4m3", bytes_per_token=1)
    level = driver.engaged(expected, seen).level
    need(level is not Engagement.CONFIRMED, "engaged() confirms a type that no log and no page names")
    report.checks.append("nothing unobserved is confirmed")


async def _check_nobody(session: Session, report: EngineReport) -> None:
    try:
        await session.generate(Generate(messages=ASK, max_tokens=2, timeout_s=10.0))
    except EngineDied:
        report.checks.append("a server that is gone is EngineDied")
        return
    except EngineError as e:
        raise AssertionError(f"a server that is gone raised {type(e).__name__}, not EngineDied: {e}") from e
    raise AssertionError("a server that is gone still answered")
