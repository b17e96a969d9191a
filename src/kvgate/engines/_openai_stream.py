"""A streamed generation: events as they arrive -> one Generated, or BadAnswer for a stream that is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvgate.core.engine import Generated
from kvgate.core.errors import BadAnswer
from kvgate.engines._http import HttpClient, Reply
from kvgate.engines._openai_parse import Assembler, Reader
from kvgate.engines._sse import SseParser


class Streamed:
    """One stream being read.

    Args:
        whole: reads the body of a reply that is no stream. see: gets each event's body, and refuses what is none.
    """

    def __init__(
        self,
        http: HttpClient,
        path: str,
        read: Reader,
        top_logprobs: int,
        *,
        whole: Callable[[Reply, str], Any],
        see: Callable[[Any, str], None],
    ) -> None:
        self._http, self._path = http, path
        self._whole, self._see = whole, see
        self._parser, self._answer = SseParser(), Assembler(read, top_logprobs)
        self._done = False

    async def ask(self, body: Mapping[str, Any], timeout_s: float | None) -> Generated:
        """POST and read to the end.

        Raises:
            BadAnswer: not UTF-8, not JSON, an error, or an end before the final event.
        """
        reply = await self._http.stream(self._path, body, self._on_piece, timeout_s=timeout_s)
        answer = self._answer
        if not reply.streamed:
            # The server does not stream; its whole answer has no arrival times.
            answer.add(self._whole(reply, self._path))
            return answer.finish()
        if not (self._done or answer.saw_last):
            rest = self._events(lambda _: self._parser.close(), b"")
            self._done = [data.strip() for data in rest] == ["[DONE]"]
        if not (self._done or answer.saw_last):
            raise BadAnswer(f"{self._path}: the stream ended without its final event", kind="truncated")
        return answer.finish()

    def _on_piece(self, arrived_ns: int, piece: bytes) -> bool:
        self._take_all(self._events(self._parser.feed, piece), arrived_ns)
        return self._done or self._answer.saw_last

    def _take_all(self, events: Sequence[str], arrived_ns: int) -> None:
        for data in events:
            if data.strip() == "[DONE]":
                self._done = True
            elif not self._done:
                self._take(data, arrived_ns)

    def _events(self, feed: Callable[[bytes], list[str]], piece: bytes) -> list[str]:
        try:
            return feed(piece)
        except UnicodeDecodeError:
            raise BadAnswer(f"{self._path}: the stream is not UTF-8", kind="not_json") from None

    def _take(self, data: str, arrived_ns: int) -> None:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            shown = self._http.clean(data, 80)
            raise BadAnswer(f"{self._path}: an event that is not JSON: {shown}", kind="not_json") from None
        self._see(body, self._path)
        self._answer.add(body, arrived_ns)
