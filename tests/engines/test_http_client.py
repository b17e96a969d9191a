"""The HTTP client against servers that misbehave below HTTP and above it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvgate.core.engine import Attach, Generate
from kvgate.core.errors import BadAnswer, EngineDied, EngineTimeout, UserError
from kvgate.engines._http import HttpClient, check_url
from kvgate.engines.openai import OpenAISession

KEY = "sk-secret-0123456789"


@asynccontextmanager
async def serving(answer: bytes, *, hold_open: bool = False, drip_s: float = 0.0) -> AsyncIterator[tuple[str, list]]:
    """A server that sends `answer` to every request, whatever it says; yields its address and the requests."""
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head)
        try:
            for i in range(0, len(answer), 1 if drip_s else len(answer) or 1):
                writer.write(answer[i : i + (1 if drip_s else len(answer))])
                await writer.drain()
                await asyncio.sleep(drip_s)
            if hold_open:
                await asyncio.sleep(60)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An HTTP answer with its right length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def get(answer: bytes, *, timeout_s: float = 20.0, max_body_bytes: int = 2**20, **how: Any) -> Any:
    """What `get_json` makes of an answer."""

    async def ask() -> Any:
        async with (
            serving(answer, **how) as (url, _),
            OpenAISession(url, api_key=KEY, timeout_s=timeout_s, max_body_bytes=max_body_bytes) as s,
        ):
            return await s.get_json("/x")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (http(b"<html>hi</html>"), "not_json"),
        (http(b""), "empty"),
        (http(b'{"a": 1'), "not_json"),
        (http(b"[" * 100_000), "not_json"),  # deeper than the parser goes
        (http(b'{"a": 1}').replace(b"Length: 8", b"Length: 800"), "truncated"),
        (http(b'{"a": 12345}').replace(b"Length: 12", b"Length: 7"), "not_http"),  # more bytes than announced
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"a": 1}\r\n', "truncated"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", "not_http"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not_http"),
        (http(b"{}", "Content-Encoding: gzip"), "encoding"),
        (http(b"[" + b"1," * 2**20 + b"1]"), "too_large"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (2**20 + 1), "too_large"),  # no length announced
        (http(b'{"error": {"message": "nope"}}'), "error_in_200"),
        (http(b'{"error": {"message": "boom"}}', status="500 Oops"), "http_status"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_no_answer_is_a_bad_answer(answer: bytes, kind: str) -> None:
    """Everything that is not one whole JSON value under 200 raises BadAnswer with its kind."""
    with pytest.raises(BadAnswer) as caught:
        get(answer)

    assert caught.value.kind == kind


def test_a_good_answer_is_returned() -> None:
    """The same path lets a right answer through, so the refusals above are not for everything."""
    assert get(http(b'{"a": 1}')) == {"a": 1}


def test_a_drip_of_single_bytes_ends_at_the_time_limit() -> None:
    """A server that keeps the connection busy but never finishes is EngineTimeout: the limit is on the whole."""
    with pytest.raises(EngineTimeout, match=r"0\.3 s"):
        get(http(b'{"a": "' + b"x" * 500 + b'"}'), timeout_s=0.3, drip_s=0.01)


def test_silence_ends_at_the_time_limit() -> None:
    """A server that accepts and says nothing is EngineTimeout."""
    with pytest.raises(EngineTimeout):
        get(b"", timeout_s=0.2, hold_open=True)


def test_the_first_generation_keeps_its_own_time_limit() -> None:
    """The question for the model's name, asked before it, ends with the request's limit and not the session's."""

    async def ask() -> None:
        async with serving(b"", hold_open=True) as (url, _), OpenAISession(url, timeout_s=20.0) as s:
            await s.generate(Generate(prompt="hi", timeout_s=0.2))

    with pytest.raises(EngineTimeout, match=r"within 0\.2 s"):
        asyncio.run(ask())


def test_nobody_there_is_a_dead_engine() -> None:
    """A refused connection is EngineDied."""

    async def ask() -> None:
        async with serving(b"") as (url, _):
            pass
        async with OpenAISession(url) as s:
            await s.get_json("/x")

    with pytest.raises(EngineDied):
        asyncio.run(ask())


def test_a_connection_closed_without_a_word_is_a_dead_engine() -> None:
    """No status line at all means that whoever listened went away."""
    with pytest.raises(EngineDied):
        get(b"")


def test_a_dead_process_outranks_what_the_socket_says() -> None:
    """If `alive` says that the process ended, a cut answer is EngineDied with its word."""

    async def ask() -> None:
        asked = 0

        def alive() -> str | None:
            nonlocal asked
            asked += 1
            return None if asked < 3 else "status -9: last line"

        async with (
            serving(http(b'{"a": 1}').replace(b"Length: 8", b"Length: 800")) as (url, _),
            OpenAISession(url, alive=alive) as s,
        ):
            await s.get_json("/x")

    with pytest.raises(EngineDied, match="status -9: last line"):
        asyncio.run(ask())


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/x", "http://evil.example/steal", "/elsewhere"])
def test_a_redirect_is_refused_and_the_key_goes_nowhere(target: str) -> None:
    """No redirect is followed; its target is named and gets no request."""

    async def ask() -> list[bytes]:
        async with serving(http(b"{}")) as (other, seen):
            to = target.replace("http://127.0.0.1:1", other)
            moved = http(b"", f"Location: {to}", status="307 Moved")
            async with serving(moved) as (url, _), OpenAISession(url, api_key=KEY) as s:
                with pytest.raises(BadAnswer, match="redirect") as caught:
                    await s.get_json("/x")
            assert caught.value.kind == "redirect"
            assert KEY not in str(caught.value)
        return seen

    assert asyncio.run(ask()) == []


def test_the_key_is_sent_and_never_shown() -> None:
    """The server gets the key; messages, reprs and a server that echoes it do not show it."""
    echo = b'{"error": {"message": "Incorrect API key provided: ' + KEY.encode() + b'\\u001b[31m\\nred"}}'

    async def ask() -> tuple[str, list[bytes]]:
        async with serving(http(echo, status="401 No")) as (url, seen), OpenAISession(url, api_key=KEY) as s:
            with pytest.raises(BadAnswer) as caught:
                await s.get_json("/x")
            shown = f"{caught.value} {caught.value!r} {s!r} {s._http!r} {Attach(url, api_key=KEY)!r}"
            return shown, seen

    shown, seen = asyncio.run(ask())
    assert f"Authorization: Bearer {KEY}".encode() in seen[0]
    assert KEY not in shown
    assert "[key]" in shown
    assert "\x1b" not in shown and "\n" not in shown


def test_a_long_message_is_cut() -> None:
    """At most 300 characters of a server's own words get into a message."""
    with pytest.raises(BadAnswer) as caught:
        get(http(b'{"error": {"message": "' + b"y" * 5000 + b'"}}', status="400 No"))

    assert 290 <= str(caught.value).count("y") < 300


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("https://host/proxy/v1", "https://host/proxy"),
        ("http://[::1]:80/", "http://[::1]:80"),
        (" http://host ", "http://host"),
    ],
)
def test_addresses(given: str, url: str) -> None:
    """A trailing slash and /v1 are left out, since paths bring their own."""
    assert check_url(given) == url


@pytest.mark.parametrize(
    "given",
    [
        "",
        "localhost:8000",
        "ftp://host",
        "file:///etc/passwd",
        "http://",
        "http://h:99999",
        "http://h?k=1",
        "http://h#x",
        "http://user:hunter2@host",
        "http://a b",
        "http://h:x",
    ],
)
def test_unusable_addresses_are_user_errors(given: str) -> None:
    """One line that names the fix, without a password that stood in the address."""
    with pytest.raises(UserError) as caught:
        OpenAISession(given)

    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_session_must_be_opened() -> None:
    """Using it without `async with` is a programming error with a clear word."""
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(HttpClient("http://127.0.0.1:1").fetch("GET", "/x"))
