"""Exact token ids where a server has no page for them: by the model folder's own tokenizer.json.

In the interpreter that owns the engine (`workers/folder_tokens.py`); the process ends with its standard input, so that
it does not outlive us.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Final

from kvgate.core.errors import BadAnswer
from kvgate.core.text import one_line
from kvgate.engines._patience import within

WORKER: Final = Path(__file__).parent / "workers" / "folder_tokens.py"
#: Importing the package and reading a large vocabulary; an answer takes milliseconds.
_TIMEOUT_S: Final = 60.0


class FolderTokens:
    """One process, started at the first text. Not for several event loops."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self._file = python, folder / "tokenizer.json"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = asyncio.Lock()

    async def ids(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Ids of a text.

        Raises:
            BadAnswer: the folder has no such file, or the interpreter cannot read it.
        """
        if not self._file.exists():
            raise BadAnswer("the model folder has no tokenizer.json, and the server no /tokenize", kind="not_here")
        async with self._lock:
            try:
                async with within(_TIMEOUT_S):
                    line = await asyncio.to_thread(self._ask, text, special)
            except (OSError, TimeoutError):
                self.close()
                raise BadAnswer("the engine's interpreter gives no token ids", kind="not_here") from None
        said = json.loads(line) if line else {"failed": "its process ended"}
        if "ids" not in said:
            self.close()
            raise BadAnswer(f"no token ids: {one_line(str(said.get('failed')), 200)}", kind="not_here")
        return tuple(said["ids"])

    def _ask(self, text: str, special: bool) -> bytes:
        if self._process is None:
            argv = [self._python, "-I", str(WORKER), str(self._file)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a child without pipes")
        with contextlib.suppress(BrokenPipeError):  # it has said why, and ended
            self._process.stdin.write(json.dumps({"text": text, "special": special}).encode() + b"\n")
            self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
