"""Busy servers: how long they are waited for, what is kept of it, and when they are given up."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from kvgate.core.engine import Generate
from kvgate.core.errors import BadAnswer, EngineBusy
from kvgate.engines._retry import NO_WAIT, Backoff, named_wait_s
from kvgate.engines.fake import DRIVER
from kvgate.engines.openai import OpenAISession
from kvgate.testing.requests import fake_request

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 13:00:30 +0100", 30.0),
        ("Mon, 30 Nov 2026 11:59:00 GMT", 0.0),  # a clock that is behind ours
        ("99999999999999999999999", 999999999.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
        ("\u0663", None),  # a digit, but none of HTTP's
        ("Mon, 99 Nov 2026 12:00:30 GMT", None),
    ],
)
def test_what_retry_after_says(header: str | None, seconds: float | None) -> None:
    """Seconds or a date; what is neither says nothing."""
    assert named_wait_s(header, NOW) == seconds


def test_waits_double_jitter_and_are_capped() -> None:
    """Without a named time between half and the whole of a doubling wait; a named one is kept, up to the cap."""
    backoff, rng = Backoff(first_s=1.0, longest_s=5.0), random.Random(1)
    waits = [[backoff.wait_s(n, None, rng) for _ in range(200)] for n in (1, 2, 3, 4, 9)]

    for top, drawn in zip((1.0, 2.0, 4.0, 5.0, 5.0), waits, strict=True):
        assert top / 2 <= min(drawn) < top * 0.6 and top * 0.9 < max(drawn) <= top
    assert 2.0 <= backoff.wait_s(1, 2.0, rng) <= 2.2
    assert backoff.wait_s(1, 3600.0, rng) == 5.0


def ask(backoff: Backoff, **script: Any) -> tuple[str, list[str]]:
    """The answer of a scripted server and what was noted."""

    async def run() -> tuple[str, list[str]]:
        async with DRIVER.open(DRIVER.resolve(fake_request(script=script))) as started:
            http = started._http  # type: ignore[attr-defined]
            async with OpenAISession(http.url, api_key=http._key, backoff=backoff) as s:
                got = await s.generate(Generate(prompt="Tell me.", max_tokens=4, stream=script.get("crlf", False)))
                return got.text, s.take_notes()

    return asyncio.run(run())


QUICK = Backoff(tries=4, first_s=0.01, longest_s=0.05, total_s=1.0)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("crlf", [False, True], ids=["whole", "streamed"])
def test_a_busy_server_is_asked_again_and_each_wait_is_noted(status: int, crlf: bool) -> None:
    """Three refusals and then the answer that a server gives which was never busy."""
    calm, none = ask(QUICK, crlf=crlf)
    text, notes = ask(QUICK, busy_first=3, busy_status=status, retry_after="0", crlf=crlf)

    assert text == calm and none == []
    assert len(notes) == 3 and all(f"HTTP {status}, asked again after 0.00 s: the fake" in n for n in notes)


def test_a_server_that_stays_busy_is_given_up_in_one_line() -> None:
    """After as many tries as allowed; what it said is told, and no answer comes of it."""
    with pytest.raises(
        EngineBusy, match=r"refused 4 times within 0\.\d s of waiting, last with HTTP 429: the fake"
    ) as e:
        ask(QUICK, busy_first=4, busy_status=429)

    assert e.value.status == 429 and "\n" not in str(e.value)


def test_the_time_is_bounded_too() -> None:
    """A wait that would go over the whole is not begun."""
    with pytest.raises(EngineBusy, match=r"refused 1 times within 0\.0 s"):
        ask(Backoff(tries=9, longest_s=100.0, total_s=1.0), busy_first=1, retry_after="30")


def test_without_patience_a_refusal_is_the_answer() -> None:
    """Who waits in another way gets the status at once."""
    with pytest.raises(BadAnswer) as e:
        ask(NO_WAIT, busy_first=1)

    assert (e.value.kind, e.value.status) == ("http_status", 503)


def test_other_statuses_are_not_asked_again() -> None:
    """500 may have done its work already."""
    with pytest.raises(BadAnswer, match="HTTP 500"):
        ask(QUICK, http_500_rate=1.0)
