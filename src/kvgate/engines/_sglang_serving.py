"""Sessions with SGLang: a server of our own, with a random key, on loopback; or one that already runs."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from kvgate.core.deployment import Deployment, Note
from kvgate.core.engine import Attach, Available, Generate, Generated, Lane, Launch, Missing
from kvgate.core.errors import BadAnswer
from kvgate.engines._attached import describe
from kvgate.engines._family_child import Started, family, has_said
from kvgate.engines._family_log import log_of
from kvgate.engines._http import check_url
from kvgate.engines._kvlog import LogFacts
from kvgate.engines._openai_session import OpenAISession
from kvgate.engines._sglang_info import PATHS, ServerInfo, info_of
from kvgate.engines._sglang_logprobs import PastTheCache
from kvgate.engines._sglang_observe import ATTACHED, consequence_of, deployment_of, evidence_of
from kvgate.engines._sglang_resolve import ENGINE, FAMILY, MODEL_NAME
from kvgate.plan.log_text import lines_of

#: Written after the server has answered its own first request; in all versions read.
READY: Final = "The server is fired up and ready to roll!"
#: The first request of a text that was never asked for makes kernels.
_WARM_UP_S: Final = 300.0
_NO_PANEL: Final = "SGLang gives no logits of a whole vocabulary from several caches in lockstep"


class SglangSession(OpenAISession):
    """What SGLang has beside OpenAI's interface: `/generate` with log-probabilities of the prompt, its own page.

    Every request carries a salt of its own, so that no answer hangs on what was asked before.
    """

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        # llama.cpp's own endpoint is not there; asking for it would be one request more a text.
        self._native = False
        self._server = PastTheCache(self._speculates)
        self._info: ServerInfo | None = None

    async def info(self) -> ServerInfo:
        """The server's own page, read once; all unknown where it has none."""
        if self._info is None:
            self._info = ServerInfo()
            for path in PATHS:
                with suppress(BadAnswer):
                    self._info = info_of(await self.get_json(path))
                    break
        return self._info

    async def generate(self, request: Generate) -> Generated:
        """As `OpenAISession.generate`, past the radix cache."""
        extra = {"cache_salt": secrets.token_hex(8)} | dict(request.extra)
        return await super().generate(replace(request, extra=extra))

    async def _speculates(self) -> str:
        """Why log-probabilities of this server mean nothing; "" where they do."""
        algorithm = (await self.info()).word("speculation")
        if algorithm in (None, "none"):
            return ""
        return f"speculative decoding is on ({algorithm}): log-probabilities are of the draft's check, not of steps"

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """As `OpenAISession.lanes`; log-probabilities under speculation are no lane."""
        if self._lanes is None:
            found = dict(await super().lanes())
            found[Lane.PANEL] = Missing(_NO_PANEL)
            if why := await self._speculates():
                found[Lane.DECODE_TOPK] = Missing(why)
            self._lanes = found
        return self._lanes


class SglangServer(SglangSession):
    """One server that we started."""

    def __init__(self, started: Started, launch: Launch) -> None:
        super().__init__(started.url, api_key=started.api_key, model=MODEL_NAME, alive=started.ended)
        self.launch, self._started = launch, started
        self._load_log = tuple(started.lines())
        self._deployment: Deployment | None = None

    def load_log(self) -> tuple[str, ...]:
        """The whole load log, for the records."""
        return self._load_log

    async def observe(self) -> None:
        """Ask for one token, so that no case pays for kernels that are made at first use; then read log and page."""
        body = {"model": MODEL_NAME, "prompt": [1] * 8, "max_tokens": 1, "temperature": 0.0, "cache_salt": "warm-up"}
        await self.post_json("/v1/completions", body, timeout_s=_WARM_UP_S)
        made = deployment_of(
            self.launch,
            self._load_log,
            await self.info(),
            package=self._started.package,
            version=self._started.version,
            note=self._started.note,
        )
        self._deployment = made

    async def deployment(self) -> Deployment:
        """From this process's load log and its own page."""
        if self._deployment is None:
            raise RuntimeError("nothing was observed yet")
        return self._deployment


class SglangAttached(SglangSession):
    """A server that somebody else started: what its page says, and its log where the person has it."""

    def __init__(self, attach: Attach) -> None:
        super().__init__(check_url(attach.url), api_key=attach.api_key, spelling=attach.spelling)
        self._lines = () if attach.log is None else tuple(line.text for line in lines_of(attach.log))

    async def deployment(self) -> Deployment:
        """Types come from the log alone: the page names the argument, not what is stored."""
        pages: dict[str, Any] = {}
        with suppress(BadAnswer):
            pages["/v1/models"] = await self.get_json("/v1/models")
        info, log = await self.info(), log_of(ENGINE, self._lines)
        made = describe(self._http.url, self._spelling, pages, LogFacts(consequence_of(log), ()))
        told = {
            "engine": ENGINE,
            "version": info.word("version"),
            "device": info.device,
            "tensor_parallel": info.whole("tp"),
            "pipeline_parallel": info.whole("pp"),
            "ubatch_tokens": info.chunk_tokens,
            "slots": info.whole("slots"),
            "prefix_cache": info.flag("prefix_cache"),
            "speculation": info.word("speculation"),
            "context_tokens": made.identity.context_tokens or info.whole("context_tokens"),
        }
        note = Note(place=ATTACHED, host=made.note.host, port=made.note.port)
        return made.model_copy(
            update={
                "identity": made.identity.model_copy(update=told),
                "loud": made.loud.model_copy(update={"backend": info.word("backend")}),
                "note": note,
                "evidence": (*made.evidence, *evidence_of(log, info)),
            }
        )


@asynccontextmanager
async def serve(launch: Launch) -> AsyncIterator[SglangServer]:
    """Start a server and give its session; all its processes are gone when this ends, however it ends.

    Raises:
        EngineDied: it ended while loading, with the line that says why. EngineTimeout: it never was ready.
        UserError: the interpreter cannot be started.
    """
    async with family(launch, FAMILY, has_said(READY)) as started:
        session = SglangServer(started, launch)
        async with session:
            await session.observe()
            yield session
