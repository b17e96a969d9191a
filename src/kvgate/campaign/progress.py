"""What a run tells while it works, and how it knows the time that remains.

Remaining time is measured, never promised: work is weighed in tokens, each suite's rate comes from what this run has
seen of it, and a suite not yet seen borrows the mean rate of the others. Before anything was measured it is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol


class Progress(Protocol):
    """Where a run reports to; the command line draws it.

    Attributes:
        stood_still_s: seconds so far in which the process was stopped (Ctrl-Z); no work was done in them.
    """

    stood_still_s: float

    def note(self, text: str) -> None:
        """A line that stays."""
        ...

    def stage(self, text: str) -> None:
        """What is happening now."""
        ...

    def update(self, done: float, total: float, remaining_s: float | None) -> None:
        """Weights done and in all; seconds left, None when nothing was measured yet."""
        ...


class Silent:
    """Reports nowhere."""

    stood_still_s = 0.0

    def note(self, text: str) -> None:
        """Drop it."""

    def stage(self, text: str) -> None:
        """Drop it."""

    def update(self, done: float, total: float, remaining_s: float | None) -> None:
        """Drop it."""


class Meter:
    """Weights planned and done per kind of work, and seconds spent on each."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._still_s = progress, progress.stood_still_s
        self._todo: dict[str, float] = defaultdict(float)
        self._done: dict[str, float] = defaultdict(float)
        self._spent_s: dict[str, float] = defaultdict(float)

    def plan(self, kind: str, weight: float) -> None:
        """Add work that is now known of; less than 0 takes away what need not be done."""
        self._todo[kind] = max(0.0, self._todo[kind] + weight)

    def done(self, kind: str, weight: float, seconds: float) -> None:
        """Work that ended, and what it took."""
        self._todo[kind] = max(0.0, self._todo[kind] - weight)
        self._done[kind] += weight
        self._spent_s[kind] += self._worked_s(seconds)
        done, todo = sum(self._done.values()), sum(self._todo.values())
        self._progress.update(done, done + todo, self.remaining_s())

    def _worked_s(self, seconds: float) -> float:
        """`seconds` without those in which the process was stopped since the last piece of work ended.

        A stop longer than the piece was before it, and is none of its time.
        """
        still_s, self._still_s = self._progress.stood_still_s - self._still_s, self._progress.stood_still_s
        return seconds - still_s if still_s < seconds else seconds

    def remaining_s(self) -> float | None:
        """Seconds left at the rates seen so far."""
        total_done, total_spent = sum(self._done.values()), sum(self._spent_s.values())
        if not total_done:
            return None
        mean = total_spent / total_done
        return sum(
            weight * (self._spent_s[kind] / self._done[kind] if self._done[kind] else mean)
            for kind, weight in self._todo.items()
        )
