"""Of a session: rows of a given text, on every lane that gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvgate.core.engine import Available, Generate, Lane, Request, Session, TopKRow
from kvgate.core.errors import BadAnswer, EngineError
from kvgate.testing._engine_report import EngineReport
from kvgate.testing._need import need

LANES = (Lane.PREFILL_TOPK, Lane.FORCED_DECODE)
_TEXT = "The river carries its sand to the sea, and the sea gives it back."
_K = 4
#: Two runs of one text differ by rounding and batching: at most 0.1 nat in bfloat16.
SAME_NAT = 0.25
#: As of a softmax in float32.
_OVER_ONE = 1e-3
_CONTEXTS = 2


async def check_scores(session: Session, request: Request | None, report: EngineReport) -> None:
    """Count, order, ids, mass, repetition, position; a text over the context is refused."""
    lanes = [lane for lane in LANES if report.has(lane)]
    if not lanes:
        return
    need(report.has(Lane.TOKENIZE), f"lane {lanes[0].value} is available without a tokenizer")
    ids = (await session.tokenize(_TEXT)).ids
    for lane in lanes:
        found = report.lanes[lane]
        limits = found.limits if isinstance(found, Available) else {}
        need(limits.get("top_k", 0) >= 1, f"lane {lane.value} does not say how many entries it gives (top_k)")
        await _check_lane(session, lane, ids, min(_K, limits["top_k"]), report)
        if request is not None:
            await _check_too_long(session, lane, ids, request, report)


async def _check_lane(session: Session, lane: Lane, ids: Sequence[int], k: int, report: EngineReport) -> None:
    start = max(1, len(ids) - 6)
    rows = await session.score(ids, start=start, lane=lane, k=k)
    need(len(rows) == len(ids) - start, f"{lane.value}: {len(rows)} rows for {len(ids) - start} positions")
    for i, row in enumerate(rows):
        check_row(row, k, f"{lane.value} at token {start + i}")
    need(len(rows) < 2 or any(r != rows[0] for r in rows), f"{lane.value}: the same top at all {len(rows)} positions")
    again = await session.score(ids, start=start, lane=lane, k=k)
    need(_gap(rows, again) <= SAME_NAT, f"{lane.value}: a text scored twice gave other rows")
    last = await session.score(ids, start=len(ids) - 1, lane=lane, k=k)
    need(len(last) == 1, f"{lane.value}: {len(last)} rows for one position")
    need(_gap(rows[-1:], last) <= SAME_NAT, f"{lane.value}: the last row hangs on where scoring starts")
    cut = await session.score(ids[:-1], start=start, lane=lane, k=k)
    need(_gap(rows[:-1], cut) <= SAME_NAT, f"{lane.value}: rows hang on tokens that come after them")
    if report.has(Lane.DECODE_TOPK) and report.has(Lane.COMPLETE):
        await _check_generated(session, lane, ids, rows[-2:], k)
    report.checks.append(f"{lane.value} rows are sorted, of probabilities, and of their positions")


async def _check_generated(session: Session, lane: Lane, ids: Sequence[int], rows: Sequence[TopKRow], k: int) -> None:
    """A row is what the engine chooses from after the text before it, not after the text with it."""
    for row, n in zip(rows, (len(ids) - 2, len(ids) - 1), strict=True):
        got = await session.generate(Generate(prompt=list(ids[:n]), max_tokens=1, top_logprobs=k))
        made = [x for _, x in got.topk[0].top] if got.topk else []
        gaps = [abs(a - b) for a, b in zip(row.logprobs, made, strict=False)]
        need(gaps, f"{lane.value}: generation after {n} tokens gave no tops to compare with")
        need(
            max(gaps) <= SAME_NAT,
            f"{lane.value}: the row of token {n} is {_shown(row.logprobs)}, generation chooses from {_shown(made)}",
        )


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{x:.2f}" for x in values[:_K])


def check_row(row: TopKRow, k: int, where: str) -> None:
    """One row: ids and log-probabilities, most likely first, no id twice, no more mass than 1.

    Raises:
        AssertionError: what is wrong with it.
    """
    need(len(row.ids) == len(row.logprobs), f"{where}: {len(row.ids)} ids and {len(row.logprobs)} log-probabilities")
    need(len(row.ids) >= k, f"{where}: {k} entries were asked for and promised, {len(row.ids)} came")
    need(all(isinstance(i, int) and i >= 0 for i in row.ids), f"{where}: no token ids: {row.ids[:4]}")
    need(len(set(row.ids)) == len(row.ids), f"{where}: a token twice in one top")
    values = list(row.logprobs)
    need(all(math.isfinite(x) and x <= _OVER_ONE for x in values), f"{where}: no log-probabilities: {values[:4]}")
    need(values == sorted(values, reverse=True), f"{where}: not most likely first: {values[:4]}")
    need(math.fsum(map(math.exp, values)) <= 1 + _OVER_ONE, f"{where}: a top sums to more than 1")


def _gap(a: Sequence[TopKRow], b: Sequence[TopKRow]) -> float:
    """Largest difference of the log-probability of an id that both rows of a position name; infinite if none is."""
    if len(a) != len(b):
        return math.inf
    far = 0.0
    for p, q in zip(a, b, strict=True):
        theirs = dict(zip(q.ids, q.logprobs, strict=True))
        shared = [abs(x - theirs[i]) for i, x in zip(p.ids, p.logprobs, strict=True) if i in theirs]
        far = max(far, max(shared, default=math.inf), 0.0 if p.ids[0] in theirs else math.inf)
    return far


async def _check_too_long(
    session: Session, lane: Lane, ids: Sequence[int], request: Request, report: EngineReport
) -> None:
    """A text over the context is BadAnswer, never numbers. One whole request: stepwise lanes would take a step each."""
    times = _CONTEXTS * request.settings.context_tokens // len(ids) + 1
    text = list(ids) * times
    try:
        rows = await session.score(text, start=len(text) - 1, lane=lane, k=1)
    except BadAnswer:
        report.checks.append(f"{lane.value} refuses a text over the context")
        return
    except EngineError as e:
        raise AssertionError(f"{lane.value} over the context raised {type(e).__name__}, not BadAnswer: {e}") from e
    raise AssertionError(f"{lane.value}: a text over the context was scored: {rows[0].logprobs[:2]}")
