"""An engine in this process, with every lane and no child: what mutants of drivers are made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from difflib import get_close_matches
from typing import Any

from engines.toy_server import grown, logprobs, rendered, tokens
from kvgate.core.deployment import Consequence, Deployment, Engaged, Engagement, Expected, Identity, Note, Subject
from kvgate.core.engine import (
    ArmId,
    Attach,
    Available,
    Generate,
    Generated,
    Lane,
    Launch,
    Missing,
    Panel,
    Request,
    Session,
    TokenLogprobs,
    Tokens,
    TopKRow,
)
from kvgate.core.errors import BadAnswer, EngineTimeout, LaneUnavailable, UserError

STORES = ("f16", "q8_0", "fp8_e4m3")


class ToySession:
    """Bytes are tokens; the context is the request's."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    async def deployment(self) -> Deployment:
        want = self.launch.request
        return Deployment(
            identity=Identity(engine="toy", version="1"),
            subject=Subject(spelling=want.spelling, requested=str(want.recipe), effective=str(self.launch.effective)),
            consequence=Consequence(k_codec=self.launch.expected.k_codec, v_codec=self.launch.expected.v_codec),
            note=Note(place="serving"),
            evidence=("toy: the cache is what was asked for",),
        )

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        found: dict[Lane, Available | Missing] = {lane: Available() for lane in Lane}
        for lane in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE, Lane.DECODE_TOPK):
            found[lane] = Available({"top_k": 26})
        return found | {Lane.PANEL: Missing("a toy has no panel")}

    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        return Tokens(tuple(text.encode()))

    async def generate(self, request: Generate) -> Generated:
        text = request.prompt if request.prompt is not None else rendered(request.messages or ())
        ids = tokens(list(text) if not isinstance(text, str) else text)
        self.fits(len(ids) + request.max_tokens)
        if request.timeout_s < 0.001:
            raise EngineTimeout("no whole answer in time")
        await asyncio.sleep(0)
        made = list(grown(ids, request.max_tokens))
        said = "".join(chr(t) for t, _ in made)
        tops = tuple(self.top(top, request.top_logprobs) for _, top in made) if request.top_logprobs else ()
        events = tuple((time.monotonic_ns(), n + 1) for n in range(len(made))) if request.stream else ()
        usage = {"completion_tokens": len(made)}
        return Generated(said, "length", usage=usage, events=events, topk=tops, raw={"text": said})

    def top(self, top: Sequence[tuple[int, float]], k: int) -> TokenLogprobs:
        return TokenLogprobs(chr(top[0][0]), top[0][1], tuple((chr(i), x) for i, x in top[:k]))

    def fits(self, n: int) -> None:
        if n > self.launch.request.settings.context_tokens:
            raise BadAnswer("too long", kind="context_exceeded")

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        self.fits(len(ids))
        rows = (logprobs(ids[:n])[:k] for n in range(start, len(ids)))
        return [TopKRow(tuple(i for i, _ in row), tuple(x for _, x in row)) for row in rows]

    async def metrics(self) -> str:
        return "toy_up 1\n"


class ToyDriver:
    """Starts nothing; `session` is what a mutant of the session replaces."""

    name = "toy"
    aliases: tuple[str, ...] = ()
    session: type[ToySession] = ToySession

    def resolve(self, want: Request) -> Launch:
        codec = want.recipe.k.codec if want.recipe.k is not None else "f16"
        if codec not in STORES:
            near = get_close_matches(codec, STORES, n=1)
            fix = f"did you mean {near[0]!r}?" if near else ""
            raise UserError(f"toy does not store {codec!r}", allowed=STORES, fix=fix)
        expected = Expected(k_codec=codec, v_codec=codec, bytes_per_token=1)
        return Launch("toy", want, ("toy",), {}, {}, expected, want.recipe)

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        assert isinstance(launch, Launch)
        return self._opened(launch)

    @asynccontextmanager
    async def _opened(self, launch: Launch) -> AsyncIterator[Session]:
        yield self.session(launch)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        raise LaneUnavailable("a toy has no panel")

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        return None

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        seen: Any = observed.consequence
        if seen.k_codec is None:
            return Engaged(Engagement.UNOBSERVED, "nothing was seen")
        level = Engagement.CONFIRMED if seen.k_codec == expected.k_codec else Engagement.CONTRADICTED
        return Engaged(level, f"it says {seen.k_codec}", observed.evidence)
