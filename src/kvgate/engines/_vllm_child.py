"""vLLM's keeper as a child process: started without a shell, its log kept in memory, ended with us.

The keeper ends the whole family of vLLM's processes when its standard input ends, so that nothing outlives us.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Final

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.engines._llama_child import HEAD_LINES, TAIL_LINES
from kvgate.engines.workers.vllm_server import kill_group

#: The keeper gives vLLM 2.5 s to end, and a second more to free its shared memory.
GRACE_S: Final = 4.0
#: The line that echoes the configuration has 3,400 bytes, and model paths stand in it twice.
MAX_LINE_BYTES: Final = 16_384
#: Variables that would change what the engine does without anybody having asked for it, or load other modules into a
#: foreign interpreter.
_OURS: Final = ("VLLM_", "PYTHONPATH", "PYTHONHOME", "OMP_NUM_THREADS")
#: Where vLLM keeps compiled code and configuration: no matter of numbers.
_KEPT: Final = ("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT")
_PREFIX: Final = re.compile(r"^\(\w+(?: \w+=\w+)*\) (?:(?:INFO|WARNING|ERROR|CRITICAL) \S+ \S+ \[[^\]]*\] ?)?")
_ERROR: Final = re.compile(r"(?:^|: )error: (.+)|^\s*((?:[\w.]*(?:Error|Exception)|Value error)\b[:,] .+)")
#: Errors that only say that a process below failed, or how the program is called.
_ECHOES: Final = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Executor failed",
    "DeadError",
)
MAX_LINE_CHARS: Final = 600
#: A process of vLLM's that a signal ended while loading: v1/engine/utils.py CoreEngineProcManager.
_FAILED_CORE: Final = re.compile(r"Failed core proc\(s\): \{[^}]*?: -(\d{1,2})\b")
#: What signals mean that nobody here sends.
_SIGNALS: Final[Mapping[int, str]] = {
    4: "an illegal instruction: this build needs what the processor lacks, such as AVX-512",
    9: "killed, as the system does when memory runs out",
    7: "a bus error, as when shared memory runs out",
}


class Log:
    """Lines of a pipe, read in a thread so that nobody ever waits for us. Memory is bounded; the key is taken out."""

    def __init__(self, pipe: IO[bytes], key: str) -> None:
        self._pipe, self._key = pipe, key
        self._lock = threading.Lock()
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._drain, name="engine log", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._pipe:
            # A line without an end must not grow either.
            while raw := self._pipe.readline(MAX_LINE_BYTES):
                line = raw.decode("utf-8", "replace").rstrip("\n").replace(self._key, "[key]")
                with self._lock:
                    (self._head if len(self._head) < HEAD_LINES else self._tail).append(line)

    def lines(self) -> list[str]:
        with self._lock:
            return [*self._head, *self._tail]

    def finish(self) -> None:
        """Wait a moment for what a dead child has left in the pipe."""
        self._thread.join(timeout=1.0)


class Keeper:
    """One keeper with pipes for input and output and a buffered log."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], key: str) -> None:
        try:
            self.process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=child_env(env),
                bufsize=0,
            )
        except OSError as e:
            raise UserError(
                f"engine interpreter {argv[0]!r} cannot be started: {e.strerror}",
                fix="give the Python that has vLLM by --engine-python",
            ) from None
        if self.process.stderr is None or self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a child without pipes")
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.log = Log(self.process.stderr, key)
        #: Leader of the process group that vLLM runs in, once it is known.
        self.group: int | None = None

    def ended(self) -> str | None:
        """None while vLLM runs, else how it ended and the log line that best says why."""
        status = self.process.poll()
        if status is None:
            return None
        self.log.finish()
        number = -status if status < 0 else status - 128
        killed = status < 0 or 0 < number < 65
        how = (
            f"killed by signal {number}{_meaning(number) if number != 9 else ''}" if killed else f"exit status {status}"
        )
        # Who is killed has no last words; what stands last in the log was said of something else.
        why = one_line(last_words(self.log.lines(), errors_only=killed), 300)
        return f"{how}: {why}" if why else how

    def stop(self) -> None:
        """End it now; returns when it is gone."""
        with contextlib.suppress(OSError):
            self.stdin.close()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.process.wait() < 0:
            # The keeper was killed: nobody else ends the rest of the family.
            self._kill_group()
        with contextlib.suppress(OSError):
            self.stdout.close()
        self.log.finish()

    def _kill_group(self) -> None:
        if self.group is not None:
            kill_group(self.group)
            self.group = None


def child_env(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment without variables that steer the engine, plus `extra`."""
    kept = {k: v for k, v in os.environ.items() if k in _KEPT or not k.startswith(_OURS)}
    if "OMP_WAIT_POLICY" not in kept:
        # As for llama.cpp: threads that spin long at barriers starve each other as soon as anything else runs.
        kept.setdefault("GOMP_SPINCOUNT", "5000")
    return kept | dict(extra)


def _meaning(signal: int) -> str:
    return f" ({_SIGNALS[signal]})" if signal in _SIGNALS else ""


def last_words(lines: Iterable[str], *, errors_only: bool = False) -> str:
    """Why vLLM ended: the first error that is not a mere echo of another, else the last line."""
    found: list[str] = []
    last = core = ""
    for line in lines:
        text = _PREFIX.sub("", line[:MAX_LINE_CHARS]).rstrip()
        last = text.strip() or last
        if (m := _FAILED_CORE.search(text)) and not core:
            core = f"its engine core was ended by signal {m[1]}{_meaning(int(m[1]))}"
        if m := _ERROR.search(text):
            found.append((m[1] or m[2]).strip())
    told = [e for e in found if not any(echo in e for echo in _ECHOES)]
    # pydantic says first that there is an error, and a line later which.
    said = [e for e in told if "validation error" not in e]
    # A signal leaves no error of its own.
    return next(iter((*said, *told, *filter(None, [core]), *found)), "" if errors_only else last)
