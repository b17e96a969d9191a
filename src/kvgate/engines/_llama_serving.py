"""The serving lane: llama.cpp's own HTTP server in a child process, with a random key, on loopback, on a free port."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from kvgate.core.deployment import Deployment, Note
from kvgate.core.engine import Available, Lane, Launch, Missing
from kvgate.core.errors import BadAnswer, EngineDied
from kvgate.core.text import one_line
from kvgate.enginefacts.facts import load
from kvgate.engines._llama_child import Child, refuse_changed, start_settings
from kvgate.engines._llama_log import last_words
from kvgate.engines._llama_observe import ENGINE, Seen, deployment_of
from kvgate.engines.openai import OpenAISession

LOAD_TIMEOUT_S = 120.0
#: Slowest disk that a load is waited for.
_SLOWEST_BYTES_PER_S = 20e6
_POLL_S = 0.02
#: In the last line of a load, in all versions seen.
_LOADED = "listening on http"
#: Keeps an end of text and half a character from being chosen: the server gives such a token no probabilities. What it
#: gives is from before the grammar (seen: equal to the last digit with and without).
_PLAIN_TOKEN = {"grammar": "root ::= [ -~]+"}
#: Cached prompts would make an answer depend on what was asked before.
NO_PROMPT_CACHE = {"cache_prompt": False}


class LlamaCppSession(OpenAISession):
    """One llama.cpp server that we started.

    `tokenize` reads special words in the text as tokens, and adds the model's own beginning (BOS) only if asked to.
    """

    def __init__(
        self, url: str, launch: Launch, seen: Seen, lines: list[str], *, api_key: str, alive: Callable[[], str | None]
    ) -> None:
        super().__init__(url, api_key=api_key, alive=alive, defaults=NO_PROMPT_CACHE)
        self.launch = launch
        self._deployment = deployment_of(launch, lines, seen)
        self._load_log = tuple(lines)

    @property
    def n_vocab(self) -> int:
        return self.launch.request.model.geometry.vocab_size

    def load_log(self) -> tuple[str, ...]:
        """The whole load log, for the records."""
        return self._load_log

    async def deployment(self) -> Deployment:
        """From this process's load log; a new process is a new session."""
        return self._deployment

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """Asked with tiny requests, but for what no build has."""
        found = dict(await super().lanes())
        found[Lane.DECODE_TOPK] = await self._probe_native_topk()
        found[Lane.PANEL] = self._panel()
        return {lane: found[lane] for lane in Lane}

    def _panel(self) -> Available | Missing:
        """Whether the wheel of this server can be opened as a panel; the C layout is verified when one is."""
        version = self._deployment.identity.version or "of unknown version"
        layout = load(ENGINE).layout_of(version)
        if layout is None or sys.platform not in layout.platforms:
            return Missing(f"xllamacpp {version}: its C layout has not been verified on {sys.platform}")
        return Available()

    async def _probe_native_topk(self) -> Available | Missing:
        ids = (await self.tokenize("Hello there")).ids
        try:
            answer = await self.post_json("/completion", completion_of(ids, n_probs=self.n_vocab))
            n = len(answer["completion_probabilities"][0]["top_logprobs"])
        except BadAnswer as e:
            return Missing(str(e))
        except (LookupError, TypeError):
            return Missing("/completion answers without probabilities")
        return Available({"top_k": n})


def completion_of(ids: tuple[int, ...] | list[int], *, n_probs: int) -> dict[str, Any]:
    """Body of a `/completion` for the `n_probs` most likely tokens after `ids`; the chosen one means nothing."""
    one = {"n_predict": 1, "n_probs": n_probs, "temperature": 0.0}
    return {"prompt": list(ids), **one, **_PLAIN_TOKEN, **NO_PROMPT_CACHE}


@asynccontextmanager
async def serve(launch: Launch) -> AsyncIterator[LlamaCppSession]:
    """Start a server and give its session; the process is gone when this ends, however it ends.

    Raises:
        EngineDied: it ended while loading, with the line that says why. EngineTimeout: it never was ready.
        UserError: the interpreter cannot be started.
    """
    key = secrets.token_urlsafe(32)
    started = datetime.now(UTC).isoformat()
    child = Child(launch.argv, launch.env)
    try:
        settings = {**launch.engine_options, **start_settings(), "api_key": key}
        ready = await _ready(child, settings, load_timeout_s(launch))
        refuse_changed(launch.request.model)
        lines = await _load_log(child)
        parts = urlsplit(ready["listening"])
        note = Note(
            place="serving",
            host=parts.hostname,
            port=parts.port,
            pid=child.pid,
            started=started,
            python=ready["python"],
        )
        seen = Seen(ready["version"], note, extra=(f"package xllamacpp {ready['version']}",))
        session = LlamaCppSession(ready["listening"], launch, seen, lines, api_key=key, alive=child.ended)
        async with session:
            await session.get_json("/health")
            yield session
    finally:
        child.stop()


def load_timeout_s(launch: Launch) -> float:
    """Patience for a load: more for larger files."""
    return LOAD_TIMEOUT_S + launch.request.model.size_bytes / _SLOWEST_BYTES_PER_S


async def _ready(child: Child, settings: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """The worker's one line of answer, or the reason why there is none."""
    said = await child.answer(settings, "llama.cpp", timeout_s)
    if "listening" not in said:
        await child.ended_soon()
        why = last_words(child.log.lines()) or str(said.get("failed"))
        raise EngineDied(f"llama.cpp ended while loading: {one_line(why, 300)}")
    return {"listening": str(said["listening"]), "version": said.get("version"), "python": said.get("python")}


async def _load_log(child: Child) -> list[str]:
    """The log up to the line that ends a load; the engine writes it in a thread of its own, so it may come late."""
    for _ in range(100):
        lines = child.log.lines()
        if any(_LOADED in line for line in lines[-50:]):
            break
        await asyncio.sleep(_POLL_S)
    return lines
