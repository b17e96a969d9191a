"""The serving lane: vLLM's own HTTP server in a family of processes, with a random key, on loopback, on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from kvgate.core.deployment import Deployment
from kvgate.core.engine import Available, Lane, Launch, Missing, TopKRow
from kvgate.core.errors import BadAnswer, EngineDied
from kvgate.engines._family_child import Started, family, has_said
from kvgate.engines._http import Reply
from kvgate.engines._vllm_forced import forced_body, forced_rows
from kvgate.engines._vllm_observe import Seen, cache_labels, deployment_of
from kvgate.engines._vllm_resolve import FAMILY, MAX_LOGPROBS, MODEL_NAME
from kvgate.engines.openai import OpenAISession

#: The first request of a CPU server has been seen to take 25 s: kernels are made then.
_WARM_UP_S: Final = 300.0
#: What the server answers while it goes down after its engine core has gone: v1/engine/exceptions.py EngineDeadError.
CORE_IS_DEAD: Final = "EngineCore encountered an issue"
#: In the last line of a load, in all versions read.
READY: Final = "Application startup complete"


class VllmSession(OpenAISession):
    """One vLLM server that we started."""

    def __init__(self, started: Started, launch: Launch) -> None:
        super().__init__(started.url, api_key=started.api_key, model=MODEL_NAME, alive=started.ended)
        # llama.cpp's own endpoint is not there; asking for it would be one request more a text.
        self._native = False
        self.launch, self._started = launch, started
        self._load_log: tuple[str, ...] = ()
        self._deployment: Deployment | None = None
        self._lanes: Mapping[Lane, Available | Missing] | None = None

    def load_log(self) -> tuple[str, ...]:
        """The whole load log, for the records."""
        return self._load_log

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        """As `OpenAISession.score`; the decode lane is a text of which each token is forced."""
        if lane is not Lane.FORCED_DECODE:
            return await super().score(ids, start=start, lane=lane, k=k)
        if not self.launch.engine_options.get("forced_decoding"):
            raise BadAnswer(
                "vLLM's server takes no text to decode: model runner V2, which GPUs have, has no such request over HTTP"
            )
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} in a text of {len(ids)} tokens")
        answer = await self.post_json("/v1/completions", forced_body(MODEL_NAME, ids, start, k))
        return forced_rows(answer, ids, start)

    def _expect_ok(self, reply: Reply, path: str) -> None:
        self._refuse_dead(reply.status >= 500 and CORE_IS_DEAD.encode() in reply.body, path)
        super()._expect_ok(reply, path)

    def _refuse_error(self, value: Any, path: str) -> None:
        error = value.get("error") if isinstance(value, Mapping) else None
        self._refuse_dead(bool(error) and CORE_IS_DEAD in str(error), path)
        super()._refuse_error(value, path)

    def _refuse_dead(self, dead: bool, path: str) -> None:
        """An answer of a server that cannot compute any more is the engine's death, not an answer."""
        if dead:
            raise EngineDied(
                f"{path}: vLLM's engine core is gone ({self._started.ended() or 'its server still answers'})"
            )

    async def observe(self) -> None:
        """Ask for one token, so that no case pays for kernels that are made at first use; then read log and metrics.

        The first request also makes the layers tell what they hold.
        """
        body = {"model": MODEL_NAME, "prompt": [1] * 8, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        await self.post_json("/v1/completions", body, timeout_s=_WARM_UP_S)
        self._load_log = tuple(self._started.lines())
        try:
            labels = cache_labels(await self.metrics())
        except BadAnswer:
            labels = {}
        seen = Seen(self._started.package, self._started.version, self._started.note, labels)
        self._deployment = deployment_of(self.launch, self._load_log, seen)

    async def deployment(self) -> Deployment:
        """From this process's load log and metrics page."""
        if self._deployment is None:
            raise RuntimeError("nothing was observed yet")
        return self._deployment

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """Asked with tiny requests, once: a server's lanes do not change while it runs."""
        if self._lanes is None:
            found = dict(await super().lanes())
            found[Lane.PANEL] = Missing("vLLM gives no logits of a whole vocabulary from several caches in lockstep")
            for lane in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE):
                if isinstance(found[lane], Available):
                    found[lane] = Available({"top_k": MAX_LOGPROBS})
            self._lanes = {lane: found[lane] for lane in Lane}
        return self._lanes


@asynccontextmanager
async def serve(launch: Launch) -> AsyncIterator[VllmSession]:
    """Start a server and give its session; all its processes are gone when this ends, however it ends.

    Raises:
        EngineDied: it ended while loading, with the line that says why. EngineTimeout: it never was ready.
        UserError: the interpreter cannot be started.
    """
    async with family(launch, FAMILY, has_said(READY)) as started:
        session = VllmSession(started, launch)
        async with session:
            await session.observe()
            yield session
