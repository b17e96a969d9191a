"""Start, wait for and end a server that is a family of processes (`workers/family_server.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kvgate.core.deployment import Note
from kvgate.core.engine import Launch
from kvgate.core.errors import EngineDied, EngineTimeout, UserError
from kvgate.core.text import one_line
from kvgate.engines import _vllm_child
from kvgate.engines._llama_child import HEAD_LINES
from kvgate.models.model_folder import has_changed

#: Loading, compiling and capturing graphs on a GPU.
LOAD_TIMEOUT_S: Final = 900.0
#: Slowest disk that a load is waited for.
_SLOWEST_BYTES_PER_S: Final = 20e6
_POLL_S: Final = 0.1
_KEEPER_TIMEOUT_S: Final = 60.0
MAX_REPLY_BYTES: Final = 65536
#: SGLang prints all of its 550 arguments in one line: 25,000 bytes and paths.
MAX_LINE_BYTES: Final = 262_144
#: Ours, whatever the engine: they load other modules into a foreign interpreter.
_FOREIGN: Final = ("PYTHONPATH", "PYTHONHOME")


@dataclass(frozen=True, slots=True)
class Started:
    """A family that runs.

    Attributes:
        package, version: of the engine in its interpreter. note: where it listens and who it is.
        ended: None while it lives, else how it ended. lines: its log so far.
    """

    api_key: str
    package: str
    version: str | None
    note: Note
    ended: Callable[[], str | None]
    lines: Callable[[], list[str]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.note.port}"


class _Log(_vllm_child.Log):
    """As that of vLLM's keeper, with room for longer lines: a key cut in two would not be found."""

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._pipe:
            while raw := self._pipe.readline(MAX_LINE_BYTES):
                line = raw.decode("utf-8", "replace").rstrip("\n").replace(self._key, "[key]")
                with self._lock:
                    (self._head if len(self._head) < HEAD_LINES else self._tail).append(line)


class _Keeper(_vllm_child.Keeper):
    """The keeper of any family: its environment is ours without what steers the engine."""

    def __init__(self, launch: Launch, key: str, steering: tuple[str, ...]) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith((*steering, *_FOREIGN))}
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                list(launch.argv), stdin=pipe, stdout=pipe, stderr=pipe, env=kept | dict(launch.env), bufsize=0
            )
        except OSError as e:
            raise UserError(
                f"engine interpreter {launch.argv[0]!r} cannot be started: {e.strerror}",
                fix="give the Python that has the engine by --engine-python",
            ) from None
        if self.process.stderr is None or self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a child without pipes")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.log = _Log(self.process.stderr, key)
        self.group: int | None = None


@asynccontextmanager
async def family(
    launch: Launch,
    title: str,
    *,
    steering: tuple[str, ...],
    ready: Callable[[Started], Awaitable[bool]],
    timeout_s: float | None = None,
) -> AsyncIterator[Started]:
    """A server that is ready; all its processes are gone when this ends, however it ends.

    Args:
        launch: its `engine_options` are the worker's settings.
        steering: beginnings of variables that would change what the engine does without anybody having asked.
        ready: whether it serves; asked again and again while it loads.

    Raises:
        EngineDied: it ended while loading, with the line that says why. EngineTimeout: it never was ready.
        UserError: the interpreter cannot be started.
    """
    # Hexadecimal: a key that begins with "-" would read as a flag.
    key = secrets.token_hex(32)
    begun = datetime.now(UTC).isoformat()
    keeper, folder = _Keeper(launch, key, steering), ""
    try:
        said = await _answer(keeper, launch.engine_options, key, title)
        keeper.group, folder = int(said["pid"]), str(said.get("folder") or "")
        note = Note(
            place="serving",
            host="127.0.0.1",
            port=int(said["port"]),
            pid=keeper.group,
            started=begun,
            python=said.get("python"),
        )
        started = Started(key, str(said["package"]), said.get("version"), note, keeper.ended, keeper.log.lines)
        await _wait(started, ready, title, timeout_s or load_timeout_s(launch))
        if why := has_changed(launch.request.model):
            raise EngineDied(why)
        yield started
    finally:
        keeper.stop()
        if folder:
            # Its keeper does this, unless it was killed.
            shutil.rmtree(folder, ignore_errors=True)


async def listens(started: Started) -> bool:
    """Whether somebody accepts connections at its address."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", started.note.port)
    except OSError:
        return False
    writer.close()
    return True


def load_timeout_s(launch: Launch) -> float:
    """Patience for a load: more for larger files."""
    return LOAD_TIMEOUT_S + launch.request.model.size_bytes / _SLOWEST_BYTES_PER_S


async def _answer(keeper: _Keeper, options: Mapping[str, Any], key: str, title: str) -> dict[str, Any]:
    """The keeper's one line of answer, or the reason why there is none."""
    settings = dict(options) | {"api_key": key, "parent": os.getpid()}
    try:
        keeper.stdin.write(json.dumps(settings).encode() + b"\n")
        # The thread ends with the child, at the latest when it is stopped.
        asked = asyncio.to_thread(keeper.stdout.readline, MAX_REPLY_BYTES)
        text = await asyncio.wait_for(asked, _KEEPER_TIMEOUT_S)
    except OSError:
        text = b""
    except TimeoutError:
        raise EngineTimeout(f"{title}'s keeper gave no answer within {_KEEPER_TIMEOUT_S:.0f} s") from None
    if not text:
        raise EngineDied(f"{title} did not start: {await _ended(keeper)}")
    try:
        said = json.loads(text)
    except ValueError:
        raise EngineDied(f"{title}'s keeper said {one_line(text.decode('utf-8', 'replace'), 200)}") from None
    if not isinstance(said, dict) or "pid" not in said:
        why = said.get("failed") if isinstance(said, dict) else said
        raise EngineDied(f"{title} did not start: {one_line(str(why), 300)}")
    return said


async def _wait(started: Started, ready: Callable[[Started], Awaitable[bool]], title: str, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if ended := started.ended():
            raise EngineDied(f"{title} ended while loading: {ended}")
        if await ready(started):
            return
        await asyncio.sleep(_POLL_S)
    raise EngineTimeout(f"{title} was not ready within {timeout_s:.0f} s")


async def _ended(keeper: _Keeper) -> str:
    """How it ended, once the process is gone; a closed pipe may be a little ahead of it."""
    for _ in range(20):
        if ended := keeper.ended():
            return ended
        await asyncio.sleep(_POLL_S)
    return "its output closed"
