"""Any server that speaks OpenAI's HTTP interface; llama.cpp's own endpoints are used where they exist.

`OpenAISession` is the session of every engine that is reached over HTTP; a driver that starts its own server
subclasses it. `DRIVER` attaches to a server that somebody else runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Self

from kvgate.core.deployment import Deployment, Engaged, Expected
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
    Tokens,
    TopKRow,
)
from kvgate.core.errors import BadAnswer, LaneUnavailable, UserError
from kvgate.engines import _topk
from kvgate.engines._attached import describe, hold_against
from kvgate.engines._http import MAX_BODY_BYTES, HttpClient, Reply
from kvgate.engines._kvlog import LogFacts, read_log
from kvgate.engines._openai_parse import Assembler, Reader, chat_piece, completion_piece, native_piece
from kvgate.engines._refusal import refusal
from kvgate.engines._sse import SseParser

#: Asked of a server to see what it grants; most have a cap of 20.
_TOP_K_TRIES = (20, 5, 1)
#: Asked first where a whole text is scored: the more, the closer the bound.
_TOP_K_SCORES = (256, 64)
_NOT_HERE = (404, 405, 501)


class OpenAISession:
    """One deployment behind an address. Not shared between event loops; requests may run at the same time.

    Args:
        timeout_s: for requests that bring no limit of their own; a `Generate` does.
        alive: None while the server's process lives, else how it ended.
        defaults: merged into each generation body (llama.cpp: {"cache_prompt": False}); a request's `extra` wins.
        spelling: the recipe as the person wrote it, and `log`: the facts of a load log, for `deployment()`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout_s: float = 300.0,
        alive: Callable[[], str | None] | None = None,
        defaults: Mapping[str, Any] | None = None,
        spelling: str = "native",
        log: LogFacts | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._http = HttpClient(
            base_url, api_key=api_key, timeout_s=timeout_s, alive=alive, max_body_bytes=max_body_bytes
        )
        self._model = model
        self._defaults = dict(defaults or {})
        self._spelling = spelling
        self._log = log
        self._native: bool | None = None
        self._lanes: Mapping[Lane, Available | Missing] | None = None
        self._continuous_usage = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._http.url!r})"

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    # -- plain requests -------------------------------------------------------------------------------------

    async def get_json(self, path: str, *, timeout_s: float | None = None) -> Any:
        """GET a JSON value.

        Raises:
            EngineDied, EngineTimeout: nobody answers. BadAnswer: another status than 200, or not JSON.
        """
        return self._json(await self._http.fetch("GET", path, timeout_s=timeout_s), path)

    async def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """POST a JSON object, get a JSON value; errors as `get_json`."""
        return self._json(await self._http.fetch("POST", path, body, timeout_s=timeout_s), path)

    async def metrics(self) -> str:
        """The metrics page.

        Raises:
            BadAnswer: no page, or one without a single sample: that is no data, not good health.
        """
        reply = await self._http.fetch("GET", "/metrics")
        self._expect_ok(reply, "/metrics")
        text = reply.body.decode("utf-8", "replace")
        if not any(line.strip() and not line.startswith("#") for line in text.splitlines()):
            raise BadAnswer("/metrics: the page holds no samples", kind="no_data", status=reply.status)
        return text

    def _expect_ok(self, reply: Reply, path: str) -> None:
        if reply.status != 200:
            raise refusal(path, reply, self._http.clean)

    def _json(self, reply: Reply, path: str) -> Any:
        self._expect_ok(reply, path)
        if not reply.body.strip():
            raise BadAnswer(f"{path}: 200 with an empty body", kind="empty", status=200)
        try:
            value = json.loads(reply.body)
        except (ValueError, RecursionError):
            start = self._http.clean(reply.body[:400].decode("utf-8", "replace"), 80)
            raise BadAnswer(f"{path}: 200 with a body that is not JSON: {start}", kind="not_json", status=200) from None
        self._refuse_error(value, path)
        return value

    def _refuse_error(self, value: Any, path: str) -> None:
        if isinstance(value, Mapping) and value.get("error"):
            raise refusal(path, Reply(200, "application/json", json.dumps(value).encode()), self._http.clean)

    # -- what the server is ---------------------------------------------------------------------------------

    async def deployment(self) -> Deployment:
        """What an attached server says of itself; unknown stays None."""
        pages: dict[str, Any] = {}
        for path in ("/v1/models", "/version", "/props"):
            try:
                pages[path] = await self.get_json(path)
            except BadAnswer:
                continue
        return describe(self._http.url, self._spelling, pages, self._log)

    async def model_name(self, *, timeout_s: float | None = None) -> str:
        """The model to ask for: the given one, else the first that the server lists, else "default"."""
        if self._model is None:
            try:
                listed = await self.get_json("/v1/models", timeout_s=timeout_s)
                self._model = str(listed["data"][0]["id"])
            except (BadAnswer, LookupError, TypeError):
                self._model = "default"
        return self._model

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """Each lane asked with one tiny request, once a session. An engine that dies or hangs meanwhile raises."""
        if self._lanes is None:
            self._lanes = await self._probe_lanes()
        return self._lanes

    async def _probe_lanes(self) -> Mapping[Lane, Available | Missing]:
        hello = [{"role": "user", "content": "Say hi."}]
        found: dict[Lane, Available | Missing] = {
            Lane.CHAT: await self._probe(lambda: self.generate(Generate(messages=hello, max_tokens=2))),
            Lane.COMPLETE: await self._probe(lambda: self.generate(Generate(prompt="Hello", max_tokens=2))),
            Lane.TOKENIZE: await self._probe(lambda: self._tokenize("Hello")),
            Lane.METRICS: await self._probe(self.metrics),
            Lane.PANEL: Missing("no panel over HTTP: a server keeps its logits"),
        }
        found[Lane.DECODE_TOPK] = await self._probe_topk(hello, found)
        for lane in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE):
            found[lane] = await self._probe_score(lane, found[Lane.TOKENIZE])
        return {lane: found[lane] for lane in Lane}

    async def _probe_score(self, lane: Lane, tokens: Available | Missing) -> Available | Missing:
        """Score a text of a few tokens; the answer's length is what the server grants."""
        if isinstance(tokens, Missing):
            return Missing(f"no tokenizer: {tokens.reason}")
        ids = (await self.tokenize("Hello there, how are you?")).ids
        reason = ""
        for k in (*_TOP_K_SCORES, *_TOP_K_TRIES):
            try:
                rows = await self.score(ids, start=len(ids) - 1, lane=lane, k=k)
            except BadAnswer as e:
                reason = str(e)
                if e.kind == "degenerate_logprobs":
                    break  # a shorter list of the same numbers may look like one; it means no more
                continue
            return Available({"top_k": min(k, min(len(r.ids) for r in rows))})
        return Missing(reason)

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        """Tops of a given text; see `_topk` for which server gives them how.

        Raises:
            BadAnswer: this server does not, or gave something else.
            ValueError: `start` outside the text, or a lane that is none of scoring (a programming error).
        """
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} in a text of {len(ids)} tokens")
        if lane is Lane.FORCED_DECODE:
            if not await self._has_native():
                raise BadAnswer("this server has no /completion that goes on token by token", kind="not_here")
            steps = range(start, len(ids))
            return [_topk.native_row(await self.post_json("/completion", _topk.native_body(ids[:i], k))) for i in steps]
        if lane is not Lane.PREFILL_TOPK:
            raise ValueError(f"{lane} is no lane of scoring")
        if await self._has_native():
            raise BadAnswer("llama.cpp's server gives no logprobs of prompt tokens", kind="not_here")
        body = _topk.vllm_body(await self.model_name(), ids, k)
        try:
            return _topk.vllm_rows(await self.post_json("/v1/completions", body), ids, start)
        except BadAnswer as first:
            try:
                answer = await self.post_json("/generate", _topk.sglang_body(ids, start, k))
            except BadAnswer:
                raise first from None
            return _topk.sglang_rows(answer, ids, start)

    async def _probe(self, ask: Callable[[], Any]) -> Available | Missing:
        try:
            await ask()
        except BadAnswer as e:
            return Missing(str(e))
        return Available()

    async def _probe_topk(
        self, hello: Sequence[Mapping[str, Any]], found: Mapping[Lane, Available | Missing]
    ) -> Available | Missing:
        reason = "neither chat nor completions work"
        asks = []
        if isinstance(found[Lane.COMPLETE], Available):
            asks.append(Generate(prompt="Hello", max_tokens=2))
        if isinstance(found[Lane.CHAT], Available):
            asks.append(Generate(messages=hello, max_tokens=2))
        for ask in asks:
            for k in _TOP_K_TRIES:
                try:
                    got = await self.generate(
                        Generate(messages=ask.messages, prompt=ask.prompt, max_tokens=2, top_logprobs=k)
                    )
                except BadAnswer as e:
                    reason = str(e)
                    continue
                granted = max((len(p.top) for p in got.topk), default=0)
                if granted:
                    return Available({"top_k": granted})
                reason = "logprobs come without alternatives"
        return Missing(reason)

    # -- tokens ---------------------------------------------------------------------------------------------

    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Token ids; a guess (one id per four bytes) where the server has no tokenizer.

        `special` adds what the model expects at the beginning of a document.
        """
        try:
            return Tokens(await self._tokenize(text, special=special))
        except BadAnswer as e:
            if e.status not in _NOT_HERE:
                raise
        return Tokens(tuple(range(-(-len(text.encode("utf-8", "surrogatepass")) // 4))), exact=False)

    async def _tokenize(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        # llama.cpp reads `content`, vLLM reads `prompt`; each leaves the other's fields alone.
        body: dict[str, Any] = {
            "content": text,
            "add_special": special,
            "prompt": text,
            "add_special_tokens": special,
        }
        if self._model is not None:
            body["model"] = self._model
        answer = await self.post_json("/tokenize", body)
        ids = answer.get("tokens") if isinstance(answer, Mapping) else None
        if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise BadAnswer("/tokenize: no list of token ids", kind="bad_shape")
        return tuple(ids)

    # -- generation -----------------------------------------------------------------------------------------

    async def generate(self, request: Generate) -> Generated:
        """One generation.

        Raises:
            EngineDied, EngineTimeout: nobody answers (in time). BadAnswer: whatever came is no answer.
            ValueError: neither or both of `messages` and `prompt` (a programming error).
        """
        path, body, read = await self._ask(request)
        body |= self._defaults | dict(request.extra) | {"stream": request.stream}
        if not request.stream:
            whole = Assembler(read, request.top_logprobs)
            whole.add(await self.post_json(path, body, timeout_s=request.timeout_s))
            return whole.finish()
        chosen = "stream_options" in self._defaults or "stream_options" in request.extra
        if not chosen and read is not native_piece:
            body["stream_options"] = self._stream_options()
        try:
            return await self._stream(path, body, read, request)
        except BadAnswer as e:
            if chosen or not self._continuous_usage or e.status not in (400, 422) or "usage_stats" not in str(e):
                raise
            # A strict server that does not know vLLM's extension: ask again, and never again with it.
            self._continuous_usage = False
            return await self._stream(path, body | {"stream_options": self._stream_options()}, read, request)

    def _stream_options(self) -> dict[str, bool]:
        return {"include_usage": True} | ({"continuous_usage_stats": True} if self._continuous_usage else {})

    async def _ask(self, request: Generate) -> tuple[str, dict[str, Any], Reader]:
        """Path, body and shape of the answer."""
        if (request.messages is None) == (request.prompt is None):
            raise ValueError("give either messages or a prompt")
        k = request.top_logprobs
        body: dict[str, Any] = {"temperature": request.temperature, "seed": request.seed}
        if request.messages is not None:
            body |= {"model": await self.model_name(timeout_s=request.timeout_s), "messages": list(request.messages)}
            body |= {"max_tokens": request.max_tokens} | ({"logprobs": True, "top_logprobs": k} if k else {})
            return "/v1/chat/completions", body, chat_piece
        text = request.prompt if isinstance(request.prompt, str) else None
        body["prompt"] = text if text is not None else list(request.prompt or ())
        if text is None and await self._has_native():
            body |= {"n_predict": request.max_tokens, "return_tokens": True} | ({"n_probs": k} if k else {})
            return "/completion", body, native_piece
        body |= {"model": await self.model_name(timeout_s=request.timeout_s), "max_tokens": request.max_tokens}
        body |= {"logprobs": k} if k else {}
        return "/v1/completions", body, completion_piece

    async def _has_native(self) -> bool:
        """Whether llama.cpp's `/completion` is there; asked once, with one token."""
        if self._native is None:
            ids = (await self.tokenize("a")).ids
            try:
                answer = await self.post_json("/completion", {"prompt": list(ids), "n_predict": 1} | self._defaults)
                self._native = isinstance(answer, Mapping) and "content" in answer
            except BadAnswer as e:
                if e.status not in _NOT_HERE:
                    raise
                self._native = False
        return self._native

    async def _stream(self, path: str, body: Mapping[str, Any], read: Reader, request: Generate) -> Generated:
        parser, answer, done = SseParser(), Assembler(read, request.top_logprobs), False

        def take(events: Sequence[str], arrived_ns: int) -> bool:
            nonlocal done
            for data in events:
                if data.strip() == "[DONE]":
                    done = True
                elif not done:
                    self._take(answer, data, arrived_ns, path)
            return done

        def on_piece(arrived_ns: int, piece: bytes) -> bool:
            return take(self._events(parser.feed, piece, path), arrived_ns) or answer.saw_last

        reply = await self._http.stream(path, body, on_piece, timeout_s=request.timeout_s)
        if not reply.streamed:
            # The server does not stream; its whole answer has no arrival times.
            answer.add(self._json(reply, path))
            return answer.finish()
        if not (done or answer.saw_last):
            rest = self._events(lambda _: parser.close(), b"", path)
            done = [data.strip() for data in rest] == ["[DONE]"]
        if not (done or answer.saw_last):
            raise BadAnswer(f"{path}: the stream ended without its final event", kind="truncated")
        return answer.finish()

    def _events(self, feed: Callable[[bytes], list[str]], piece: bytes, path: str) -> list[str]:
        try:
            return feed(piece)
        except UnicodeDecodeError:
            raise BadAnswer(f"{path}: the stream is not UTF-8", kind="not_json") from None

    def _take(self, answer: Assembler, data: str, arrived_ns: int, path: str) -> None:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            raise BadAnswer(
                f"{path}: an event that is not JSON: {self._http.clean(data, 80)}", kind="not_json"
            ) from None
        self._refuse_error(body, path)
        answer.add(body, arrived_ns)


class OpenAIDriver:
    """Attaches to a running server; starts nothing."""

    name = "openai"
    aliases: tuple[str, ...] = ("openai-compatible",)

    def resolve(self, want: Request) -> Launch:
        """Always a UserError: there is nothing to start."""
        raise UserError(
            "engine 'openai' is only an address: kvgate cannot start it",
            fix="start the server yourself and give its URL, or choose an engine that kvgate starts",
        )

    def open(self, launch: Launch | Attach) -> AbstractAsyncContextManager[Session]:
        """A session at an address: of an `Attach`, or of a Launch that holds one ("url" in its options).

        Raises:
            UserError: the address or the log file is unusable, or the Launch is of an engine to be started.
        """
        if isinstance(launch, Launch):
            launch = self._attach(launch)
        log = read_log(launch.log) if launch.log is not None else None
        return OpenAISession(launch.url, api_key=launch.api_key, spelling=launch.spelling, log=log)

    def _attach(self, launch: Launch) -> Attach:
        options = launch.engine_options
        if "url" not in options:
            self.resolve(launch.request)
        key = os.environ.get(str(options.get("key_variable", "")))
        log = Path(options["log"]) if options.get("log") else None
        return Attach(str(options["url"]), spelling=launch.request.spelling, api_key=key, log=log)

    def open_panel(self, launches: Mapping[ArmId, Launch]) -> AbstractContextManager[Panel]:
        raise LaneUnavailable("no panel over HTTP: a server keeps its logits")

    async def verify_panel(self, panel: Panel, base: ArmId, session: Session, ids: Sequence[int]) -> float | None:
        """None: there is no panel to compare with."""
        return None

    def engaged(self, expected: Expected, observed: Deployment) -> Engaged:
        """UNOBSERVED unless a log was given; then what the log says."""
        return hold_against(expected, observed)


DRIVER = OpenAIDriver()
