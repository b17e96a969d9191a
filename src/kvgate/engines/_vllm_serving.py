"""The serving lane: vLLM's own HTTP server in a family of processes, with a random key, on loopback, on a free port."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from kvgate.core.deployment import Deployment, Note
from kvgate.core.engine import Available, Lane, Launch, Missing, TopKRow
from kvgate.core.errors import BadAnswer, EngineDied, EngineTimeout
from kvgate.core.text import one_line
from kvgate.engines._http import Reply
from kvgate.engines._vllm_child import Keeper
from kvgate.engines._vllm_forced import forced_body, forced_rows
from kvgate.engines._vllm_observe import Seen, cache_labels, deployment_of
from kvgate.engines._vllm_resolve import MAX_LOGPROBS, MODEL_NAME
from kvgate.engines.openai import OpenAISession
from kvgate.models.model_folder import has_changed

#: Loading, compiling and capturing graphs on a GPU; a 2-core machine without compiling takes half a minute.
LOAD_TIMEOUT_S: Final = 900.0
#: Slowest disk that a load is waited for.
_SLOWEST_BYTES_PER_S: Final = 20e6
_POLL_S: Final = 0.1
_KEEPER_TIMEOUT_S: Final = 60.0
#: The first request of a CPU server has been seen to take 25 s: kernels are made then.
_WARM_UP_S: Final = 300.0
#: From "startup complete" to a listening socket; a busy machine has been seen to take over half a second.
LISTEN_TIMEOUT_S: Final = 60.0
MAX_REPLY_BYTES: Final = 65536
#: What the server answers while it goes down after its engine core has gone: v1/engine/exceptions.py EngineDeadError.
CORE_IS_DEAD: Final = "EngineCore encountered an issue"
#: In the last line of a load, in all versions read.
READY: Final = "Application startup complete"


class VllmSession(OpenAISession):
    """One vLLM server that we started."""

    def __init__(
        self, url: str, launch: Launch, lines: list[str], *, api_key: str, alive: Callable[[], str | None]
    ) -> None:
        super().__init__(url, api_key=api_key, model=MODEL_NAME, alive=alive)
        self._ended = alive
        # llama.cpp's own endpoint is not there; asking for it would be one request more a text.
        self._native = False
        self.launch = launch
        self._load_log = tuple(lines)
        self._deployment: Deployment | None = None
        self._lanes: Mapping[Lane, Available | Missing] | None = None

    def load_log(self) -> tuple[str, ...]:
        """The whole load log, for the records."""
        return self._load_log

    def read_log(self, lines: Sequence[str]) -> None:
        """Take the log as it is after the first request, which makes the layers tell what they hold."""
        self._load_log = tuple(lines)

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
            raise EngineDied(f"{path}: vLLM's engine core is gone ({self._ended() or 'its server still answers'})")

    async def warm_up(self, timeout_s: float) -> None:
        """Wait until it listens, and ask for one token, so that no case pays for kernels that are made at first use."""
        await self._listening(LISTEN_TIMEOUT_S)
        body = {"model": MODEL_NAME, "prompt": [1] * 8, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        await self.post_json("/v1/completions", body, timeout_s=timeout_s)

    async def _listening(self, timeout_s: float) -> None:
        """The last line of a load is written a moment before the socket listens."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                await self._http.fetch("GET", "/health")
                return
            except EngineDied:
                if self._ended() or time.monotonic() > until:
                    raise
            await asyncio.sleep(_POLL_S)

    async def observe(self, package: str | None, version: str | None, note: Note) -> None:
        """Read log and metrics, once; a new process is a new session."""
        try:
            labels = cache_labels(await self.metrics())
        except BadAnswer:
            labels = {}
        self._deployment = deployment_of(self.launch, self._load_log, Seen(package, version, note, labels))

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
    # Hexadecimal: a key that begins with "-" would read as a flag.
    key = secrets.token_hex(32)
    started = datetime.now(UTC).isoformat()
    keeper = Keeper(launch.argv, launch.env, key)
    try:
        said = await _started(keeper, launch, key)
        keeper.group = int(said["pid"])
        lines = await _ready(keeper, load_timeout_s(launch))
        if why := has_changed(launch.request.model):
            raise EngineDied(why)
        note = Note(
            place="serving",
            host="127.0.0.1",
            port=int(said["port"]),
            pid=keeper.group,
            started=started,
            python=said.get("python"),
        )
        url = f"http://127.0.0.1:{note.port}"
        session = VllmSession(url, launch, lines, api_key=key, alive=keeper.ended)
        async with session:
            await session.warm_up(_WARM_UP_S)
            session.read_log(keeper.log.lines())
            await session.observe(said.get("package"), said.get("version"), note)
            yield session
    finally:
        keeper.stop()


def load_timeout_s(launch: Launch) -> float:
    """Patience for a load: more for larger files."""
    return LOAD_TIMEOUT_S + launch.request.model.size_bytes / _SLOWEST_BYTES_PER_S


async def _started(keeper: Keeper, launch: Launch, key: str) -> dict[str, Any]:
    """The keeper's one line of answer, or the reason why there is none."""
    settings = {
        "module": launch.engine_options["module"],
        "arguments": launch.engine_options["arguments"],
        "api_key": key,
        "parent": os.getpid(),
    }
    try:
        keeper.stdin.write(json.dumps(settings).encode() + b"\n")
        # The thread ends with the child, at the latest when it is stopped.
        asked = asyncio.to_thread(keeper.stdout.readline, MAX_REPLY_BYTES)
        text = await asyncio.wait_for(asked, _KEEPER_TIMEOUT_S)
    except OSError:
        text = b""
    except TimeoutError:
        raise EngineTimeout(f"vLLM's keeper gave no answer within {_KEEPER_TIMEOUT_S:.0f} s") from None
    if not text:
        raise EngineDied(f"vLLM did not start: {await _ended(keeper)}")
    try:
        said = json.loads(text)
    except ValueError:
        raise EngineDied(f"vLLM's keeper said {one_line(text.decode('utf-8', 'replace'), 200)}") from None
    if not isinstance(said, dict) or "pid" not in said:
        why = said.get("failed") if isinstance(said, dict) else said
        raise EngineDied(f"vLLM did not start: {one_line(str(why), 300)}")
    return said


async def _ready(keeper: Keeper, timeout_s: float) -> list[str]:
    """The log up to the line that ends a load."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        lines = keeper.log.lines()
        if any(READY in line for line in lines):
            return lines
        if ended := keeper.ended():
            raise EngineDied(f"vLLM ended while loading: {ended}")
        await asyncio.sleep(_POLL_S)
    raise EngineTimeout(f"vLLM was not ready within {timeout_s:.0f} s")


async def _ended(keeper: Keeper) -> str:
    """How it ended, once the process is gone; a closed pipe may be a little ahead of it."""
    for _ in range(20):
        if ended := keeper.ended():
            return ended
        await asyncio.sleep(_POLL_S)
    return "its output closed"
