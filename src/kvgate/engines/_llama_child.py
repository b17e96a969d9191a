"""The worker of llama.cpp as a child process.

It dies with its parent twice over: the kernel kills it when the thread that started it ends (only asked for in the main
thread, whose end is the process's), and it exits when its standard input ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from kvgate.core.errors import EngineDied
from kvgate.core.geometry import ModelFiles
from kvgate.engines import _child
from kvgate.engines._llama_log import last_words
from kvgate.models.file_digest import file_sha256

MAX_LINE_BYTES = 4000
#: Variables that would change what the engine does without anybody having asked for it.
_OURS = ("LLAMA_", "GGML_")


class Child(_child.Child):
    """One worker process."""

    GRACE_S = 2.0

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, pass_fds: Sequence[int] = ()) -> None:
        super().__init__(
            argv, child_env(env), package="xllamacpp", line_bytes=MAX_LINE_BYTES, shown=_shown, pass_fds=pass_fds
        )

    def told(self, status: int, lines: list[str]) -> tuple[str, str]:
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}", last_words(lines)

    def ask_to_end(self) -> None:
        # The thread that waits for the end of its input may be held up by a library that loads.
        self.process.terminate()


def _shown(line: str) -> str | None:
    return None if "api_key" in line.lower() else line  # the engine prints the end of the key


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
    # An abort must not start a debugger that outlives the worker.
    return _child.environment({"GGML_NO_BACKTRACE": "1"} | dict(extra), without=_OURS)
