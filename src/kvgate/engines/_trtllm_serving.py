"""Sessions with TensorRT-LLM: a server of our own on loopback (it takes no key), or one that already runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from kvgate.core.deployment import Consequence, Deployment, Note
from kvgate.core.engine import Attach, Available, Lane, Launch, Missing, TopKRow
from kvgate.core.errors import BadAnswer, EngineError
from kvgate.engines._attached import describe
from kvgate.engines._family_child import Started, family
from kvgate.engines._family_log import log_of
from kvgate.engines._http import HttpClient, check_url
from kvgate.engines._kvlog import LogFacts
from kvgate.engines._openai_session import OpenAISession
from kvgate.engines._trtllm_observe import ATTACHED, deployment_of, evidence_of
from kvgate.engines._trtllm_resolve import ENGINE, FAMILY
from kvgate.engines._trtllm_tokens import FolderTokens
from kvgate.plan.log_text import lines_of

#: Prometheus' page; `/metrics` holds iteration statistics as JSON.
METRICS: Final = "/prometheus/metrics"
_WARM_UP_S: Final = 300.0
_HEALTH_S: Final = 5.0
_NO_PANEL: Final = "TensorRT-LLM gives no logits of a whole vocabulary from several caches in lockstep"
_NO_PROMPT: Final = "trtllm-serve gives no log-probabilities of prompt tokens over HTTP, in the versions read"


class TrtllmSession(OpenAISession):
    """OpenAI's interface, and where this server has its metrics."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        # llama.cpp's own endpoint is not there; asking for it would be one request more a text.
        self._native = False

    async def metrics(self) -> str:
        """Prometheus' page.

        Raises:
            BadAnswer: there is none (it exists with `return_perf_metrics` only), or it holds no samples.
        """
        reply = await self._http.fetch("GET", METRICS)
        text = reply.body.decode("utf-8", "replace")
        if reply.status != 200:
            raise BadAnswer(f"{METRICS}: HTTP {reply.status}", kind="http_status", status=reply.status)
        if not any(line.strip() and not line.startswith("#") for line in text.splitlines()):
            raise BadAnswer(f"{METRICS}: the page holds no samples", kind="no_data", status=reply.status)
        return text

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        """Never: see `_NO_PROMPT`.

        Raises:
            BadAnswer: always. ValueError: `start` outside the text, or no lane of scoring (a programming error).
        """
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} in a text of {len(ids)} tokens")
        if lane not in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE):
            raise ValueError(f"{lane} is no lane of scoring")
        raise BadAnswer(_NO_PROMPT, kind="not_here")

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """As `OpenAISession.lanes`; what this server has nowhere is said as that."""
        if self._lanes is None:
            found = dict(await super().lanes())
            found[Lane.PANEL] = Missing(_NO_PANEL)
            for lane in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE):
                found[lane] = Missing(_NO_PROMPT)
            self._lanes = found
        return self._lanes


class TrtllmServer(TrtllmSession):
    """One server that we started."""

    def __init__(self, started: Started, launch: Launch) -> None:
        super().__init__(started.url, alive=started.ended)
        self.launch, self._started = launch, started
        self._load_log: tuple[str, ...] = ()
        self._deployment: Deployment | None = None
        self._tokens = FolderTokens(launch.argv[0], launch.request.model.path)

    async def __aexit__(self, *exc: object) -> None:
        self._tokens.close()
        await super().__aexit__(*exc)

    async def exact_tokens(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """By the model folder's tokenizer, which is the server's too: it has no page for it."""
        return await self._tokens.ids(text, special=special)

    def load_log(self) -> tuple[str, ...]:
        """The whole load log, for the records."""
        return self._load_log

    async def observe(self) -> None:
        """Ask for one token, so that no case pays for what is made at first use; then read the log."""
        body = {"model": await self.model_name(), "prompt": "a", "max_tokens": 1, "temperature": 0.0}
        await self.post_json("/v1/completions", body, timeout_s=_WARM_UP_S)
        # Not before: no line of it says that it is ready, and on a busy machine its lines come later than its answers.
        self._load_log = tuple(self._started.lines())
        self._deployment = deployment_of(
            self.launch,
            self._load_log,
            package=self._started.package,
            version=self._started.version,
            note=self._started.note,
        )

    async def deployment(self) -> Deployment:
        """From this process's load log."""
        if self._deployment is None:
            raise RuntimeError("nothing was observed yet")
        return self._deployment


class TrtllmAttached(TrtllmSession):
    """A server that somebody else started. What it stores is unobserved: its log echoes arguments only."""

    def __init__(self, attach: Attach) -> None:
        super().__init__(check_url(attach.url), api_key=attach.api_key, spelling=attach.spelling)
        self._lines = () if attach.log is None else tuple(line.text for line in lines_of(attach.log))

    async def deployment(self) -> Deployment:
        pages: dict[str, Any] = {}
        for path in ("/v1/models", "/version"):
            with suppress(BadAnswer):
                pages[path] = await self.get_json(path)
        log = log_of(ENGINE, self._lines)
        room = Consequence() if log is None else Consequence(cells=log.tokens)
        made = describe(self._http.url, self._spelling, pages, LogFacts(room, ()))
        told = {"engine": ENGINE, "version": made.identity.version or (None if log is None else log.version)}
        return made.model_copy(
            update={
                "identity": made.identity.model_copy(update=told),
                "note": Note(place=ATTACHED, host=made.note.host, port=made.note.port),
                "evidence": (*made.evidence, *evidence_of(log)),
            }
        )


@asynccontextmanager
async def serve(launch: Launch) -> AsyncIterator[TrtllmServer]:
    """Start a server and give its session; all its processes are gone when this ends, however it ends.

    Raises:
        EngineDied: it ended while loading, with the line that says why. EngineTimeout: it never was ready.
        UserError: the interpreter cannot be started.
    """

    async def ready(started: Started) -> bool:
        # Its log has no line of its own for this; /health answers once the model is there.
        async with HttpClient(started.url, timeout_s=_HEALTH_S) as http:
            try:
                return (await http.fetch("GET", "/health")).status == 200
            except EngineError:
                return False

    async with family(launch, FAMILY, ready) as started:
        session = TrtllmServer(started, launch)
        async with session:
            await session.observe()
            yield session
