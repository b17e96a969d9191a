"""The panel lane: all arms as contexts of one model in one worker process, rows of logits through shared memory.

Feed PREFILL steps of at least 64 tokens: with fewer rows the CPU path takes another kernel for f16 and f32, which
shows as a difference between arms that nobody asked for. Only the rest of a text may be shorter.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.core.deployment import Deployment, Note
from kvgate.core.engine import ArmId, Launch, Pass, Tokens
from kvgate.core.errors import EngineDied, EngineTimeout, LaneUnavailable
from kvgate.core.text import one_line
from kvgate.enginefacts.facts import EngineFacts, LayoutRow, load
from kvgate.engines._llama_child import Child, refuse_changed, start_settings
from kvgate.engines._llama_log import last_words
from kvgate.engines._llama_observe import ENGINE, Seen, deployment_of
from kvgate.engines._llama_serving import load_timeout_s
from kvgate.engines._patience import naps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORKER = Path(__file__).parent / "workers" / "llama_cpp_panel.py"
STEP_TIMEOUT_S = 600.0
HELLO_TIMEOUT_S = 60.0
#: Rows of one step; fewer where a row is long (256 rows of 262,144 logits would be 268 MB an arm).
MAX_ROWS, MAX_ROWS_LONG, LONG_VOCAB = 256, 128, 200_000
MAX_REPLY_BYTES = 64 * 2**20
INSTALL = "install kvgate's llamacpp extra into the engine's interpreter"


class LlamaCppPanel:
    """Arms in lockstep. Made by `panel_of`."""

    def __init__(self, worker: _Worker, launches: Mapping[ArmId, Launch], max_rows: int) -> None:
        import numpy as np

        self._worker, self._arms = worker, tuple(launches)
        first = next(iter(launches.values()))
        self.n_vocab = first.request.model.geometry.vocab_size
        #: Most tokens that one step takes.
        self.max_rows = max_rows
        options = [launch.engine_options for launch in launches.values()]
        self.context_tokens = min(o["n_ctx"] // o["n_parallel"] for o in options)
        shape = (len(self._arms), max_rows, self.n_vocab)
        self._rows = np.frombuffer(worker.block, dtype=np.float32).reshape(shape)
        self._rows.flags.writeable = False
        self._left = 0
        self._deployments: dict[ArmId, Deployment] = {}

    def deployments(self) -> Mapping[ArmId, Deployment]:
        """What this process's own log says of each arm."""
        return dict(self._deployments)

    def begin(self, ids: Sequence[int]) -> None:
        """Set the text and empty every arm's cache.

        Raises:
            ValueError: the text does not fit the context, or holds what is no token of the vocabulary.
        """
        text = [int(i) for i in ids]
        if len(text) > self.context_tokens:
            raise ValueError(f"a text of {len(text)} tokens does not fit a context of {self.context_tokens}")
        if any(not 0 <= i < self.n_vocab for i in text):
            raise ValueError(f"a token id is outside 0..{self.n_vocab - 1}")
        self._worker.ask({"op": "begin", "ids": text})
        self._left = len(text)

    def step(self, n: int, how: Pass) -> Mapping[ArmId, NDArray[np.float32]]:
        """Feed the next n tokens to every arm.

        Args:
            n: at most `max_rows`; at least 64 for PREFILL unless the text ends (see the module), 1 for DECODE.

        Returns:
            Raw logits [n, vocab] per arm: read-only views, valid until the next step.

        Raises:
            ValueError: n does not fit. EngineDied, EngineTimeout: the worker is gone or hangs.
        """
        if how is Pass.DECODE and n != 1:
            raise ValueError(f"a decode step feeds 1 token, not {n}")
        self._check(n)
        self._worker.ask({"op": "step", "n": n})
        self._left -= n
        return {arm: self._rows[i, :n] for i, arm in enumerate(self._arms)}

    def feed(self, n: int) -> None:
        """Feed the next n tokens to every arm without rows: what only stands before the scored tokens.

        Saves the output layer, a fifth of a small model's work, and the copies.

        Args:
            n: as `step` takes it for PREFILL.

        Raises:
            ValueError: n does not fit. EngineDied, EngineTimeout: the worker is gone or hangs.
        """
        self._check(n)
        self._worker.ask({"op": "step", "n": n, "rows": False})
        self._left -= n

    def _check(self, n: int) -> None:
        if not 1 <= n <= self.max_rows:
            raise ValueError(f"a step feeds 1 to {self.max_rows} tokens, not {n}: split it")
        if n > self._left:
            raise ValueError(f"{n} tokens asked, {self._left} left in the text")

    def tokenize(self, text: str, *, add_special: bool = False) -> Tokens:
        """Ids of a text by the model's own tokenizer; `add_special` adds what the model wants before it (a BOS)."""
        said = self._worker.ask({"op": "tokenize", "text": text, "add_special": add_special})
        return Tokens(tuple(said["ids"]))


class _Worker:
    """The worker process and the messages with it."""

    def __init__(self, python: str, block_bytes: int) -> None:
        self._fd = _anonymous(block_bytes)
        self.block = mmap.mmap(self._fd, block_bytes)
        try:
            self.child = Child((python, str(WORKER)), {}, pass_fds=(self._fd,))
        except BaseException:
            os.close(self._fd)
            raise
        self.memory_fd = self._fd
        self._dead: str | None = None
        self._poll = select.poll()
        self._poll.register(self.child.stdout.fileno(), select.POLLIN | select.POLLHUP)

    def ask(self, message: Mapping[str, Any], timeout_s: float = STEP_TIMEOUT_S) -> dict[str, Any]:
        """Send one message and wait for its answer.

        Raises:
            EngineDied: the worker is gone, or says that it cannot go on. EngineTimeout: it hangs, and was ended.
        """
        self.tell(message)
        said = self.hear(timeout_s)
        if "error" in said:
            raise EngineDied(f"panel: {one_line(str(said['error']), 300)}")
        return said

    def tell(self, message: Mapping[str, Any]) -> None:
        if self._dead:
            raise EngineDied(self._dead)
        data = json.dumps(message).encode()
        try:
            # An unbuffered pipe takes what fits.
            view = memoryview(struct.pack("<I", len(data)) + data)
            while view:
                view = view[self.child.stdin.write(view) or 0 :]
        except OSError:
            raise self._died() from None

    def hear(self, timeout_s: float) -> dict[str, Any]:
        (length,) = struct.unpack("<I", self._exactly(4, timeout_s))
        if length > MAX_REPLY_BYTES:
            raise self._died(f"an answer of {length} bytes")
        said = json.loads(self._exactly(length, timeout_s))
        return said if isinstance(said, dict) else {}

    def _exactly(self, n: int, silent_s: float) -> bytes:
        """`n` bytes of the worker, which may be silent so long before any of them."""
        fd, data = self.child.stdout.fileno(), b""
        while len(data) < n:
            if not any(self._poll.poll(nap_s * 1000) for nap_s in naps(silent_s)):
                self._dead = "panel: the worker did not answer and was ended"
                self.child.stop()
                raise EngineTimeout(self._dead)
            piece = os.read(fd, n - len(data))
            if not piece:
                raise self._died()
            data += piece
        return data

    def _died(self, why: str = "") -> EngineDied:
        for _ in range(100):
            if self.child.ended():
                break
            time.sleep(0.02)
        self._dead = f"panel: the worker ended: {why or self.child.ended() or 'its pipe is closed'}"
        self.child.stop()
        return EngineDied(self._dead)

    def close(self) -> None:
        self.child.stop()
        os.close(self._fd)
        # A view that somebody still holds keeps the pages; they go with it.
        with contextlib.suppress(BufferError):
            self.block.close()


def _anonymous(n_bytes: int) -> int:
    """A descriptor of memory without a name: nothing is left of it when the last process that has it ends."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("kvgate-panel", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as f:
            fd = os.dup(f.fileno())
    os.ftruncate(fd, n_bytes)
    return fd


@contextmanager
def panel_of(launches: Mapping[ArmId, Launch]) -> Iterator[LlamaCppPanel]:
    """Start the worker, load the model once and make a context per arm; all is gone when this ends.

    A variable in an arm's `env` is set while its context is made, which is when the engine reads rotation.

    Raises:
        LaneUnavailable: no panel with this wheel, platform or set of arms, with the reason.
        EngineDied, EngineTimeout: the worker ended or hangs.
    """
    first = _one_model(launches)
    _refuse_platform(sys.platform, load(ENGINE))
    n_vocab, options = first.request.model.geometry.vocab_size, [x.engine_options for x in launches.values()]
    rows = MAX_ROWS_LONG if n_vocab > LONG_VOCAB else MAX_ROWS
    rows = min([rows, *(o["n_batch"] for o in options)])
    worker = _Worker(first.argv[0], len(options) * rows * n_vocab * 4)
    started = datetime.now(UTC).isoformat()
    try:
        worker.tell(start_settings())
        here = worker.hear(HELLO_TIMEOUT_S)
        layout = _layout(here, load(ENGINE))
        worker.tell(
            {
                "op": "load",
                "library": here["libraries"][0],
                "layout": layout.model_dump(include={"sizes", "offsets", "defaults"}),
                "model": str(first.request.model.path),
                "n_vocab": n_vocab,
                "max_rows": rows,
                "memory_fd": worker.memory_fd,
                "arms": [{**x.engine_options, "env": dict(x.env)} for x in launches.values()],
            }
        )
        loaded = worker.hear(load_timeout_s(first) * (1 + len(options)))
        _refuse(loaded, worker.child)
        try:
            refuse_changed(first.request.model)
        except EngineDied as e:
            raise LaneUnavailable(str(e)) from None
        panel = LlamaCppPanel(worker, launches, rows)
        note = Note(place="panel", pid=worker.child.pid, started=started, python=here.get("python"))
        for (name, launch), arm in zip(launches.items(), loaded["arms"], strict=True):
            panel._deployments[name] = _deployment(launch, arm, here["version"], note)
        yield panel
    finally:
        worker.close()


def _deployment(launch: Launch, arm: Mapping[str, Any], version: str, note: Note) -> Deployment:
    numbers = {"threads": int(arm["numbers"]["threads"]), "checkpoints": 0}
    said = (f"package xllamacpp {version}", f"llama_n_threads = {numbers['threads']}")
    return deployment_of(launch, arm["log"], Seen(version, note, numbers, said))


def _one_model(launches: Mapping[ArmId, Launch]) -> Launch:
    """The first launch, if all share its model and interpreter."""
    if not launches:
        raise LaneUnavailable("a panel without arms")
    first = next(iter(launches.values()))
    for name, launch in launches.items():
        if launch.request.model.digest != first.request.model.digest:
            raise LaneUnavailable(f"arm {name} has another model; a panel loads one")
        if launch.argv[0] != first.argv[0]:
            raise LaneUnavailable(f"arm {name} runs in another interpreter; a panel has one")
    return first


def _layout(here: Mapping[str, Any], facts: EngineFacts) -> LayoutRow:
    """The verified C layout of the wheel that the worker found, or the reason why there is no panel."""
    if "missing" in here:
        raise LaneUnavailable(f"package {here['missing']} is not there; {INSTALL}")
    version = here.get("version")
    if not version:
        raise LaneUnavailable("the version of xllamacpp cannot be read, so its C layout is not known")
    layout = facts.layout_of(version)
    if layout is None:
        known = ", ".join(row.version for row in facts.layout)
        raise LaneUnavailable(f"xllamacpp {version}: its C layout has not been verified (verified: {known})")
    if here.get("platform") not in layout.platforms or here.get("words") != 8:
        raise LaneUnavailable(f"xllamacpp {version} has not been verified on {here.get('platform')}")
    if len(here.get("libraries") or ()) != 1:
        raise LaneUnavailable(f"xllamacpp {version}: its library is not where it was, one .so beside the package")
    return layout


def _refuse_platform(platform: str, facts: EngineFacts) -> None:
    for row in facts.platform:
        if row.lane == "panel" and row.platform == platform:
            raise LaneUnavailable(row.why)


def _refuse(loaded: Mapping[str, Any], child: Child) -> None:
    if "failed" not in loaded:
        return
    why = one_line(str(loaded["why"]), 300)
    if loaded["failed"] == "layout":
        raise LaneUnavailable(f"the wheel's C interface is not what the table says: {why}")
    child.stop()
    # The GGUF reader writes to standard error, the rest comes by the log call.
    said = one_line(last_words([*child.log.lines(), *loaded["log"]]), 300)
    raise EngineDied(f"panel: {why}: {said}" if said else f"panel: {why}")
