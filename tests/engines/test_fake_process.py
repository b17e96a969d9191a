"""The fake server's process: it dies with its parent, answers nobody without the key, and starts from plain numbers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_kit import gone

from kvgate.core.engine import Available, Generate, Lane
from kvgate.core.errors import EngineDied, UserError
from kvgate.core.registry import get
from kvgate.engines._fake_child import FakeChild
from kvgate.engines.fake import DRIVER
from kvgate.testing import fake_request

SRC = Path(__file__).parents[2] / "src"
PARENT = """
import asyncio, sys
from kvgate.engines._fake_child import FakeChild
from kvgate.engines.fake import DRIVER
from kvgate.testing import fake_request
async def main():
    async with DRIVER.open(DRIVER.resolve(fake_request())) as s:
        print((await s.deployment()).note.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.kill
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_dies_with_its_parent(how: signal.Signals) -> None:
    """A parent that is killed without a chance to clean up leaves no server behind for more than five seconds."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SRC)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone(pid, 0.1)

    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()

    assert gone(pid, 5.0)


def test_the_child_ends_when_its_stdin_does() -> None:
    """The pipe alone is enough, where the kernel's parent-death signal is not to be had."""
    child = FakeChild(
        (sys.executable, "-m", "kvgate.engines._fake_server"),
        {"script": {}, "context_tokens": 512, "model": "m", "log_lines": []},
        {},
    )
    try:
        asyncio.run(child.address(30))
        assert child.ended() is None
        child._stdin.close()
        assert child._process.wait(5.0) == 0
    finally:
        child.close()


def test_a_killed_server_is_a_dead_engine_and_is_reaped() -> None:
    """SIGKILL between two requests is EngineDied with the exit status, and closing leaves no zombie."""

    async def run() -> int:
        async with DRIVER.open(DRIVER.resolve(fake_request())) as session:
            pid = (await session.deployment()).note.pid
            assert pid is not None
            await session.generate(Generate(prompt="a", max_tokens=2))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineDied, match="status -9"):
                await session.generate(Generate(prompt="a", max_tokens=2))
        return pid

    assert not Path(f"/proc/{asyncio.run(run())}").exists()


def test_two_servers_have_two_keys() -> None:
    """Keys are random per child; one does not open the other."""

    async def run() -> None:
        async with (
            DRIVER.open(DRIVER.resolve(fake_request())) as a,
            DRIVER.open(DRIVER.resolve(fake_request())) as b,
        ):
            first, second = a._http, b._http  # type: ignore[attr-defined]
            assert first._key != second._key
            first.url, second.url = second.url, first.url
            reply = await first.fetch("GET", "/v1/models")
            assert reply.status == 401

    asyncio.run(run())


def test_the_key_is_on_no_command_line_and_in_no_environment() -> None:
    """Both are visible to other users of the machine; the key goes through a pipe."""

    async def run() -> None:
        async with DRIVER.open(DRIVER.resolve(fake_request())) as session:
            pid = (await session.deployment()).note.pid
            key = session._http._key  # type: ignore[attr-defined]
            assert key
            assert key.encode() not in shown_to_others(pid)
            assert key not in repr(session)

    asyncio.run(run())


def shown_to_others(pid: int | None) -> bytes:
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def test_resolve_predicts_sizes_from_the_codecs() -> None:
    """q8_0 is 34 bytes for 32 elements: 2 layers x 2 heads x 64 elements, K and V."""
    expected = DRIVER.resolve(fake_request("k=q8_0,v=f16", context_tokens=1024)).expected

    assert (expected.k_codec, expected.v_codec) == ("q8_0", "f16")
    assert expected.bytes_per_token == 2 * 2 * (64 // 32 * 34 + 64 * 2)


@pytest.mark.parametrize("recipe", ["q9_0", "q8_1"])
def test_unknown_and_refused_codecs_are_user_errors(recipe: str) -> None:
    """As on a real engine, and with the names that there are."""
    with pytest.raises(UserError, match="allowed: "):
        DRIVER.resolve(fake_request(recipe))


def test_it_is_registered() -> None:
    """`fake` is an engine like the others, and says that its driver has a panel."""

    async def lanes() -> object:
        async with DRIVER.open(DRIVER.resolve(fake_request())) as session:
            return (await session.lanes())[Lane.PANEL]

    assert get("engine", "fake") is DRIVER
    assert isinstance(asyncio.run(lanes()), Available)
