"""The session of every engine that is reached over HTTP; a driver that starts its own server subclasses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from kvgate.core import registry
from kvgate.core.deployment import Deployment, Note
from kvgate.core.engine import Available, Generate, Generated, Lane, Missing, Tokens, TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines import _openai_identity as identity
from kvgate.engines._attached import describe
from kvgate.engines._http import MAX_BODY_BYTES, HttpClient, Reply
from kvgate.engines._kvlog import LogFacts
from kvgate.engines._openai_lanes import probe_lanes
from kvgate.engines._openai_parse import Assembler, Reader, chat_piece, completion_piece, native_piece
from kvgate.engines._openai_stream import Streamed
from kvgate.engines._pages import fetch, read
from kvgate.engines._refusal import refusal
from kvgate.engines._retry import Backoff
from kvgate.engines._watch import Watch
from kvgate.engines.servers._server import Question, Server, first_that_scores, refuse_alike

_NOT_HERE = (404, 405, 501)


class OpenAISession:
    """One deployment behind an address. Not shared between event loops; requests may run at the same time.

    Args:
        timeout_s: for requests that bring no limit of their own; a `Generate` does.
        alive: None while the server's process lives, else how it ended.
        defaults: merged into each generation body (llama.cpp: {"cache_prompt": False}); a request's `extra` wins.
        spelling: the recipe as the person wrote it, and `log`: the facts of a load log, for `deployment()`.
        backoff: how a busy server is waited for. any_name: an answer may name another model than was asked for.
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
        backoff: Backoff | None = None,
        any_name: bool = False,
    ) -> None:
        self._http = HttpClient(
            base_url,
            api_key=api_key,
            timeout_s=timeout_s,
            alive=alive,
            max_body_bytes=max_body_bytes,
            backoff=backoff,
        )
        self._watch = Watch(self._http.clean)
        self._watch.any_name = any_name
        self._model = model
        self._defaults = dict(defaults or {})
        self._spelling = spelling
        self._log = log
        self._native: bool | None = None
        self._server: Server | None = None
        self._lanes: Mapping[Lane, Available | Missing] | None = None
        self._continuous_usage = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._http.url!r})"

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    def take_notes(self) -> list[str]:
        """What is worth a record since the last call: every wait for a busy server."""
        notes = [str(r) for r in self._http.retries]
        self._http.retries.clear()
        return notes

    # -- plain requests -------------------------------------------------------------------------------------

    async def get_json(self, path: str, *, timeout_s: float | None = None) -> Any:
        """GET a JSON value.

        Raises:
            EngineDied, EngineTimeout: nobody answers. BadAnswer: another status than 200, or not JSON.
        """
        return self._json(await self._http.fetch("GET", path, timeout_s=timeout_s), path)

    async def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """POST a JSON object, get a JSON value; errors as `get_json`.

        Raises:
            EngineChanged: the answer is another server's, or another model's than was asked for.
        """
        answer = self._json(await self._http.fetch("POST", path, body, timeout_s=timeout_s), path)
        self._watch.see(answer, self._asked(body))
        return answer

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

    def _asked(self, body: Mapping[str, Any]) -> str | None:
        model = body.get("model")
        return model if isinstance(model, str) and model != _NO_NAME else None

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

    async def pages(self) -> dict[str, Any]:
        """JSON or text of each page that a server has of itself; a page that is not there is left out."""
        found = await fetch(lambda path: self._http.fetch("GET", path, patient=False))
        return dict(found.got)

    async def deployment(self) -> Deployment:
        """What an attached server says of itself, and what it does to a fixed text; unknown stays None."""
        found = describe(self._http.url, self._spelling, await self.pages(), self._log)
        said = found.identity.model_copy(
            update={
                "tokenizer_digest": found.identity.tokenizer_digest or await identity.tokenizer_digest(self),
                "template_digest": found.identity.template_digest or await identity.template_digest(self),
            }
        )
        note = Note.model_validate(found.note.model_dump() | {"fingerprint": await self._fingerprint()})
        return found.model_copy(update={"identity": said, "note": note})

    async def _fingerprint(self) -> str | None:
        """The server's word for its build and settings: of any answer, so one is asked for if there was none."""
        if self._watch.model is None and self._watch.fingerprint is None:
            with suppress(BadAnswer):
                await self.generate(Generate(messages=list(identity.PROBE_CHAT), max_tokens=1))
        return self._watch.fingerprint

    async def find_context(self, want: int) -> int | None:
        """Tokens of context by trial, for a server that announces none."""
        return await identity.find_context(self, want)

    async def model_name(self, *, timeout_s: float | None = None) -> str:
        """The model to ask for: the given one, else the first that the server lists, else "default"."""
        if self._model is None:
            try:
                listed = (await self.get_json("/v1/models", timeout_s=timeout_s))["data"][0]
                self._model = str(listed["id"])
                self._watch.names = _other_names(listed)
            except (BadAnswer, LookupError, TypeError):
                self._model = _NO_NAME
        return self._model

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        """Each lane asked with one tiny request, once a session. An engine that dies or hangs meanwhile raises."""
        if self._lanes is None:
            self._lanes = await probe_lanes(self)
        return self._lanes

    # -- scoring a given text ---------------------------------------------------------------------------------

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        """Tops of a given text; see `servers/` for which server gives them how.

        Raises:
            BadAnswer: this server does not, or gave something else.
            ValueError: `start` outside the text, or a lane that is none of scoring (a programming error).
        """
        return await self.score_beside(ids, start=start, lane=lane, k=k, base=())

    async def score_beside(
        self, ids: Sequence[int], *, start: int, lane: Lane, k: int, base: Sequence[TopKRow]
    ) -> Sequence[TopKRow]:
        """As `score`, with the ids of the base's rows too where the server lets one name them.

        Only to be used where `lanes()` says "ids"; `base` has a row for each position, or none at all.
        """
        if not 1 <= start < len(ids):
            raise ValueError(f"start {start} in a text of {len(ids)} tokens")
        if lane not in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE):
            raise ValueError(f"{lane} is no lane of scoring")
        servers = [self._server] if self._server else await self._kinds()
        self._server, rows = await first_that_scores(servers, self, Question(ids, start, lane, k, base))
        refuse_alike(rows, k)
        return rows

    async def _kinds(self) -> list[Server]:
        """The kind whose pages these are; all, if nobody's."""
        known = registry.discover("server")
        engine = read(await self.pages()).engine
        return [known[engine]] if engine is not None and engine in known else list(known.values())

    @property
    def asked_ids(self) -> int:
        """How many ids a request may name; 0 before a text was scored."""
        return self._server.asked_ids if self._server else 0

    # -- tokens ---------------------------------------------------------------------------------------------

    async def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Token ids; a guess (one id per four bytes) where the server has no tokenizer.

        `special` adds what the model expects at the beginning of a document.
        """
        try:
            return Tokens(await self.exact_tokens(text, special=special))
        except BadAnswer as e:
            if e.status not in _NOT_HERE:
                raise
        return Tokens(tuple(range(-(-len(text.encode("utf-8", "surrogatepass")) // 4))), exact=False)

    async def exact_tokens(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """Token ids by the server's own tokenizer.

        Raises:
            BadAnswer: it has none, or gave no list of ids.
        """
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
            EngineChanged: another server answers than before.
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

    async def _stream(self, path: str, body: Mapping[str, Any], read: Reader, request: Generate) -> Generated:
        def see(event: Any, path: str) -> None:
            self._refuse_error(event, path)
            self._watch.see(event, self._asked(body))

        stream = Streamed(self._http, path, read, request.top_logprobs, whole=self._json, see=see)
        return await stream.ask(body, request.timeout_s)

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
        if text is None and await self.has_native():
            body |= {"n_predict": request.max_tokens, "return_tokens": True} | ({"n_probs": k} if k else {})
            return "/completion", body, native_piece
        body |= {"model": await self.model_name(timeout_s=request.timeout_s), "max_tokens": request.max_tokens}
        body |= {"logprobs": k} if k else {}
        return "/v1/completions", body, completion_piece

    async def has_native(self) -> bool:
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


#: Asked for where the server lists no model.
_NO_NAME = "default"


def _other_names(listed: Mapping[str, Any]) -> tuple[str, ...]:
    """Names beside its id under which a listed model may answer: vLLM's root, llama.cpp's aliases."""
    more = listed.get("aliases")
    named = [listed.get("root"), *(more if isinstance(more, list) else [])]
    return tuple(n for n in named if isinstance(n, str))
