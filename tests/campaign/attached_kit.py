"""Servers that somebody else runs: processes of the fake engine, and servers that give one answer to everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvgate.engines.fake import DRIVER
from kvgate.testing.requests import fake_request


@contextmanager
def servers(*scripts: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """(address, key) of live servers, one a script; "context_tokens" in it is the server's own."""
    ready, end, found = threading.Event(), threading.Event(), []

    async def live() -> None:
        async with AsyncExitStack() as stack:
            for script in scripts:
                own = {"context_tokens": 4096} | script
                context = own.pop("context_tokens")
                launch = DRIVER.resolve(fake_request(script=own, context_tokens=context))
                session = await stack.enter_async_context(DRIVER.open(launch))
                found.append((session._http.url, session._http._key))  # type: ignore[attr-defined]
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found
    finally:
        end.set()
        thread.join(60)


@contextmanager
def answering(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server that gives every request the same answer."""

    class Same(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Same) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
