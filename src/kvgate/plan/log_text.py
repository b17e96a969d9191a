"""Reads a log of unknown size and origin in lines, with a bound on everything: bytes, line length, memory.

Of a large file the first `HEAD_BYTES` and the last `TAIL_BYTES` are read; a start log is in the first, or, where logs
were appended over restarts, in the last.
"""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kvgate.core.errors import UserError
from kvgate.core.files import open_bounded
from kvgate.enginefacts.log_patterns import without_colours

HEAD_BYTES = 32 * 2**20
TAIL_BYTES = 16 * 2**20
#: vLLM and SGLang print their whole configuration in one line of 3 to 12 thousand characters.
MAX_LINE_CHARS = 64 * 2**10
_SNIFF_BYTES = 64 * 2**10
_PACKED = {b"\x1f\x8b": "gunzip -c", b"\x28\xb5\x2f\xfd": "zstdcat", b"PK\x03\x04": "unzip -p", b"BZh": "bzcat"}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without escape sequences. Numbers count from 1; from the end (-1 is the last) behind a gap."""

    number: int
    text: str


def lines_of(source: Path | str) -> Iterator[LogLine]:
    """Lines of a file (a `Path`) or of a text (a `str`), in order.

    Raises:
        UserError: the file cannot be read, is no text, or is packed.
    """
    if isinstance(source, str):
        yield from _numbered(io.StringIO(source, newline=""), limit=len(source) + 1)
        return
    if "\0" in str(source):
        raise UserError(f"log {str(source)!r} is not a file name", fix="name the engine's log file")
    try:
        with open_bounded(source) as f:
            yield from _of_file(source, f)
    except OSError as e:
        raise UserError(f"log {source} cannot be read: {e.strerror or e}", fix="name the engine's log file") from None


def _of_file(path: Path, f: io.BufferedReader) -> Iterator[LogLine]:
    # A peek, not a seek: the log may come through a pipe.
    start = f.peek(_SNIFF_BYTES)[:_SNIFF_BYTES]
    encoding = _encoding(path, start)
    # Held until the end: a wrapper that is dropped closes the file beneath it.
    head = io.TextIOWrapper(f, encoding, errors="replace", newline="")
    yield from _numbered(head, limit=HEAD_BYTES)
    size = os.fstat(f.fileno()).st_size
    if not f.seekable() or size <= HEAD_BYTES:
        return
    # Even, so that UTF-16 stays in step; its byte order is only said at the start of the file.
    f.seek(max(HEAD_BYTES, size - TAIL_BYTES) & ~1)
    rest = io.TextIOWrapper(f, _without_mark(encoding, start), errors="replace", newline="")
    # The first is a part of a line.
    tail = list(_numbered(rest, limit=TAIL_BYTES))[1:]
    for i, line in enumerate(tail):
        yield LogLine(i - len(tail), line.text)


def _encoding(path: Path, start: bytes) -> str:
    for magic, tool in _PACKED.items():
        if start.startswith(magic):
            raise UserError(f"log {path} is packed", fix=f"unpack it first: {tool} {path} > start.log")
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in start:
        raise UserError(f"{path} is not a log: it holds binary data", fix="name the text that the engine printed")
    return "utf-8-sig"


def _without_mark(encoding: str, start: bytes) -> str:
    if encoding != "utf-16":
        return "utf-8"
    return "utf-16-le" if start.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"


def _numbered(text: IO[str], *, limit: int) -> Iterator[LogLine]:
    """Lines of at most `MAX_LINE_CHARS`; the rest of a longer one is read past. Stops after `limit` characters.

    A progress bar ends its lines with a carriage return: such a piece is looked at by itself, and does not count.
    """
    number, taken = 1, 0
    while taken < limit:
        line = text.readline(MAX_LINE_CHARS)
        if not line:
            return
        taken += len(line)
        kept = line.rstrip("\r\n")
        yield LogLine(number, without_colours(kept))
        while line and line[-1] not in "\r\n" and taken < limit:
            line = text.readline(MAX_LINE_CHARS)
            taken += len(line)
        number += line.endswith("\n")
