"""A child process that runs the engine: started without a shell, its log kept in memory, ended with us.

It dies with its parent twice over: the kernel kills it when the thread that started it ends (only asked for in the main
thread, whose end is the process's), and it exits when its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO

from kvgate.core.errors import EngineDied, UserError
from kvgate.core.geometry import ModelFiles
from kvgate.core.text import one_line
from kvgate.engines._llama_log import last_words
from kvgate.models.file_digest import file_sha256

#: The start of a log holds the load; of what follows, the end is enough.
HEAD_LINES, TAIL_LINES = 5000, 200
MAX_LINE_BYTES = 4000
GRACE_S = 2.0
#: Variables that would change what the engine does without anybody having asked for it.
_OURS = ("LLAMA_", "GGML_")


class LogBuffer:
    """Lines of a pipe, read in a thread so that the child never waits for us. Memory is bounded."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._drain, name="engine log", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._pipe:
            # A line without an end must not grow either.
            while raw := self._pipe.readline(MAX_LINE_BYTES):
                line = raw.decode("utf-8", "replace").rstrip("\n")
                if "api_key" in line.lower():
                    continue  # the engine prints the end of the key
                with self._lock:
                    (self._head if len(self._head) < HEAD_LINES else self._tail).append(line)

    def lines(self) -> list[str]:
        with self._lock:
            return [*self._head, *self._tail]

    def finish(self) -> None:
        """Wait a moment for what a dead child has left in the pipe."""
        self._thread.join(timeout=1.0)


class Child:
    """One worker process with pipes for input and output and a buffered log."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, pass_fds: Sequence[int] = ()) -> None:
        try:
            self.process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=child_env(env),
                pass_fds=tuple(pass_fds),
                bufsize=0,
            )
        except OSError as e:
            raise UserError(
                f"engine interpreter {argv[0]!r} cannot be started: {e.strerror}",
                fix="give the Python that has xllamacpp by --engine-python",
            ) from None
        if self.process.stderr is None or self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a child without pipes")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.log = LogBuffer(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    def ended(self) -> str | None:
        """None while it runs, else how it ended and the log line that best says why."""
        status = self.process.poll()
        if status is None:
            return None
        self.log.finish()
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        why = one_line(last_words(self.log.lines()), 300)
        return f"{how}: {why}" if why else how

    def stop(self) -> None:
        """End it now; returns when it is gone. Holds nothing that would need more time than the grace."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.stdout.close()
        self.log.finish()


def refuse_changed(model: ModelFiles) -> None:
    """Ask after a load whether it was of the file that this run has read; each arm loads it anew.

    A new time of change alone is no change: the content decides.

    Raises:
        EngineDied: the file is another one now, so the arms would not run the same model.
    """
    try:
        now = model.path.stat()
    except OSError as e:
        raise EngineDied(f"the model file {model.path} is gone since this run has read it: {e.strerror}") from None
    if model.modified_ns in (None, now.st_mtime_ns) and now.st_size == model.size_bytes:
        return
    if now.st_size != model.size_bytes or file_sha256(model.path) != model.digest:
        raise EngineDied(f"the model file {model.path} has changed since this run has read it")


def start_settings() -> dict[str, object]:
    """What a worker needs to die with us."""
    # The kernel's signal follows the thread; one that may end before us would take the engine along.
    return {"parent": os.getpid(), "die_by_signal": threading.current_thread() is threading.main_thread()}


def child_env(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment without variables that steer the engine, plus `extra`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    if "OMP_WAIT_POLICY" not in kept:
        # Threads that spin long at OpenMP's barriers starve each other as soon as anything else runs. Decode, two
        # threads, ms a token: libgomp's own 300,000 spins 10.6 alone and 3,200 beside one busy process, 5,000 spins
        # 10.7 and 119, none at all 24 and 32 to 112. A person's own setting wins.
        kept.setdefault("GOMP_SPINCOUNT", "5000")
    # An abort must not start a debugger that outlives the worker.
    return kept | {"GGML_NO_BACKTRACE": "1"} | dict(extra)
