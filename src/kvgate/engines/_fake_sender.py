"""How the fake server's bytes leave: whole, in pieces, too slow, too short, cut, padded, or as nonsense."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from kvgate.engines._fake_script import FakeScript

_HTML = b"<html><body><h1>Welcome to nginx!</h1></body></html>"
_WHOLE = b'{"choices": [{"message": {"content": "ok"}, "text": "ok", "finish_reason": "stop"}], "content": "ok"}'
_NONSENSE: Mapping[str, bytes] = {
    "html": _HTML,
    "not_json": _WHOLE[:42],
    "no_choices": b'{"ok": true}',
    "wrong_type": b'{"choices": [{"message": {"content": 7}, "text": 7}], "content": 7}',
    "empty": b"",
    "error": b'{"error": {"message": "the engine core is gone", "code": 500}}',
    "trailing": _WHOLE + b"\n<!-- served by a proxy -->",
    "nul": _WHOLE.replace(b"ok", b"o\0k"),
    "bad_utf8": _WHOLE.replace(b"ok", b"o\xff\xfek"),
    "empty_choices": b'{"choices": []}',
    "bom": b"\xef\xbb\xbf" + _WHOLE,
    "null_content": _WHOLE.replace(b'"ok"', b"null"),
}
_BOMB_BYTES = 100 * 2**20


class Sender:
    """Writes answers as the script says."""

    def __init__(self, script: FakeScript) -> None:
        self._script = script

    async def whole(self, request: web.Request, body: Mapping[str, Any]) -> web.StreamResponse:
        """A JSON body."""
        text = json.dumps(body)
        return await self._send(request, text.ljust(self._script.oversize_bytes).encode(), "application/json")

    async def nonsense(self, request: web.Request) -> web.StreamResponse:
        """200 with something that is no answer."""
        kind = self._script.nonsense
        if kind == "gzip":
            bomb = gzip.compress(b" " * _BOMB_BYTES, 1)
            return await self._send(request, bomb, "application/json", {"Content-Encoding": "gzip"})
        if kind == "chunk_cut":
            return await self._cut_chunk(request)
        return await self._send(request, _NONSENSE[kind], "text/html" if kind == "html" else "application/json")

    async def _send(
        self, request: web.Request, data: bytes, content_type: str, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        off = self._script.content_length_off
        response = web.StreamResponse(headers={"Content-Type": content_type, **(headers or {})})
        response.content_length = max(len(data) + off, 0)
        await response.prepare(request)
        await self.write(response, data)
        if off > 0 and request.transport is not None:
            request.transport.close()
        return response

    async def _cut_chunk(self, request: web.Request) -> web.StreamResponse:
        """A chunk that announces more bytes than come."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if request.transport is not None:
            request.transport.write(b"%x\r\n" % (len(_WHOLE) + 20) + _WHOLE)
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
        end = self._end
        comment = f": still here{end}{end}" if self._script.comments else ""
        fields = f"event: message{end}id: 7{end}retry: 10{end}" if self._script.sse_fields else ""
        await self._sender.write(self._response, f"{comment}{fields}data: {data}{end}{end}".encode())
