"""How fast a llama.cpp server is on this machine now: two short requests, by the server's own timings."""

from __future__ import annotations

from typing import Any

from kvgate.core.engine import Speed
from kvgate.core.errors import BadAnswer
from kvgate.engines._llama_serving import NO_PROMPT_CACHE, LlamaCppSession

SHORT_TOKENS, LONG_TOKENS, WRITE_TOKENS = 64, 512, 8


async def speed_of(session: LlamaCppSession) -> Speed:
    """Measure reading at two lengths and writing; about 600 tokens of work.

    Raises:
        EngineError: the server failed, or answers without timings.
    """
    word = (await session.tokenize(" word")).ids[-1]
    room = session.launch.engine_options["n_ctx"] // session.launch.engine_options["n_parallel"]
    long = min(LONG_TOKENS, room - WRITE_TOKENS - 1)
    short_ms, _ = await _timed(session, [word] * SHORT_TOKENS, 1)
    long_ms, write_ms = await _timed(session, [word] * long, WRITE_TOKENS)
    return speed_from(SHORT_TOKENS, short_ms, long, long_ms, write_ms)


def speed_from(short: int, short_ms: float, long: int, long_ms: float, write_ms: float) -> Speed:
    """The curve a * n + b * n * n through two measured points, neither part below 0 (a busy machine bends it).

    Args:
        short, long: tokens read; short < long.
    """
    each_short, each_long = short_ms / short, long_ms / long
    attend = min(max(0.0, (each_long - each_short) / (long - short)), each_long / long)
    return Speed(each_long - attend * long, attend, write_ms)


async def _timed(session: LlamaCppSession, ids: list[int], n: int) -> tuple[float, float]:
    """Milliseconds of reading all of `ids`, and of one written token."""
    body: dict[str, Any] = {"prompt": ids, "n_predict": n, "temperature": 0.0, "ignore_eos": True, **NO_PROMPT_CACHE}
    answer = await session.post_json("/completion", body)
    try:
        timings = answer["timings"]
        return float(timings["prompt_ms"]), float(timings["predicted_ms"]) / float(timings["predicted_n"])
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        raise BadAnswer("/completion answers without timings") from None
