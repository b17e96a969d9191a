"""HTTP to one engine. http and https only, no redirects, caps on body and time, the key in no message.

Every failure leaves here as EngineDied (nobody answers), EngineTimeout (nobody answers in time), EngineBusy (refused
for longer than it is waited) or BadAnswer (somebody answers, and it is not HTTP, is cut short or is too large). Other
statuses than 429 and 503 are left to the caller.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from kvgate.core.errors import BadAnswer, EngineBusy, EngineDied, EngineTimeout, KvgateError, UserError
from kvgate.engines._patience import within
from kvgate.engines._refusal import said_in
from kvgate.engines._retry import BUSY_STATUSES, Backoff, Retry, named_wait_s

if TYPE_CHECKING:
    import aiohttp

MAX_BODY_BYTES = 64 * 2**20
MESSAGE_CHARS = 300
#: How long a closed socket may be ahead of the end of its process.
_DEATH_NOTICE_S = 0.5
_DEATH_LOOKS = 25
_CONNECT_S = 10.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_FIX = "write http://HOST:PORT or https://HOST:PORT"


class Reply(NamedTuple):
    """A whole answer of any status; `body` is empty for a stream that was handed out in pieces.

    `named_wait_s` is what a refusal says of when to come back.
    """

    status: int
    content_type: str
    body: bytes
    streamed: bool = False
    named_wait_s: float | None = None


def check_url(text: str) -> str:
    """The address of a server without a trailing slash and `/v1`.

    Raises:
        UserError: not http(s), no host, or something that does not belong there (user, query, fragment).
    """
    shown = _CONTROL.sub("?", text)[:80]
    try:
        parts = urlsplit(text.strip())
        port_text = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        raise UserError(f"server address {_without_user(shown)!r} is not a URL", fix=_FIX) from None
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"server address {_without_user(shown)!r} holds a user or a password",
            fix="give the key in the environment; an address is printed and stored",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"server address {shown!r} is not a web address", allowed=("http://", "https://"), fix=_FIX)
    if parts.query or parts.fragment or re.search(r"[\s\x00-\x1f]", text.strip()):
        raise UserError(f"server address {shown!r} has a query, a fragment or blanks", fix=_FIX)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port_text}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"


def _without_user(text: str) -> str:
    return re.sub(r"//[^/]*@", "//...@", text)


class HttpClient:
    """One server. An async context manager; a new connection per request.

    A kept-alive connection that the server has closed meanwhile looks like a dead engine to a POST, so none is kept.

    Args:
        alive: None while the server's process lives, else how it ended ("exit status -9: last log line").
        backoff: how a busy server is waited for. seed: of the jitter.

    Attributes:
        retries: every wait for a busy server so far; who records them takes them out.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        alive: Callable[[], str | None] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        backoff: Backoff | None = None,
        seed: int = 0,
    ) -> None:
        self.url = check_url(url)
        self.timeout_s = timeout_s
        self.max_body_bytes = max_body_bytes
        self._key = api_key
        self._alive = alive
        self._session: aiohttp.ClientSession | None = None
        self._backoff = backoff or Backoff()
        self._jitter = random.Random(seed)  # noqa: S311 - of a wait, no secret
        self.retries: list[Retry] = []

    def __repr__(self) -> str:
        return f"HttpClient({self.url!r})"

    async def __aenter__(self) -> HttpClient:
        import aiohttp

        headers = {"Accept-Encoding": "identity", "User-Agent": "kvgate"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            headers=headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def clean(self, text: str, chars: int = MESSAGE_CHARS) -> str:
        """A server's words, fit for a message: one line, no control characters, no key, at most `chars`."""
        if self._key:
            text = text.replace(self._key, "[key]")
        text = " ".join(_CONTROL.sub(" ", text).split())
        return text if len(text) <= chars else text[: chars - 1] + "…"

    async def fetch(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        patient: bool = True,
    ) -> Reply:
        """One request, the whole answer, whatever its status; a busy server is asked again.

        Args:
            timeout_s: of each try; waits between tries are bounded by the back-off.
            patient: False takes 429 and 503 for an answer, as of a page that says so for good.
        """

        async def once() -> Reply:
            async with self._exchange(method, path, body, timeout_s) as response:
                return await self._read(response, path)

        return await (self._patiently(path, once) if patient else once())

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        on_piece: Callable[[int, bytes], bool],
        *,
        timeout_s: float | None = None,
    ) -> Reply:
        """POST and hand out an event stream as it comes.

        Args:
            on_piece: gets (monotonic ns of arrival, bytes); True ends the exchange.

        Returns:
            The answer with its body where it is no event stream (an error, a whole JSON body), else `streamed`.
        """

        async def once() -> Reply:
            async with self._exchange("POST", path, body, timeout_s) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    return await self._read(response, path)
                n_bytes = 0
                async for piece in response.content.iter_any():
                    arrived_ns = time.monotonic_ns()
                    n_bytes = self._count(n_bytes, len(piece), path)
                    if on_piece(arrived_ns, piece):
                        break
                return Reply(response.status, response.content_type, b"", streamed=True)

        return await self._patiently(path, once)

    async def _patiently(self, path: str, once: Callable[[], Awaitable[Reply]]) -> Reply:
        """Ask until the server is no longer busy.

        Raises:
            EngineBusy: it still is, after as many tries or as long as the back-off allows.
        """
        if self._backoff.tries <= 1:
            return await once()
        failed, waited_s = 0, 0.0
        while (reply := await once()).status in BUSY_STATUSES:
            failed += 1
            said = self.clean(said_in(reply.body)[0], 120) or "no message"
            wait_s = self._backoff.wait_s(failed, reply.named_wait_s, self._jitter)
            if failed >= self._backoff.tries or waited_s + wait_s > self._backoff.total_s:
                raise EngineBusy(
                    f"{path}: refused {failed} times within {waited_s:.1f} s of waiting, last with "
                    f"HTTP {reply.status}: {said}",
                    status=reply.status,
                )
            self.retries.append(Retry(path, reply.status, wait_s, said))
            await asyncio.sleep(wait_s)
            waited_s += wait_s
        return reply

    async def _read(self, response: aiohttp.ClientResponse, path: str) -> Reply:
        body = await self._whole(response, path)
        named_s = named_wait_s(response.headers.get("Retry-After"))
        return Reply(response.status, response.content_type, body, named_wait_s=named_s)

    async def _whole(self, response: aiohttp.ClientResponse, path: str) -> bytes:
        self._count(0, response.content_length or 0, path)
        n_bytes, parts = 0, []
        async for piece in response.content.iter_any():
            n_bytes = self._count(n_bytes, len(piece), path)
            parts.append(piece)
        return b"".join(parts)

    def _count(self, n_bytes: int, more: int, path: str) -> int:
        if n_bytes + more > self.max_body_bytes:
            raise BadAnswer(f"{path}: the answer is over {self.max_body_bytes} bytes", kind="too_large")
        return n_bytes + more

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        if self._session is None:
            raise RuntimeError("the session is not open: use `async with`")
        if self._alive is not None and (ended := self._alive()):
            raise EngineDied(self.clean(ended))
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            asked = self._session.request(
                method,
                self.url + path,
                data=data,
                headers={"Content-Type": "application/json"} if data is not None else None,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(limit_s, _CONNECT_S)),
                allow_redirects=False,
            )
            async with within(limit_s), asked as response:
                self._refuse(response, path)
                yield response
        except (TimeoutError, aiohttp.ClientError, OSError) as e:
            raise await self._mapped(e, f"{method} {path}", limit_s) from e

    def _refuse(self, response: aiohttp.ClientResponse, path: str) -> None:
        if 300 <= response.status < 400:
            target = self.clean(_without_user(response.headers.get("Location", "nowhere").split("?")[0]), 120)
            raise BadAnswer(
                f"{path}: redirects to {target}, which is not followed; give the final address",
                kind="redirect",
                status=response.status,
            )
        coding = response.headers.get("Content-Encoding", "identity").lower()
        if coding != "identity":
            raise BadAnswer(f"{path}: Content-Encoding {self.clean(coding, 40)} was not asked for", kind="encoding")

    async def _mapped(self, e: Exception, what: str, limit_s: float) -> KvgateError:
        import aiohttp

        said = self.clean(str(e)) or type(e).__name__
        ended = await self._how_it_ended()
        if ended:
            return EngineDied(f"{what}: {self.clean(ended)}")
        if isinstance(e, TimeoutError):
            return EngineTimeout(f"{what}: no whole answer within {limit_s:g} s")
        if isinstance(e, aiohttp.ClientConnectorError):
            return EngineDied(f"{what}: {said}")
        if isinstance(e, aiohttp.ClientPayloadError):
            if not await self._listens():
                return EngineDied(f"{what}: the connection broke and nobody listens any more")
            return BadAnswer(f"{what}: the answer is shorter than announced ({said})", kind="truncated")
        if isinstance(e, (aiohttp.ClientConnectionError, OSError)):
            return EngineDied(f"{what}: the connection broke ({said})")
        return BadAnswer(f"{what}: not an HTTP answer ({said})", kind="not_http")

    async def _how_it_ended(self) -> str | None:
        """`alive`'s word; a socket closes a little before its process is gone, so it is asked for half a second."""
        if self._alive is None:
            return None
        for _ in range(_DEATH_LOOKS):
            if ended := self._alive():
                return ended
            await asyncio.sleep(_DEATH_NOTICE_S / _DEATH_LOOKS)
        return self._alive()

    async def _listens(self) -> bool:
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), _CONNECT_S)
        except OSError:
            return False
        writer.close()
        return True
