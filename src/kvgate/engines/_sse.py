"""Server-sent events: bytes in any pieces -> the data of whole events, as soon as each is complete.

Lines end in LF, CR or CRLF; several `data:` lines of one event are joined by LF; comments and other fields are
dropped. A CR ends its line at once (the LF that may follow is skipped), so no event waits for the next piece.
Source: WHATWG HTML, section "Interpreting an event stream".
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"[\r\n]")
_BOM = b"\xef\xbb\xbf"


class SseParser:
    """One stream. Data is decoded line by line, so a character may be split over pieces.

    Raises:
        UnicodeDecodeError: (from `feed` and `close`) a line is not UTF-8.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._has_data = False
        self._skip_lf = False
        self._first = True

    def feed(self, piece: bytes) -> list[str]:
        """The data of each event that `piece` completes."""
        events: list[str] = []
        start = 0
        if piece and self._skip_lf:
            start = 1 if piece[:1] == b"\n" else 0
            self._skip_lf = False
        while (end := _LINE_END.search(piece, start)) is not None:
            self._line += piece[start : end.start()]
            start = end.end()
            if piece[end.start() : start] == b"\r":
                if start < len(piece):
                    start += piece[start : start + 1] == b"\n"
                else:
                    self._skip_lf = True
            self._end_line(events)
        self._line += piece[start:]
        return events

    def close(self) -> list[str]:
        """The event that the stream ended in, if it lacks its blank line: some servers leave it out after the last."""
        events: list[str] = []
        if self._line:
            self._end_line(events)
        if self._has_data:
            self._end_line(events)
        return events

    def _end_line(self, events: list[str]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._has_data:
                events.append("\n".join(self._data))
            self._data, self._has_data = [], False
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8"))
            self._has_data = True
