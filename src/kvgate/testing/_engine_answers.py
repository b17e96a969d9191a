"""Of a session: lanes, tokens, chat, tops of generated tokens, and the errors that are no answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvgate.core.engine import Generate, Lane, Missing, Request, Session
from kvgate.core.errors import BadAnswer, EngineError, EngineTimeout
from kvgate.testing._engine_report import EngineReport
from kvgate.testing._need import need

_TEXTS = ("", "Hello", "Numbers: 1 10 100 1000 1000000.", "Grüße, 日本, 🙂\nline")
ASK: Sequence[dict[str, Any]] = ({"role": "user", "content": "Name three colours, please."},)


async def check_lanes(session: Session, report: EngineReport) -> None:
    """Every lane is there or missing with a reason, and twice the same."""
    report.lanes = dict(await session.lanes())
    absent = [lane.value for lane in Lane if lane not in report.lanes]
    need(not absent, f"lanes() says nothing about {absent}; say Available or Missing(reason)")
    for lane, found in report.lanes.items():
        if isinstance(found, Missing):
            need(found.reason.strip(), f"lane {lane.value} is missing without a reason")
            need("\n" not in found.reason, f"lane {lane.value} is missing for a reason of several lines")
        else:
            bad = {k: v for k, v in found.limits.items() if not isinstance(v, int) or v < 1}
            need(not bad, f"lane {lane.value} has limits that are none: {bad}")
    need(dict(await session.lanes()) == report.lanes, "lanes() differs between two calls")
    report.checks.append("every lane probed")


async def check_answers(session: Session, request: Request | None, max_tokens: int, report: EngineReport) -> None:
    """All lanes that generate; `request` says what does not fit."""
    if report.has(Lane.TOKENIZE):
        await _check_tokens(session, report)
    if report.has(Lane.CHAT):
        await _check_chat(session, max_tokens, report)
    if report.has(Lane.DECODE_TOPK):
        await _check_topk(session, max_tokens, report)
    if report.has(Lane.METRICS):
        need((await session.metrics()).strip(), "METRICS is available, and the page is empty")
    if request is not None:
        await _check_overflow(session, request, report)
    if report.has(Lane.CHAT):
        await _check_timeout(session, report)


async def _check_tokens(session: Session, report: EngineReport) -> None:
    for text in _TEXTS:
        tokens = await session.tokenize(text)
        need(tokens == await session.tokenize(text), f"tokenize({text!r}) differs between two calls")
        need(all(isinstance(i, int) and i >= 0 for i in tokens.ids), f"tokenize({text!r}) returned no token ids")
        need(bool(tokens.ids) == bool(text), f"tokenize({text!r}) returned {len(tokens.ids)} ids")
        need(tokens.exact, "TOKENIZE is available, and tokenize() guesses")
    short, long = [len((await session.tokenize("1000 tokens " * n)).ids) for n in (10, 100)]
    # Pieces may merge at the joints, but ten times the text is about ten times the tokens.
    need(9 * short <= long <= 11 * short, f"tokenize: {short} ids for a text, {long} for ten times the text")
    report.checks.append("tokenize is deterministic and grows with the text")


async def _check_chat(session: Session, max_tokens: int, report: EngineReport) -> None:
    ask = Generate(messages=ASK, max_tokens=max_tokens, temperature=0.0, seed=1)
    first, second = await session.generate(ask), await session.generate(ask)
    need(first.text == second.text, f"temperature 0 gave two answers: {first.text!r} and {second.text!r}")
    need(first.finish_reason in ("length", "stop"), f"finish_reason is {first.finish_reason!r}")
    said = first.usage.get("completion_tokens")
    need(said is None or 0 < said <= max_tokens, f"usage counts {said} tokens where {max_tokens} were allowed")
    need(first.raw, "generate() keeps no raw answer")
    streamed = await session.generate(Generate(messages=ASK, max_tokens=max_tokens, seed=1, stream=True))
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
        values = [x for _, x in p.top]
        need(all(math.isfinite(x) and x <= 1e-3 for x in values), f"no log-probabilities: {p.top}")
        need(values == sorted(values, reverse=True), f"top logprobs are not in order: {values}")
        need(math.fsum(map(math.exp, values)) <= 1 + 1e-3, f"a top of generated tokens sums to more than 1: {p.top}")
    report.checks.append("top logprobs are in order and plausible")


async def _check_overflow(session: Session, request: Request, report: EngineReport) -> None:
    """What cannot fit is refused, not answered, on every lane that takes a text."""
    text = "one two three four five six seven eight " * (request.settings.context_tokens // 4)
    asks = {
        Lane.COMPLETE: Generate(prompt=text, max_tokens=4),
        Lane.CHAT: Generate(messages=[{"role": "user", "content": text}], max_tokens=4),
    }
    for lane, ask in asks.items():
        if not report.has(lane):
            continue
        try:
            got = await session.generate(ask)
        except BadAnswer:
            continue
        except EngineError as e:
            raise AssertionError(
                f"a {lane.value} over the context raised {type(e).__name__}, not BadAnswer: {e}"
            ) from e
        raise AssertionError(f"a {lane.value} over the context was answered: {got.text[:80]!r}")
    if any(report.has(lane) for lane in asks):
        report.checks.append("a prompt over the context is refused")


async def _check_timeout(session: Session, report: EngineReport) -> None:
    ask = Generate(messages=ASK, max_tokens=64, timeout_s=1e-4)
    try:
        await session.generate(ask)
    except EngineTimeout:
        report.checks.append("too slow is EngineTimeout")
        return
    except EngineError as e:
        raise AssertionError(f"a request over its time raised {type(e).__name__}, not EngineTimeout: {e}") from e
    raise AssertionError("a request was answered within 0.1 ms: timeout_s is not observed")
