"""Waiting up to a limit, of which the time that this process itself stood still is no part.

Ctrl-Z, SIGSTOP and a paused container stop a check, and mostly its engine too, while the clock goes on; a limit by the
clock would call the engine hung as soon as both go on. So a limit is a number of naps here: each counts as long as it
was meant to be, however late it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

NAP_S = 1.0


def naps(limit_s: float) -> Iterator[float]:
    """Seconds of one nap after another, `limit_s` in all."""
    left_s = limit_s
    while left_s > 0:
        nap_s = min(NAP_S, left_s)
        yield nap_s
        left_s -= nap_s


@asynccontextmanager
async def within(limit_s: float) -> AsyncIterator[None]:
    """The block, for at most so many seconds in which this process ran.

    Raises:
        TimeoutError: it took longer.
    """

    async def count(limit: asyncio.Timeout) -> None:
        for nap_s in naps(limit_s):
            await asyncio.sleep(nap_s)
        limit.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as limit:
        counting = asyncio.ensure_future(count(limit))
        try:
            yield
        finally:
            counting.cancel()
