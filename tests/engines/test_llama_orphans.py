"""Nothing outlives kvgate: not when it is killed outright with a server and a panel running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.kill]

#: What the product promises.
LIMIT_S = 5.0

PARENT = """
import asyncio, sys, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from llama_kit import launch
from kvgate.engines.llama_cpp import DRIVER
from kvgate.models.resolve import model_files

async def main():
    made = launch("q8_0", model_files(Path({model!r}), name="m"), context_tokens=256)
    with DRIVER.open_panel({{"base": made}}) as panel:
        panel.begin([1] * 100)
        async with DRIVER.open(made) as session:
            note = (await session.deployment()).note
            print(panel.deployments()["base"].note.pid, note.pid, note.port, flush=True)
            await asyncio.sleep(600)

if {in_thread}:
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
else:
    asyncio.run(main())
"""


def shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {p.name for p in folder.iterdir()} if folder.is_dir() else set()


def listening(port: int) -> bool:
    return any(c.status == "LISTEN" and c.laddr.port == port for c in psutil.net_connections("tcp"))


@pytest.mark.parametrize("in_thread", [False, True], ids=["main thread", "other thread"])
def test_a_killed_parent_leaves_no_process_port_or_memory(smollm2: Path, in_thread: bool) -> None:
    """After SIGKILL of the parent, server, panel, port and shared memory are gone within five seconds."""
    before = shared_memory()
    code = PARENT.format(tests=str(Path(__file__).parent), model=str(smollm2), in_thread=in_thread)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None
    pids: list[int] = []
    try:
        panel_pid, server_pid, port = (int(x) for x in parent.stdout.readline().split())
        pids = [panel_pid, server_pid]
        assert all(psutil.pid_exists(p) for p in pids)
        assert listening(port)
        # Ctrl-C and Ctrl-\ reach the whole group of a terminal; what they mean is the parent's to say.
        for pid in pids:
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGQUIT)
        time.sleep(0.2)
        assert all(map(running, pids))

        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + LIMIT_S
        # A leader that is a zombie may have threads that still hold the socket for a moment.
        while (any(map(running, pids)) or listening(port)) and time.monotonic() < deadline:
            time.sleep(0.05)

        assert not [p for p in pids if running(p)]
        assert not listening(port)
        assert shared_memory() <= before
    finally:
        parent.kill()
        parent.wait()
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()


def running(pid: int) -> bool:
    """Alive; a zombie that its new parent has not fetched yet is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
