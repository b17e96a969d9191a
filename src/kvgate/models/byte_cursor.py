"""Reads a file forward in bounded steps. Every size is checked against what is left of the file before it is used."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 18
_U64 = struct.Struct("<Q")


class Truncated(Exception):
    """The file ends before what it announces; `what` names it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class ByteCursor:
    """A position in a file of known size, with a small buffer.

    A file that shrinks while it is read is `Truncated`, not a crash (which a memory map would make of it).
    """

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file, self.size_bytes = file, size_bytes
        self._buffer, self._base, self._at = b"", 0, 0

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._base + self._at

    @property
    def left_bytes(self) -> int:
        return self.size_bytes - self.offset

    def take(self, n_bytes: int, what: str) -> bytes:
        """The next `n_bytes` bytes.

        Raises:
            Truncated: the file has fewer left; nothing was allocated.
        """
        self._need(n_bytes, what)
        data = self._buffer[self._at : self._at + n_bytes]
        self._at += n_bytes
        return data

    def rewind(self, offset: int) -> None:
        """Go back to an offset that is still in the buffer (the start of the file, after looking at its head)."""
        if not self._base <= offset <= self.offset:
            raise ValueError(f"offset {offset} is not in the buffer")
        self._at = offset - self._base

    def skip(self, n_bytes: int, what: str) -> None:
        """Move on by `n_bytes` without reading them.

        Raises:
            Truncated: the file has fewer left.
        """
        if n_bytes > self.left_bytes:
            raise Truncated(what)
        if self._at + n_bytes <= len(self._buffer):
            self._at += n_bytes
            return
        target = self.offset + n_bytes
        self._file.seek(target)
        self._buffer, self._base, self._at = b"", target, 0

    def skip_strings(self, count: int, max_bytes: int, what: str) -> None:
        """Move over `count` length-prefixed strings. The loop of a tokenizer: 100,000 turns and more.

        Raises:
            Truncated: the file ends inside one, or one is announced longer than `max_bytes`.
        """
        unpack, done = _U64.unpack_from, 0
        while done < count:
            self._need(8, what)
            buffer, at, end = self._buffer, self._at, len(self._buffer)
            while done < count and at + 8 <= end:
                (size,) = unpack(buffer, at)
                if at + 8 + size > end:
                    break
                at += 8 + size
                done += 1
            if at == self._at:
                # One string that the buffer does not hold whole.
                (size,) = unpack(buffer, at)
                if size > max_bytes:
                    raise Truncated(what)
                self.skip(8 + size, what)
                done += 1
            else:
                self._at = at

    def sha256(self, start: int, end: int) -> str:
        """Digest of a range of the file; the position does not move."""
        digest = hashlib.sha256()
        self._file.seek(start)
        left = end - start
        while left > 0:
            block = self._file.read(min(left, _CHUNK_BYTES))
            if not block:
                raise Truncated("the data")
            digest.update(block)
            left -= len(block)
        self._file.seek(self._base + len(self._buffer))
        return digest.hexdigest()

    def number(self, form: struct.Struct, what: str) -> Any:
        """One number in struct notation."""
        return form.unpack(self.take(form.size, what))[0]

    def _need(self, n_bytes: int, what: str) -> None:
        have = len(self._buffer) - self._at
        if have >= n_bytes:
            return
        if n_bytes > self.left_bytes:
            raise Truncated(what)
        rest = self._buffer[self._at :]
        self._base, self._at = self.offset, 0
        wanted = min(max(n_bytes, _CHUNK_BYTES), self.size_bytes - self._base) - len(rest)
        self._buffer = rest + self._file.read(wanted)
        if len(self._buffer) < n_bytes:
            raise Truncated(what)
