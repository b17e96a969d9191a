"""Start, wait for and end a server that is a family of processes (`workers/family_server.py`)."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kvgate.core.deployment import Note
from kvgate.core.engine import Launch
from kvgate.core.errors import EngineDied, EngineTimeout
from kvgate.core.text import one_line
from kvgate.engines import _child
from kvgate.engines._family_errors import how_it_ended
from kvgate.engines._family_package import Family
from kvgate.engines._patience import within
from kvgate.engines.workers.family_server import kill_group
from kvgate.models.model_folder import has_changed

#: Loading, compiling and capturing graphs on a GPU; a 2-core machine without compiling takes half a minute.
LOAD_TIMEOUT_S: Final = 900.0
#: Slowest disk that a load is waited for.
_SLOWEST_BYTES_PER_S: Final = 20e6
_POLL_S: Final = 0.1
_KEEPER_TIMEOUT_S: Final = 60.0
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


#: Whether a family serves; asked again and again while it loads.
Ready = Callable[[Started], Awaitable[bool]]


class _Keeper(_child.Child):
    """The keeper of a family, which ends it whole when its standard input ends."""

    #: It gives the server 2.5 s to end, and a second more to free its shared memory.
    GRACE_S = 4.0

    def __init__(self, launch: Launch, of: Family, key: str) -> None:
        super().__init__(
            launch.argv,
            _child.environment(launch.env, without=(*of.steering, *_FOREIGN), but=of.harmless),
            package=of.title,
            line_bytes=MAX_LINE_BYTES,
            shown=lambda line: line.replace(key, "[key]"),
        )
        #: Leader of the process group that the family runs in, once it is known.
        self.group: int | None = None

    def told(self, status: int, lines: list[str]) -> tuple[str, str]:
        return how_it_ended(status, lines)

    def sweep(self) -> None:
        # A keeper that was killed leaves its family: nobody else ends that.
        if self.process.returncode < 0 and self.group is not None:
            kill_group(self.group)


@asynccontextmanager
async def family(launch: Launch, of: Family, ready: Ready) -> AsyncIterator[Started]:
    """A server that is ready; all its processes are gone when this ends, however it ends.

    Args:
        launch: its `engine_options` are the worker's settings.
        ready: whether it serves; asked again and again while it loads.

    Raises:
        EngineDied: it ended while loading, with the line that says why. EngineTimeout: it never was ready.
        UserError: the interpreter cannot be started.
    """
    # Hexadecimal: a key that begins with "-" would read as a flag.
    key = secrets.token_hex(32)
    begun = datetime.now(UTC).isoformat()
    keeper, folder = _Keeper(launch, of, key), ""
    try:
        settings = {**launch.engine_options, "title": of.title, "api_key": key, "parent": os.getpid()}
        said = await keeper.answer(settings, of.title, _KEEPER_TIMEOUT_S)
        if "pid" not in said:
            raise EngineDied(f"{of.title} did not start: {one_line(str(said.get('failed')), 300)}")
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
        await _wait(started, ready, of.title, load_timeout_s(launch))
        if why := has_changed(launch.request.model):
            raise EngineDied(why)
        yield started
    finally:
        keeper.stop()
        if folder:
            # Its keeper does this, unless it was killed.
            shutil.rmtree(folder, ignore_errors=True)


def has_said(line: str) -> Ready:
    """Ready once its log has such a line, and somebody listens: which may be a moment later."""

    async def ready(started: Started) -> bool:
        return any(line in said for said in started.lines()) and await _listens(started)

    return ready


async def _listens(started: Started) -> bool:
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


async def _wait(started: Started, ready: Ready, title: str, timeout_s: float) -> None:
    try:
        async with within(timeout_s):
            while not (ended := started.ended()):
                if await ready(started):
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise EngineTimeout(f"{title} was not ready within {timeout_s:.0f} s") from None
    raise EngineDied(f"{title} ended while loading: {ended}")
