"""The event-stream parser: any cut of the bytes gives the same events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.engines._sse import SseParser


def whole(data: bytes) -> list[str]:
    """Events of a stream that comes in one piece."""
    parser = SseParser()
    return parser.feed(data) + parser.close()


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),  # several data lines are one event
        (b"data:a\n\ndata:  b\n\n", ["a", " b"]),  # one blank after the colon goes, a second stays
        (b": ping\n\ndata: a\n\n: pong\n", ["a"]),  # comments are no events
        (b"event: x\nid: 7\nretry: 3\n\ndata: a\n\n", ["a"]),  # other fields alone are no event
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),  # a byte order mark at the start
        (b"data\n\n", [""]),  # a field without a colon has an empty value
        (b"data: a\n\ndata: [DONE]", ["a", "[DONE]"]),  # the last blank line is often missing
        ("data: Grüße 🙂\n\n".encode(), ["Grüße 🙂"]),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
def test_events(data: bytes, events: list[str]) -> None:
    """Each form of the standard, and what servers leave out, gives the events that were meant."""
    assert whole(data) == events


_PIECES = st.sampled_from(
    [b"data: ", b"data:", b": c", b"event: e", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"{}", "é🙂".encode(), b"x"]
)


@given(st.lists(_PIECES, max_size=40).map(b"".join), st.lists(st.integers(0, 200), max_size=20))
def test_a_cut_anywhere_changes_nothing(data: bytes, cuts: list[int]) -> None:
    """Events from pieces equal the events of the whole, wherever the pieces end."""
    parser, got = SseParser(), []
    at = sorted({min(c, len(data)) for c in cuts} | {0, len(data)})

    for start, end in pairwise(at):
        got += parser.feed(data[start:end])
    got += parser.close()

    assert got == whole(data)


def test_byte_by_byte() -> None:
    """One byte at a time is the worst cut of all: CR, LF and characters come apart."""
    data = "data: Grüße\r\ndata: 🙂\r\n\r\n: c\r\rdata: [DONE]\n\n".encode()
    parser = SseParser()

    assert [e for i in range(len(data)) for e in parser.feed(data[i : i + 1])] == ["Grüße\n🙂", "[DONE]"]


def test_an_event_does_not_wait_for_the_next_piece() -> None:
    """An event is out as soon as its blank line is complete, even if that ends in CR."""
    parser = SseParser()

    assert parser.feed(b"data: a\r\n\r") == ["a"]
    assert parser.feed(b"\ndata: b\n\n") == ["b"]


def test_bytes_that_are_no_utf8_are_refused() -> None:
    """A broken character is an error, not a replaced letter."""
    with pytest.raises(UnicodeDecodeError):
        SseParser().feed(b"data: \xff\xfe\n\n")
