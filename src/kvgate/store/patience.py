"""A PostgreSQL connection that does not wait for ever. Needs psycopg.

Keepalives notice a dead machine and a silent network. They do not notice a server process that is frozen, or a proxy
that takes everything and passes nothing on: its kernel acknowledges every byte.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import Any

import psycopg

# What a driver ignores or repeats goes to standard error where nobody listens; what matters is raised.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

#: A statement that hears nothing for so long is given up. The longest silence that is right is a wait for another
#: writer (`BUSY_S`); a server that is merely slow has four times that for each statement.
MUTE_S = 120.0


class PatientConnection(psycopg.Connection[Any]):
    """A connection that is closed, with an OperationalError, once the server is silent for `MUTE_S`."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **more: Any) -> Any:
        """As psycopg's, which every statement passes through."""
        return super().wait(_unless_mute(gen, self), *args, **more)


def _unless_mute(gen: Generator[Any, Any, Any], connection: PatientConnection) -> Generator[Any, Any, Any]:
    """`gen` with a clock: psycopg wakes it several times a second, with nothing while nothing has come."""
    heard = time.monotonic()
    ready = None
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as e:
            return e.value
        ready = yield wanted
        now = time.monotonic()
        if ready:
            heard = now
        elif now - heard > MUTE_S:
            connection.pgconn.finish()  # in mid-statement it is of no more use, and closing must not wait again
            raise psycopg.OperationalError(f"the server has said nothing for {MUTE_S:g} s")
