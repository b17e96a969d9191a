"""A TCP proxy between kvgate and a database server, for what networks and poolers do to a connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Given the bytes of one read, what goes on; None cuts the connection.
Passes = Callable[[bytes], bytes | None]


def unchanged(data: bytes) -> bytes | None:
    return data


class Proxy:
    """A running proxy. Attributes may be changed while it runs, and hold for all connections from then on.

    Attributes:
        port: where it listens, on loopback; 0 for a proxy on a socket file.
        to_server, to_client: applied to every read of that direction.
        delay_s: how long each read waits before it goes on.
        mute: what arrives from either side is swallowed.
    """

    def __init__(self, target: int) -> None:
        self.port, self._target = 0, target
        self.to_server: Passes = unchanged
        self.to_client: Passes = unchanged
        self.delay_s, self.mute = 0.0, False
        self._writers: set[asyncio.StreamWriter] = set()
        self.loop = asyncio.new_event_loop()

    def cut(self) -> None:
        """Close every connection now."""

        def close() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self.loop.call_soon_threadsafe(close)

    async def stop(self) -> None:
        """Close every connection and end what waits for one."""
        self.cut()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def serve(self, socket_file: Path | None) -> None:
        if socket_file is not None:
            await asyncio.start_unix_server(self._accept, socket_file)
            return
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        await asyncio.gather(
            self._pump(reader, back, lambda data: self.to_server(data)),
            self._pump(there, writer, lambda data: self.to_client(data)),
        )
        self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Passes) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.mute:
                    continue
                await asyncio.sleep(self.delay_s)
                changed = passes(data)
                if changed is None:
                    for other in self._writers:
                        other.transport.abort()
                    return
                writer.write(changed)
                await writer.drain()
        writer.close()


@contextmanager
def proxy(target: int, socket_file: Path | None = None) -> Iterator[Proxy]:
    """A proxy to a port of this machine, on a port or a socket file of its own, until the end of the block."""
    made = Proxy(target)
    thread = threading.Thread(target=made.loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(made.serve(socket_file), made.loop).result(10)
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(made.stop(), made.loop).result(10)
        made.loop.call_soon_threadsafe(made.loop.stop)
        thread.join(10)
