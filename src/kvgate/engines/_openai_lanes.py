"""What a server can serve: each lane asked with a tiny request, and looked at for numbers that mean nothing."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from kvgate.core.engine import Available, Generate, Generated, Lane, Missing, Tokens, TopKRow
from kvgate.core.errors import BadAnswer

#: Asked of a server to see what it grants; most have a cap of 20.
TOP_K_TRIES = (20, 5, 1)
#: Asked first where a whole text is scored: the more, the closer the bound.
TOP_K_SCORES = (256, 64)
HELLO: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "Say hi."},)
#: A text of several blocks of any prefix cache (vLLM's hold 16 tokens), so that a second asking is answered from it.
_LONG = " ".join(f"The {word} has a line of its own in this short list." for word in ("first", "second", "third"))
_LONG_TEXT = f"{_LONG} Nothing else of any weight was written down here on that day, or on the one after it. {_LONG}"
#: Two runs of one text differ by rounding and batching: 0.01 to 0.1 nat in bfloat16. What is stale differs by nats.
STALE_NAT = 0.5
#: An id that was named must have the value that it has in the top.
NAMED_NAT = 0.25


class Probed(Protocol):
    """The session, as these questions see it."""

    async def generate(self, request: Generate) -> Generated: ...

    async def tokenize(self, text: str, *, special: bool = False) -> Tokens: ...

    async def exact_tokens(self, text: str) -> tuple[int, ...]: ...

    async def metrics(self) -> str: ...

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]: ...

    async def score_beside(
        self, ids: Sequence[int], *, start: int, lane: Lane, k: int, base: Sequence[TopKRow]
    ) -> Sequence[TopKRow]: ...

    @property
    def asked_ids(self) -> int: ...


async def probe_lanes(session: Probed) -> dict[Lane, Available | Missing]:
    """Every lane. An engine that dies or hangs meanwhile raises."""
    hello = list(HELLO)
    found: dict[Lane, Available | Missing] = {
        Lane.CHAT: await _probe(lambda: session.generate(Generate(messages=hello, max_tokens=2))),
        Lane.COMPLETE: await _probe(lambda: session.generate(Generate(prompt="Hello", max_tokens=2))),
        Lane.TOKENIZE: await _probe(lambda: session.exact_tokens("Hello")),
        Lane.METRICS: await _probe(session.metrics),
        Lane.PANEL: Missing("no panel over HTTP: a server keeps its logits"),
    }
    found[Lane.DECODE_TOPK] = await _probe_topk(session, found)
    for lane in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE):
        found[lane] = await _probe_score(session, lane, found[Lane.TOKENIZE])
    return {lane: found[lane] for lane in Lane}


async def _probe(ask: Callable[[], Awaitable[Any]]) -> Available | Missing:
    try:
        await ask()
    except BadAnswer as e:
        return Missing(str(e))
    return Available()


async def _probe_topk(session: Probed, found: Mapping[Lane, Available | Missing]) -> Available | Missing:
    reason = "neither chat nor completions work"
    asks = []
    if isinstance(found[Lane.COMPLETE], Available):
        asks.append(Generate(prompt="Hello", max_tokens=2))
    if isinstance(found[Lane.CHAT], Available):
        asks.append(Generate(messages=list(HELLO), max_tokens=2))
    for ask in asks:
        for k in TOP_K_TRIES:
            try:
                got = await session.generate(
                    Generate(messages=ask.messages, prompt=ask.prompt, max_tokens=2, top_logprobs=k)
                )
            except BadAnswer as e:
                reason = str(e)
                if e.kind == "degenerate_logprobs":
                    break  # a shorter list of the same numbers may look like one; it means no more
                continue
            granted = max((len(p.top) for p in got.topk), default=0)
            if granted:
                return Available({"top_k": granted})
            reason = "logprobs come without alternatives"
    return Missing(reason)


async def _probe_score(session: Probed, lane: Lane, tokens: Available | Missing) -> Available | Missing:
    """Score a short text; the answer's length is what the server grants."""
    if isinstance(tokens, Missing):
        return Missing(f"no tokenizer: {tokens.reason}")
    ids = (await session.tokenize("Hello there, how are you?")).ids
    reason = ""
    for k in (*TOP_K_SCORES, *TOP_K_TRIES):
        try:
            rows = await session.score(ids, start=max(1, len(ids) - 3), lane=lane, k=k)
            limits = {"top_k": min(k, min(len(r.ids) for r in rows))}
            if lane is Lane.PREFILL_TOPK:
                limits |= await _probe_cached(session, limits["top_k"])
        except BadAnswer as e:
            reason = str(e)
            if e.kind in ("degenerate_logprobs", "not_here", "stale"):
                break  # a shorter list of the same numbers may look like one; it means no more
            continue
        return Available(limits)
    return Missing(reason)


async def _probe_cached(session: Probed, k: int) -> dict[str, int]:
    """The same text twice: the second time its prefix is cached, and must give the same rows.

    Returns:
        {"ids": n} where ids may be named and have the values of the top, else {}.

    Raises:
        BadAnswer: kind "stale": the rows of a text are others once its prefix is cached.
    """
    ids = (await session.tokenize(_LONG_TEXT)).ids
    lane, fix = Lane.PREFILL_TOPK, "start the server with its prefix cache off"
    first = await session.score(ids, start=1, lane=lane, k=k)
    try:
        second = await session.score(ids, start=1, lane=lane, k=k)
    except BadAnswer as e:
        raise BadAnswer(f"a text is not scored again once its prefix is cached ({e}): {fix}", kind="stale") from None
    if (far := largest_gap(first, second)) > STALE_NAT:
        raise BadAnswer(
            f"a text's rows are others once its prefix is cached (up to {far:.2g} nat): {fix}", kind="stale"
        )
    return await _probe_named(session, ids, first)


async def _probe_named(session: Probed, ids: Sequence[int], rows: Sequence[TopKRow]) -> dict[str, int]:
    """Whether ids may be named: those of the least certain position's top, asked beside a top of one."""
    at = max(range(len(rows)), key=lambda i: math.fsum(map(math.exp, rows[i].logprobs[1:])))
    row = rows[at]
    if session.asked_ids == 0 or len(row.ids) < 2:
        return {}
    text = ids[: at + 2]
    try:
        (named,) = await session.score_beside(text, start=at + 1, lane=Lane.PREFILL_TOPK, k=1, base=[row])
    except BadAnswer:
        return {}
    here = dict(zip(named.ids, named.logprobs, strict=True))
    gaps = [abs(here.get(i, -math.inf) - x) for i, x in zip(row.ids, row.logprobs, strict=True)]
    return {"ids": session.asked_ids} if max(gaps) <= NAMED_NAT else {}


def largest_gap(first: Sequence[TopKRow], second: Sequence[TopKRow]) -> float:
    """The largest difference of one token's log-probability at one position, in nat, of those over 1 % in either."""
    far = 0.0
    for a, b in zip(first, second, strict=True):
        p, q = dict(zip(a.ids, a.logprobs, strict=True)), dict(zip(b.ids, b.logprobs, strict=True))
        likely = [i for i in p.keys() | q.keys() if max(p.get(i, -math.inf), q.get(i, -math.inf)) > math.log(0.01)]
        floor = min(min(p.values()), min(q.values()))
        # A token that one list lacks is at most as likely as the last that it names.
        far = max([far, *(abs(p.get(i, floor) - q.get(i, floor)) for i in likely)])
    return far
