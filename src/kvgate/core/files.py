"""Files that a person names, opened so that a pipe that nobody writes to is an error and not a wait without end."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
from pathlib import Path

#: How long a pipe may be silent before its first byte: a remote log takes its time to begin.
WAIT_S = 30.0


def open_bounded(path: Path) -> io.BufferedReader:
    """`path` for reading. A pipe (`<(zcat start.log.gz)`, a FIFO) is read as it comes, once its writer has begun.

    Raises:
        OSError: it cannot be opened, or is a pipe to which nobody has written for `WAIT_S` seconds.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            if not waiting.poll(WAIT_S * 1000):
                raise OSError(errno.ETIMEDOUT, f"nobody has written to this pipe for {WAIT_S:g} s")
        os.set_blocking(handle, True)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
