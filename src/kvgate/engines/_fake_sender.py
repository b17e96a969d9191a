"""How the fake server's bytes leave: whole, in pieces, too slow, too short, cut, padded, or as nonsense."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from kvgate.engines._fake_script import FakeScript

_HTML = "<html><body><h1>Welcome to nginx!</h1></body></html>"
_NONSENSE: Mapping[str, tuple[str, str]] = {
    "html": ("text/html", _HTML),
    "not_json": ("application/json", '{"choices": [{"message": {"content": "hel'),
    "no_choices": ("application/json", '{"ok": true}'),
    "wrong_type": ("application/json", '{"choices": [{"message": {"content": 7}, "text": 7}], "content": 7}'),
    "empty": ("application/json", ""),
}


class Sender:
    """Writes answers as the script says."""

    def __init__(self, script: FakeScript) -> None:
        self._script = script

    async def whole(self, request: web.Request, body: Mapping[str, Any]) -> web.StreamResponse:
        """A JSON body."""
        text = json.dumps(body)
        return await self._send(request, text.ljust(self._script.oversize_bytes), "application/json")

    async def nonsense(self, request: web.Request, shape: str) -> web.StreamResponse:
        """200 with something that is no answer."""
        content_type, text = _NONSENSE[self._script.nonsense]
        return await self._send(request, text, content_type)

    async def _send(self, request: web.Request, text: str, content_type: str) -> web.StreamResponse:
        data = text.encode()
        off = self._script.content_length_off
        response = web.StreamResponse(headers={"Content-Type": content_type})
        response.content_length = max(len(data) + off, 0)
        await response.prepare(request)
        await self.write(response, data)
        if off > 0 and request.transport is not None:
            request.transport.close()
        return response

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        """Bytes in pieces, with a pause before each."""
        size = self._script.piece_bytes or len(data) or 1
        for start in range(0, len(data), size):
            if self._script.piece_ms:
                await asyncio.sleep(self._script.piece_ms / 1e3)
            await response.write(data[start : start + size])

    async def open_stream(self, request: web.Request) -> EventStream:
        """An event stream, headers sent."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return EventStream(self, self._script, request, response)


class EventStream:
    """One open stream of events."""

    def __init__(self, sender: Sender, script: FakeScript, request: web.Request, response: web.StreamResponse) -> None:
        self._sender, self._script, self._request, self._response = sender, script, request, response
        self._end = "\r\n" if script.crlf else "\n"

    async def event(self, body: Mapping[str, Any]) -> None:
        """One event of one data line."""
        await self._write(json.dumps(body))

    async def close(self, *, with_done: bool) -> web.StreamResponse:
        """End of the stream; OpenAI's routes say so."""
        if with_done:
            await self._write("[DONE]")
        await self._response.write_eof()
        return self._response

    async def cut(self) -> web.StreamResponse:
        """End the stream before its end."""
        if self._script.truncate_how == "reset" and self._request.transport is not None:
            self._request.transport.close()
        else:
            await self._response.write_eof()
        return self._response

    async def _write(self, data: str) -> None:
        comment = f": still here{self._end}{self._end}" if self._script.comments else ""
        await self._sender.write(self._response, f"{comment}data: {data}{self._end}{self._end}".encode())
