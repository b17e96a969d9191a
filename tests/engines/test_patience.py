"""Limits of waiting that do not count the time in which this process stood still."""

from __future__ import annotations

import asyncio
import json
import os
import select
import struct
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvgate.core.errors import EngineTimeout
from kvgate.engines import _llama_panel, _patience
from kvgate.engines._patience import naps, within


@pytest.mark.parametrize("limit_s", [0.0, 0.3, 1.0, 2.5, 300.0])
def test_naps_add_up_to_the_limit(limit_s: float) -> None:
    """No nap is longer than NAP_S, and together they are the limit."""
    taken = list(naps(limit_s))

    assert sum(taken) == pytest.approx(limit_s)
    assert all(0 < s <= _patience.NAP_S for s in taken)


async def waited(guard: Callable[[float], Any], limit_s: float, *, still_s: float, then_s: float) -> bool:
    """Stand still (a blocked loop is what a stopped process looks like from inside), then wait: was it in time?"""
    try:
        async with guard(limit_s):
            await asyncio.sleep(0)
            time.sleep(still_s)  # noqa: ASYNC251 - on purpose
            await asyncio.sleep(then_s)
    except TimeoutError:
        return False
    return True


def test_standing_still_is_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped for longer than the limit: what asyncio's own timeout ends goes on here."""
    monkeypatch.setattr(_patience, "NAP_S", 0.05)

    assert asyncio.run(waited(within, 0.4, still_s=0.6, then_s=0.1))
    assert not asyncio.run(waited(asyncio.timeout, 0.4, still_s=0.6, then_s=0.1))


def test_the_limit_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What really takes longer ends with TimeoutError, and a block that ends in time leaves no task behind."""
    monkeypatch.setattr(_patience, "NAP_S", 0.05)
    assert not asyncio.run(waited(within, 0.2, still_s=0.0, then_s=30.0))

    async def left() -> int:
        async with within(60):
            pass
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(left()) == 1


class Pipe:
    """A panel's worker that is only its output pipe; `stop` is noted."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self.stopped = False
        self.worker = object.__new__(_llama_panel._Worker)
        self.worker.child = SimpleNamespace(  # type: ignore[assignment]
            stdout=SimpleNamespace(fileno=lambda: reading), stop=lambda: setattr(self, "stopped", True)
        )
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        self.worker._poll = poll


def test_a_panel_that_has_answered_meanwhile_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of many pieces costs none of the limit; a worker that says nothing is ended."""
    pipe, data = Pipe(), json.dumps({"ok": "x" * 50}).encode()
    os.write(pipe.writing, struct.pack("<I", len(data)) + data)
    real = os.read
    monkeypatch.setattr(os, "read", lambda fd, n: real(fd, min(n, 1)))

    assert pipe.worker.hear(2.0) == {"ok": "x" * 50}
    assert not pipe.stopped
    with pytest.raises(EngineTimeout, match="did not answer"):
        pipe.worker.hear(0.2)
    assert pipe.stopped
