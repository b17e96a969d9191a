"""A child process that is an engine or keeps one: started without a shell, its log kept in memory, ended with us."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final

from kvgate.core.errors import EngineDied, EngineTimeout, UserError
from kvgate.core.text import one_line
from kvgate.engines._patience import within

#: The start of a log holds the load; of what follows, the end is enough.
HEAD_LINES, TAIL_LINES = 5000, 200
_MAX_ANSWER_BYTES: Final = 65536
_MAX_WORDS_CHARS: Final = 300
#: A closed pipe may be this far ahead of the end of its process.
_ENDING_S: Final = 2.0
_POLL_S: Final = 0.02


class Log:
    """Lines of a pipe, read in a thread so that the child never waits for us. Memory is bounded.

    Args:
        line_bytes: what is longer is kept in pieces.
        shown: a line as it may be kept, without the key; None drops it.
    """

    def __init__(self, pipe: IO[bytes], line_bytes: int, shown: Callable[[str], str | None]) -> None:
        self._pipe, self._line_bytes, self._shown = pipe, line_bytes, shown
        self._lock = threading.Lock()
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._drain, name="engine log", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._pipe:
            # A line without an end must not grow either.
            while raw := self._pipe.readline(self._line_bytes):
                line = self._shown(raw.decode("utf-8", "replace").rstrip("\n"))
                if line is not None:
                    with self._lock:
                        (self._head if len(self._head) < HEAD_LINES else self._tail).append(line)

    def lines(self) -> list[str]:
        with self._lock:
            return [*self._head, *self._tail]

    def finish(self) -> None:
        """Wait a moment for what a dead child has left in the pipe."""
        self._thread.join(timeout=1.0)


class Child:
    """One process with pipes for input and output and a buffered log.

    A subclass says how it ended (`told`), how it is asked to end (`ask_to_end`), how long that may take (`GRACE_S`) and
    what it may leave behind (`sweep`).

    Raises:
        UserError: the interpreter cannot be started.
    """

    GRACE_S: float

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        package: str,
        line_bytes: int,
        shown: Callable[[str], str | None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                list(argv), stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), pass_fds=tuple(pass_fds), bufsize=0
            )
        except OSError as e:
            raise UserError(
                f"engine interpreter {argv[0]!r} cannot be started: {e.strerror}",
                fix=f"give the Python that has {package} by --engine-python",
            ) from None
        if self.process.stderr is None or self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a child without pipes")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.log = Log(self.process.stderr, line_bytes, shown)

    @property
    def pid(self) -> int:
        return self.process.pid

    def told(self, status: int, lines: list[str]) -> tuple[str, str]:
        """How it ended, and the words of the log that best say why."""
        raise NotImplementedError

    def ask_to_end(self) -> None:
        """Beside the end of its standard input."""

    def sweep(self) -> None:
        """What is to be done once it is gone."""

    def ended(self) -> str | None:
        """None while it runs, else how it ended and the log line that best says why."""
        status = self.process.poll()
        if status is None:
            return None
        self.log.finish()
        how, words = self.told(status, self.log.lines())
        why = one_line(words, _MAX_WORDS_CHARS)
        return f"{how}: {why}" if why else how

    async def ended_soon(self) -> str:
        """How it ended, once the process is gone."""
        for _ in range(round(_ENDING_S / _POLL_S)):
            if ended := self.ended():
                return ended
            await asyncio.sleep(_POLL_S)
        return "its output closed"

    async def answer(self, settings: Mapping[str, Any], who: str, timeout_s: float) -> dict[str, Any]:
        """Hand over the settings, and read the one line that it answers.

        Args:
            who: beginning of messages, "vLLM".

        Raises:
            EngineDied: it ended, or says something else. EngineTimeout: it says nothing so long.
        """
        try:
            self.stdin.write(json.dumps(settings).encode() + b"\n")
            # The thread ends with the child, at the latest when it is stopped.
            async with within(timeout_s):
                text = await asyncio.to_thread(self.stdout.readline, _MAX_ANSWER_BYTES)
        except TimeoutError:
            raise EngineTimeout(f"{who} was not ready within {timeout_s:.0f} s") from None
        except OSError:
            text = b""
        if not text:
            raise EngineDied(f"{who} ended while loading: {await self.ended_soon()}")
        with contextlib.suppress(ValueError):
            if isinstance(said := json.loads(text), dict):
                return said
        raise EngineDied(f"{who}'s worker said {one_line(text.decode('utf-8', 'replace'), 200)}")

    def stop(self) -> None:
        """End it now; returns when it is gone. Holds nothing that would need more time than the grace."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        if self.process.poll() is None:
            self.ask_to_end()
            try:
                self.process.wait(self.GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.sweep()
        with contextlib.suppress(OSError):
            self.stdout.close()
        self.log.finish()


def environment(extra: Mapping[str, str], *, without: tuple[str, ...], but: Sequence[str] = ()) -> dict[str, str]:
    """Our environment without variables that steer an engine, plus `extra`.

    Args:
        without: beginnings of names that nobody has asked for. but: names that are harmless all the same.
    """
    kept = {k: v for k, v in os.environ.items() if k in but or not k.startswith(without)}
    if "OMP_WAIT_POLICY" not in kept:
        # Threads that spin long at OpenMP's barriers starve each other as soon as anything else runs. llama.cpp's
        # decode, two threads, ms a token: libgomp's own 300,000 spins 10.6 alone and 3,200 beside one busy process,
        # 5,000 spins 10.7 and 119, none at all 24 and 32 to 112. A person's own setting wins.
        kept.setdefault("GOMP_SPINCOUNT", "5000")
    return kept | dict(extra)
