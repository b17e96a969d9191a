"""Waiting for a server that is busy (429) or not ready (503): bounded in tries and time, with jitter, each wait kept.

`Retry-After` is seconds or an HTTP date (RFC 9110, section 10.2.3). A server that names a longer time than is waited at
most is asked again after that most; one that goes on refusing is given up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

#: Too many requests; service unavailable (a model that loads, a queue that is full). Both are answered before any work.
BUSY_STATUSES = (429, 503)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a busy server is waited for.

    Attributes:
        tries: requests in all; 1 waits for nothing, and a refusal is then the answer.
        first_s: the first wait where the server names none; it doubles.
        longest_s: one wait at most, whatever the server names. total_s: all waits of one request together.
    """

    tries: int = 6
    first_s: float = 0.5
    longest_s: float = 20.0
    total_s: float = 60.0

    def wait_s(self, failed: int, named_s: float | None, rng: random.Random) -> float:
        """The wait after the `failed`-th refusal (from 1). Jitter keeps clients from coming back all at once."""
        if named_s is not None:
            return min(named_s * (1 + rng.random() / 10), self.longest_s)
        return min(self.first_s * 2.0 ** (failed - 1), self.longest_s) * (0.5 + rng.random() / 2)


#: For who waits in another way, or not at all.
NO_WAIT = Backoff(tries=1)
#: For the first question to a server that a person names: a mistake is to be told soon.
FIRST_CONTACT = Backoff(tries=3, first_s=0.2, longest_s=2.0, total_s=4.0)


class Retry(NamedTuple):
    """One wait: where, why, how long."""

    path: str
    status: int
    waited_s: float
    said: str

    def __str__(self) -> str:
        return f"{self.path}: HTTP {self.status}, asked again after {self.waited_s:.2f} s: {self.said}"


def named_wait_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds of a `Retry-After`; None where there is none, or none that can be read. A date in the past is 0."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max((until - (now or datetime.now(UTC))).total_seconds(), 0.0)
