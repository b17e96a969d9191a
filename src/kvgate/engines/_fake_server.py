"""The fake engine's process: `python -m kvgate.engines._fake_server`, settings as one line of JSON on stdin.

Writes its load log to stderr, then its address as one line of JSON to stdout. It ends when stdin closes, and the
kernel ends it when its parent dies. Binds to loopback only, and answers nobody without the key.
"""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import json
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from kvgate.engines import _fake_tokens as tokens
from kvgate.engines._fake_answers import Asked, answer, flipped, read_chat, read_prompt
from kvgate.engines._fake_breaks import broken, disturbed
from kvgate.engines._fake_logprobs import top_rows
from kvgate.engines._fake_script import FakeScript, unit
from kvgate.engines._fake_sender import Sender
from kvgate.engines._fake_wire import MODEL, Reply, chat_body, completion_body, events, make_reply, native_body

VERSION = "1"
_MAX_REQUEST_BYTES = 64 * 2**20
_PR_SET_PDEATHSIG = 1
_DIED_ON_LOAD = 3
_BODIES: Mapping[str, Callable[[Reply], dict[str, Any]]] = {
    "chat": chat_body,
    "completion": completion_body,
    "native": native_body,
}


def log(line: str) -> None:
    """One line of the load log."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class _Wish:
    """A generation request, read."""

    asked: Asked
    shape: str
    max_tokens: int
    top_k: int
    wants_logprobs: bool
    stream: bool
    stream_options: Mapping[str, Any]


class FakeServer:
    """State of one server: the script, and how many generations it was asked for."""

    def __init__(self, script: FakeScript, api_key: str, context_tokens: int) -> None:
        self.script, self.context_tokens = script, context_tokens
        self.noise_seed = secrets.randbits(32) if script.noise_seed is None else script.noise_seed
        self.n_requests = 0
        self._key = api_key
        self._sender = Sender(script)
        self._clock = random.Random(self.noise_seed)  # noqa: S311 - a clock's jitter, no secret

    def app(self) -> web.Application:
        """Routes behind the key."""
        app = web.Application(middlewares=[self._need_key], client_max_size=_MAX_REQUEST_BYTES)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.post("/completion", self._native),
            ]
        )
        return app

    @web.middleware
    async def _need_key(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path != "/health" and not hmac.compare_digest(given.encode(), self._key.encode()):
            return _error(401, "a valid API key is needed", "authentication_error")
        response: web.StreamResponse = await handler(request)
        return response

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def _version(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"version": VERSION})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        model = {"id": self.script.listed_as or MODEL, "object": "model", "owned_by": "kvgate"}
        length = {} if self.script.hide_context else {"max_model_len": self.context_tokens}
        return web.json_response({"object": "list", "data": [model | length]})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        page = f"# TYPE fake_requests_total counter\nfake_requests_total {self.n_requests}\n"
        return web.Response(text="" if self.script.empty_metrics else page)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        content = body.get("content")
        if not isinstance(content, str):
            return _error(400, "'content' must be a string")
        return web.json_response({"tokens": [i + self.script.tokenizer_shift for i in tokens.encode(content)]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        try:
            asked = read_chat(body)
        except ValueError as e:
            return _error(400, str(e))
        return await self._generate(request, _wish(body, asked, "chat"))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._from_prompt(request, "completion")

    async def _native(self, request: web.Request) -> web.StreamResponse:
        return await self._from_prompt(request, "native")

    async def _from_prompt(self, request: web.Request, shape: str) -> web.StreamResponse:
        body = await _body(request)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and all(isinstance(i, int) for i in prompt):
            prompt = tokens.decode(i - self.script.tokenizer_shift for i in prompt)
        if not isinstance(prompt, str):
            return _error(400, "'prompt' must be a string or a list of token ids")
        return await self._generate(request, _wish(body, read_prompt(prompt), shape))

    async def _generate(self, request: web.Request, wish: _Wish) -> web.StreamResponse:
        script, begun = self.script, time.monotonic()
        self.n_requests += 1
        number = self.n_requests
        if script.busy_after < number <= script.busy_after + script.busy_first:
            return _error(script.busy_status, "the fake engine is busy", "overloaded", script.retry_after)
        if script.die_after is not None and number > script.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if script.hang_after is not None and number > script.hang_after:
            await asyncio.Event().wait()
        n_prompt = len(tokens.encode(wish.asked.text)) + (script.template_tokens if wish.shape == "chat" else 0)
        refused = self._refuse(wish, number, n_prompt)
        if refused is not None:
            return refused
        if unit(script.seed, "nonsense", number) < script.nonsense_rate:
            return await self._sender.nonsense(request)
        reply = self._reply(wish, number, n_prompt)
        start = begun + self._ms(script.ttft_ms, script.ttft_sd_ms) / 1e3
        if not wish.stream:
            steps = sum(self._ms(script.itl_ms, script.itl_sd_ms) for _ in reply.ids[1:])
            await _until(start + steps / 1e3)
            return await self._sender.whole(request, _BODIES[wish.shape](reply))
        return await self._stream(request, wish, reply, number, start)

    def _refuse(self, wish: _Wish, number: int, n_prompt: int) -> web.StreamResponse | None:
        script = self.script
        if script.redirect_to is not None:
            return web.Response(status=307, headers={"Location": script.redirect_to})
        if unit(script.seed, "500", number) < script.http_500_rate:
            return _error(500, "the fake engine was told to fail here", "server_error")
        if script.refuse_logprobs and wish.wants_logprobs:
            return _error(400, "this server does not return logprobs")
        if n_prompt + 1 > self.context_tokens:
            message = (
                f"request ({n_prompt} tokens) exceeds the available context size ({self.context_tokens} tokens), "
                "try increasing it"
            )
            return _error(400, message, "exceed_context_size_error")
        return None

    def _reply(self, wish: _Wish, number: int, n_prompt: int) -> Reply:
        script = self.script
        asked = replace(wish.asked, n_tokens=n_prompt)
        given = flipped(script, asked, answer(script, asked))
        given = disturbed(script, self.noise_seed, number, broken(script, asked, given))
        rows = None
        if wish.wants_logprobs and script.logprobs != "missing":
            rows = top_rows(
                script,
                asked.digest,
                tokens.encode(given.spoken)[: wish.max_tokens],
                wish.top_k,
                (self.noise_seed, number),
            )
        reply = make_reply(given, n_prompt, wish.max_tokens, rows)
        changed = script.fingerprint_after is not None and number > script.fingerprint_after
        return replace(
            reply,
            model=(script.answers_as if number > script.answers_as_after else None) or script.listed_as or MODEL,
            fingerprint=f"{script.fingerprint}changed" if changed else script.fingerprint,
            usage_off=script.usage_off,
            finish_reason=script.finish_lie or reply.finish_reason,
            usage_in_events=bool(wish.stream_options.get("continuous_usage_stats")) and script.continuous_usage,
            usage_at_end=bool(wish.stream_options.get("include_usage")),
        )

    async def _stream(
        self, request: web.Request, wish: _Wish, reply: Reply, number: int, start: float
    ) -> web.StreamResponse:
        script = self.script
        stream = await self._sender.open_stream(request)
        cut = unit(script.seed, "truncate", number) < script.truncate_rate
        due, done_tokens = start, 0
        for i, (n_tokens, body) in enumerate(events(reply, wish.shape, script.tokens_per_event)):
            if cut and i >= script.truncate_events:
                return await stream.cut()
            # The first token is due at `start`; each later one its own gap after the one before.
            for _ in range(max(done_tokens, 1), n_tokens):
                due += self._ms(script.itl_ms, script.itl_sd_ms) / 1e3
            done_tokens = max(done_tokens, n_tokens)
            if n_tokens:  # an opening chunk does not wait for the first token
                await _until(due)
            await stream.event(body)
        return await stream.close(with_done=wish.shape != "native")

    def _ms(self, mean: float, sd: float) -> float:
        return max(0.0, self._clock.gauss(mean, sd)) if sd else mean


async def _until(due: float) -> None:
    delay = due - time.monotonic()
    if delay > 0:
        await asyncio.sleep(delay)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        value = await request.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise web.HTTPBadRequest(text=json.dumps({"error": {"message": "the body is no JSON object", "code": 400}}))
    return value


def _wish(body: Mapping[str, Any], asked: Asked, shape: str) -> _Wish:
    if shape == "chat":
        wants, k = bool(body.get("logprobs")), int(body.get("top_logprobs") or 0)
    else:
        k = int(body.get("n_probs" if shape == "native" else "logprobs") or 0)
        wants = k > 0
    limit = body.get("n_predict" if shape == "native" else "max_tokens")
    # Greedy answers do not depend on the seed, as with any engine.
    sampled = f"{body.get('seed')}" if body.get("temperature") else ""
    return _Wish(
        asked=replace(asked, sampled=sampled),
        shape=shape,
        max_tokens=int(limit) if limit else 256,
        top_k=k,
        wants_logprobs=wants,
        stream=bool(body.get("stream")),
        stream_options=body.get("stream_options") or {},
    )


def _error(
    status: int, message: str, kind: str = "invalid_request_error", retry_after: str | None = None
) -> web.Response:
    headers = {"Retry-After": retry_after} if retry_after is not None else None
    body = {"error": {"code": status, "message": message, "type": kind}}
    return web.json_response(body, status=status, headers=headers)


async def serve(settings: Mapping[str, Any]) -> None:
    """Load, listen on a free port of loopback, print the address, serve until killed."""
    script = FakeScript.model_validate(settings["script"])
    server = FakeServer(script, settings["api_key"], settings["context_tokens"])
    log(f"fake_model: name = {settings['model']}, seed = {script.seed}, noise seed = {server.noise_seed}")
    if not script.silent_log:
        for line in settings["log_lines"]:
            log(line)
    await asyncio.sleep(script.load_ms / 1e3)
    if script.die_on_load:
        log("fake_model: told to die while loading")
        # Not sys.exit: the thread that waits on standard input holds its lock, and the interpreter would abort.
        sys.stderr.flush()
        os._exit(_DIED_ON_LOAD)
    if script.hang_on_load:
        await asyncio.Event().wait()
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    log(f"fake_server: listening on {address}")
    sys.stdout.write(json.dumps({"url": address}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _die_with_parent(parent_pid: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # The parent was gone before the kernel was asked to tell us.
        os._exit(1)

    def wait_for_eof() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait_for_eof, daemon=True).start()


def main() -> None:
    settings = json.loads(sys.stdin.buffer.readline())
    _die_with_parent(settings["parent_pid"])
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
