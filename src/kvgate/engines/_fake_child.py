"""The fake server as a child process: started without a shell, ended with its session, its log kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from kvgate.core.errors import EngineDied, EngineTimeout
from kvgate.engines._patience import within

_CLOSE_S = 2.0


class FakeChild:
    """One process. `start` must be called from a thread that outlives it: the kernel kills it with that thread."""

    def __init__(self, argv: tuple[str, ...], settings: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.api_key = secrets.token_urlsafe(24)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # The child imports the kvgate that its parent runs, however that was found.
            env=os.environ | env | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        line = json.dumps({**settings, "api_key": self.api_key, "parent_pid": os.getpid()}) + "\n"
        # A child that ended at once breaks the pipe; `address` says how it ended.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line.encode())
            self._stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    async def address(self, timeout_s: float) -> str:
        """Where it listens, once it has loaded.

        Raises:
            EngineDied: it ended first. EngineTimeout: it took too long.
        """
        stdout = self._process.stdout
        if stdout is None:
            raise EngineDied("the fake engine has no output")
        try:
            async with within(timeout_s):
                line = await asyncio.to_thread(stdout.readline)
        except TimeoutError:
            # The reading thread ends only when the pipe does.
            self._process.kill()
            raise EngineTimeout(f"the fake engine did not load within {timeout_s:g} s") from None
        if not line:
            self._process.wait()
            raise EngineDied(self.ended() or "the fake engine ended while loading")
        return str(json.loads(line)["url"])

    def ended(self) -> str | None:
        """None while it lives, else its exit status and the last line of its log."""
        status = self._process.poll()
        if status is None:
            return None
        last = next((line for line in reversed(self.log().splitlines()) if line.strip()), "no log")
        return f"the fake engine ended with status {status}: {last}"

    def log(self) -> str:
        """Its log so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """End it: politely by closing its stdin, then by force."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
