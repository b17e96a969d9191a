"""Every error that kvgate raises on purpose.

KvgateError
 ├── UserError            what the person asked for cannot be done; one line with the fix; exit 2
 │    └── StoreBusy       another kvgate holds the lease on this run
 ├── EngineError          the engine failed; recorded as that, never counted as an answer
 │    ├── EngineDied      the process ended (the exit status and the last log line are kept)
 │    ├── EngineTimeout   no answer within the stated time
 │    │    └── EngineBusy refused (429, 503) for longer than it is waited
 │    ├── EngineChanged   another deployment answers than the one that was asked before
 │    └── BadAnswer       an answer that means nothing: truncated stream, 200 with nonsense, degenerate logprobs
 ├── LaneUnavailable      this deployment cannot serve a lane; the lane is `untested` with this reason
 └── StoreError           the record could not be written (a full disk after the start is INVALID)
"""

from __future__ import annotations

from collections.abc import Iterable


class KvgateError(Exception):
    """Base of all errors that kvgate raises on purpose."""


class UserError(KvgateError):
    """One line for a person: the thing, the allowed values, the fix.

    Example: UserError("unknown codec 'q8'", allowed=["q8_0", "q5_1"], fix="choose one of these")
    """

    def __init__(self, thing: str, *, allowed: Iterable[str] = (), fix: str = "") -> None:
        self.thing, self.allowed, self.fix = thing, tuple(allowed), fix
        parts = [thing.rstrip(".")]
        if self.allowed:
            parts.append("allowed: " + ", ".join(self.allowed))
        if fix:
            parts.append(fix)
        # One line is the contract: a newline inside a file name must not break it.
        super().__init__(" ".join("; ".join(parts).split()))


class StoreBusy(UserError):
    """Another process holds the lease of the same run."""


class EngineError(KvgateError):
    """The engine failed; the failure is the observation."""


class EngineDied(EngineError):
    """The engine's process ended while it was needed."""


class EngineTimeout(EngineError):
    """The engine did not answer within the stated time."""


class EngineBusy(EngineTimeout):
    """The engine refused with 429 or 503 for longer than it is waited; `status` is the last one."""

    def __init__(self, message: str = "", *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineChanged(EngineError):
    """What answers is not the deployment that answered before, or not the model that was asked for."""


class BadAnswer(EngineError):
    """The engine answered with something that cannot be counted as an answer.

    Attributes:
        kind: one word for what is wrong ("context_exceeded", "truncated", "degenerate_logprobs", ...), "" if unnamed.
        status: HTTP status, where there was one.
    """

    def __init__(self, message: str = "", *, kind: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.status = kind, status


class LaneUnavailable(KvgateError):
    """A lane that this deployment cannot serve; the reason becomes the `untested` entry."""


class StoreError(KvgateError):
    """The store could not write: a full disk, a lost database."""
