"""Every fault of the fake server is seen as what it is, and never as an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvgate.core.deployment import Engagement
from kvgate.core.engine import Available, Generate, Generated, Lane, Launch, Missing
from kvgate.core.errors import BadAnswer, EngineChanged, EngineDied, EngineError, EngineTimeout, UserError
from kvgate.engines.fake import DRIVER, FakeSession
from kvgate.testing import fake_request

HELLO = [{"role": "user", "content": "Tell me about the sea."}]
JSON_ASK = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 1}},
                "required": ["name", "age"],
            }
        },
    }
}


def launch(recipe: str = "native", **script: Any) -> Launch:
    """A launch of a scripted fake."""
    return DRIVER.resolve(fake_request(recipe, script=script, context_tokens=512))


def using(use: Callable[[FakeSession], Awaitable[Any]], recipe: str = "native", **script: Any) -> Any:
    """Run `use` on a live server."""

    async def run() -> Any:
        async with DRIVER.open(launch(recipe, **script)) as session:
            assert isinstance(session, FakeSession)
            return await use(session)

    return asyncio.run(run())


def ask(text: str = "Tell me about the sea.", **fields: Any) -> Generate:
    return Generate(messages=[{"role": "user", "content": text}], **({"max_tokens": 48} | fields))


async def failure(session: FakeSession, request: Generate) -> EngineError:
    """The error of a request that must have one."""
    with pytest.raises(EngineError) as caught:
        await session.generate(request)
    return caught.value


@pytest.mark.parametrize(
    ("script", "request_fields", "error", "kind"),
    [
        ({"refuse_logprobs": True}, {"top_logprobs": 2}, BadAnswer, "http_status"),
        ({"logprobs": "zero"}, {"top_logprobs": 2}, BadAnswer, "degenerate_logprobs"),
        ({"logprobs": "nan"}, {"top_logprobs": 2}, BadAnswer, "degenerate_logprobs"),
        ({"logprobs": "positive"}, {"top_logprobs": 2}, BadAnswer, "degenerate_logprobs"),
        ({"logprobs": "identical"}, {"top_logprobs": 2}, BadAnswer, "degenerate_logprobs"),
        ({"logprobs": "missing"}, {"top_logprobs": 2}, BadAnswer, "no_logprobs"),
        ({"truncate_rate": 1.0}, {"stream": True}, BadAnswer, "truncated"),
        ({"truncate_rate": 1.0, "truncate_how": "reset"}, {"stream": True}, BadAnswer, "truncated"),
        ({"http_500_rate": 1.0}, {}, BadAnswer, "http_status"),
        ({"nonsense_rate": 1.0, "nonsense": "html"}, {}, BadAnswer, "not_json"),
        ({"nonsense_rate": 1.0, "nonsense": "html"}, {"stream": True}, BadAnswer, "not_json"),
        ({"nonsense_rate": 1.0, "nonsense": "not_json"}, {}, BadAnswer, "not_json"),
        ({"nonsense_rate": 1.0, "nonsense": "no_choices"}, {}, BadAnswer, "no_choices"),
        ({"nonsense_rate": 1.0, "nonsense": "wrong_type"}, {}, BadAnswer, "bad_shape"),
        ({"nonsense_rate": 1.0, "nonsense": "empty"}, {}, BadAnswer, "empty"),
        ({"nonsense_rate": 1.0, "nonsense": "error"}, {}, BadAnswer, "error_in_200"),
        ({"nonsense_rate": 1.0, "nonsense": "trailing"}, {}, BadAnswer, "not_json"),
        ({"nonsense_rate": 1.0, "nonsense": "nul"}, {}, BadAnswer, "not_json"),
        ({"nonsense_rate": 1.0, "nonsense": "bad_utf8"}, {}, BadAnswer, "not_json"),
        ({"nonsense_rate": 1.0, "nonsense": "empty_choices"}, {}, BadAnswer, "no_choices"),
        ({"nonsense_rate": 1.0, "nonsense": "gzip"}, {}, BadAnswer, "encoding"),
        ({"nonsense_rate": 1.0, "nonsense": "chunk_cut"}, {}, BadAnswer, "truncated"),
        ({"nonsense_rate": 1.0, "nonsense": "error"}, {"stream": True}, BadAnswer, "error_in_200"),
        ({"logprobs": "single"}, {"top_logprobs": 5}, BadAnswer, "degenerate_logprobs"),
        ({"logprobs": "no_mass"}, {"top_logprobs": 5}, BadAnswer, "degenerate_logprobs"),
        ({"answers_as": "other"}, {}, EngineChanged, None),
        ({"content_length_off": 50}, {}, BadAnswer, "truncated"),
        ({"content_length_off": -20}, {}, BadAnswer, "not_json"),
        ({"redirect_to": "http://127.0.0.1:1/elsewhere"}, {}, BadAnswer, "redirect"),
        ({"oversize_bytes": 65 * 2**20}, {}, BadAnswer, "too_large"),
        ({"hang_after": 0}, {"timeout_s": 0.3}, EngineTimeout, None),
        ({"piece_bytes": 1, "piece_ms": 5.0}, {"timeout_s": 0.3}, EngineTimeout, None),
        ({"piece_bytes": 1, "piece_ms": 5.0}, {"timeout_s": 0.3, "stream": True}, EngineTimeout, None),
        ({"ttft_ms": 60_000}, {"timeout_s": 0.3}, EngineTimeout, None),
        ({"die_after": 0}, {}, EngineDied, None),
        ({"die_after": 0}, {"stream": True}, EngineDied, None),
    ],
    ids=lambda v: json.dumps(v) if isinstance(v, dict) else None,
)
def test_a_fault_is_its_error(script: Any, request_fields: Any, error: type[EngineError], kind: str | None) -> None:
    """Each fault raises the stated class, with its kind, and no answer."""
    caught = using(lambda s: failure(s, ask(**request_fields)), **script)

    assert type(caught) is error
    if kind is not None:
        assert isinstance(caught, BadAnswer)
        assert caught.kind == kind


@pytest.mark.parametrize(
    "script",
    [
        {},
        {"crlf": True, "comments": True},
        {"piece_bytes": 1},
        {"tokens_per_event": 5},
        {"continuous_usage": False},
        {"sse_fields": True},
        {"sse_fields": True, "crlf": True, "piece_bytes": 1},
        {"piece_bytes": 7, "crlf": True, "comments": True, "tokens_per_event": 3},
    ],
    ids=json.dumps,
)
def test_odd_but_whole_streams_are_answers(script: Any) -> None:
    """Cuts, comments, CRLF and several tokens an event change nothing in the answer."""

    async def both(s: FakeSession) -> tuple[Generated, Generated]:
        return await s.generate(ask()), await s.generate(ask(stream=True))

    whole, streamed = using(both, **script)

    assert streamed.text == whole.text
    assert streamed.usage == whole.usage
    assert streamed.finish_reason == whole.finish_reason


def test_tokens_of_an_event_are_counted_through_usage() -> None:
    """Five tokens an event: the counts run 5, 10, ..., and None where the server gives no running count."""

    async def run(s: FakeSession) -> list[int | None]:
        return [n for _, n in (await s.generate(ask(stream=True, max_tokens=23))).events]

    assert using(run, tokens_per_event=5) == [5, 10, 15, 20, 23]
    assert using(run, tokens_per_event=5, continuous_usage=False) == [None] * 5


def test_the_clock_is_never_early() -> None:
    """Token i is due ttft_ms + i * itl_ms after the request; due times are absolute, so no event can come before."""

    async def run(s: FakeSession) -> list[float]:
        begun = time.monotonic_ns()
        return [(t - begun) / 1e6 for t, _ in (await s.generate(ask(stream=True, max_tokens=12))).events]

    gone = using(run, ttft_ms=80, itl_ms=20)

    assert len(gone) == 12
    assert all(at >= 80 + 20 * i for i, at in enumerate(gone))


def test_noisy_gaps_add_up() -> None:
    """itl_sd_ms spreads the gaps around itl_ms: 39 gaps of 10 +- 4 ms take 390 +- 25 ms, never under 290."""

    async def run(s: FakeSession) -> float:
        begun = time.monotonic_ns()
        return ((await s.generate(ask(stream=True, max_tokens=40))).events[-1][0] - begun) / 1e6

    assert using(run, itl_ms=10, itl_sd_ms=4, noise_seed=1) > 290


@pytest.mark.parametrize(
    ("script", "error"),
    [({"die_on_load": True}, EngineDied), ({"hang_on_load": True, "load_timeout_s": 0.5}, EngineTimeout)],
)
def test_an_engine_that_does_not_load(script: Any, error: type[EngineError]) -> None:
    """Dying and hanging while loading are told apart, and the message has the last line of the log."""
    with pytest.raises(error) as caught:
        using(lambda s: s.deployment(), **script)

    if error is EngineDied:
        assert "status 3" in str(caught.value)
        assert "told to die while loading" in str(caught.value)


@pytest.mark.parametrize(
    ("script", "level"),
    [
        ({}, Engagement.CONFIRMED),
        ({"wrong_dtype": "f16"}, Engagement.CONTRADICTED),
        ({"silent_log": True}, Engagement.CONTRADICTED),
    ],
)
def test_the_load_log_decides_engagement(script: Any, level: Engagement) -> None:
    """A log with the requested type confirms; another type, or none at all from our own child, contradicts."""
    start = launch("q8_0", **script)
    seen = using(lambda s: s.deployment(), "q8_0", **script)

    engaged = DRIVER.engaged(start.expected, seen)

    assert engaged.level is level
    if script.get("wrong_dtype"):
        assert any("K (f16)" in line for line in engaged.lines)


def test_faults_are_drawn_by_request_number() -> None:
    """A rate of one half fails about half of equal requests, so a retry can succeed."""

    async def run(s: FakeSession) -> int:
        failed = 0
        for _ in range(60):
            try:
                await s.generate(ask(max_tokens=2))
            except BadAnswer:
                failed += 1
        return failed

    # Binomial(60, 1/2): outside 15 to 45 with probability under 1e-4, for a draw that a seed then fixes.
    assert 15 <= using(run, http_500_rate=0.5) <= 45


def test_refused_logprobs_are_a_missing_lane() -> None:
    """lanes() finds out and gives the server's reason."""
    lanes = using(lambda s: s.lanes(), refuse_logprobs=True)

    assert isinstance(lanes[Lane.CHAT], Available)
    missing = lanes[Lane.DECODE_TOPK]
    assert isinstance(missing, Missing)
    assert "does not return logprobs" in missing.reason


def test_a_prompt_over_the_context_is_refused() -> None:
    """As llama.cpp does it, by type, so that the session names the kind."""
    caught = using(lambda s: failure(s, Generate(prompt="word " * 800)))

    assert caught.kind == "context_exceeded"


def test_empty_metrics_are_no_data() -> None:
    """The page with a counter is text; the empty one is BadAnswer."""
    assert "fake_requests_total 0" in using(lambda s: s.metrics())
    with pytest.raises(BadAnswer):
        using(lambda s: s.metrics(), empty_metrics=True)


def breaks(**script: Any) -> list[bool]:
    """Which of 60 JSON answers do not parse."""

    async def run(s: FakeSession) -> list[bool]:
        out = []
        for i in range(60):
            got = await s.generate(ask(f"Person number {i} in JSON.", extra=JSON_ASK))
            try:
                out.append(set(json.loads(got.text)) != {"name", "age"})
            except ValueError:
                out.append(True)
        return out

    return using(run, **script)


def test_breaks_come_at_their_rate_and_again() -> None:
    """A quarter of the JSON answers break, the same ones on a second server; none without the fault."""
    first = breaks(break_rate=0.25)

    # Binomial(60, 1/4): outside 4 to 28 with probability under 1e-4.
    assert 4 <= sum(first) <= 28
    assert breaks(break_rate=0.25) == first
    assert not any(breaks())


def test_breaks_can_come_in_whole_categories() -> None:
    """break_by category breaks all answers of a kind or none."""
    assert sum(breaks(break_rate=1.0, break_by="category")) == 60
    assert sum(breaks(break_rate=0.0, break_by="category")) == 0


def test_noise_differs_between_equal_deployments() -> None:
    """Two servers with one script disturb different answers; with one noise seed the same ones."""
    noisy = {"noise_rate": 0.3}

    assert breaks(**noisy, noise_seed=1) != breaks(**noisy, noise_seed=2)
    assert breaks(**noisy, noise_seed=1) == breaks(**noisy, noise_seed=1)


def needle(s: FakeSession, n_words: int, salt: int) -> Awaitable[Generated]:
    hay = " ".join(f"The gate of town {i} opens at noon." for i in range(n_words // 7))
    text = (
        f"{hay} The access code of Harrow{salt} is {4_000_000 + salt}. {hay}\nWhat is the access code of Harrow{salt}?"
    )
    return s.generate(ask(text, max_tokens=16))


def test_needles_are_found_until_they_decay() -> None:
    """Short prompts are answered with the planted code; past the decay length always with another."""

    async def run(s: FakeSession) -> list[bool]:
        return [(await needle(s, n, salt)).text == str(4_000_000 + salt) for n in (20, 60) for salt in range(4)]

    assert all(using(run))
    assert using(run, needle_decay_tokens=200) == [True] * 4 + [False] * 4


def test_a_call_is_made_where_tools_are_given() -> None:
    """The tool that the question names, with arguments of its schema; broken on demand."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
        for name in ("book_flight", "get_weather")
    ]
    request = ask("What is the weather in Oslo?", extra={"tools": tools})

    good = using(lambda s: s.generate(request))
    assert good.tool_calls[0]["function"]["name"] == "get_weather"
    assert set(json.loads(good.tool_calls[0]["function"]["arguments"])) == {"city"}
    assert good.finish_reason == "tool_calls"

    bad = using(lambda s: s.generate(request), break_rate=1.0)
    with pytest.raises(ValueError):
        json.loads(bad.tool_calls[0]["function"]["arguments"])


def test_per_recipe_lays_fields_over_one_arm() -> None:
    """One environment serves a healthy base and a faulty candidate."""
    script = {"http_500_rate": 0.0, "per_recipe": {"q4_0": {"http_500_rate": 1.0}}}

    using(lambda s: s.generate(ask()), "native", **script)
    caught = using(lambda s: failure(s, ask()), "q4_0", **script)

    assert isinstance(caught, BadAnswer)


@pytest.mark.parametrize(
    "script",
    [{"break_rate": 2}, {"no_such_field": 1}, {"nonsense": "x"}, {"per_recipe": {"q8_0": {"typo": 1}}}],
    ids=json.dumps,
)
def test_a_wrong_script_is_a_user_error(script: Any) -> None:
    """Unknown fields and values out of range are refused before anything starts."""
    with pytest.raises(UserError, match="KVGATE_FAKE_SCRIPT"):
        launch(**script)


def test_the_script_is_no_identity() -> None:
    """Two arms with different faults still have one identity, or their comparison would be refused."""
    base = using(lambda s: s.deployment())
    faulty = using(lambda s: s.deployment(), break_rate=0.5)

    assert base.identity == faulty.identity
    assert "break_rate" not in base.model_dump_json() + faulty.model_dump_json()


def test_what_is_odd_and_yet_an_answer() -> None:
    """A byte order mark is skipped; a text that is null is an empty one; a reason and a count are the server's word."""

    async def use(s: FakeSession) -> Generated:
        return await s.generate(ask(max_tokens=4))

    assert using(use, nonsense_rate=1.0, nonsense="bom").text == "ok"
    assert using(use, nonsense_rate=1.0, nonsense="null_content").text == ""
    lied = using(use, finish_lie="stop", usage_off=1000)
    assert (lied.finish_reason, lied.usage["completion_tokens"]) == ("stop", 1004)
    assert "completion_tokens" not in using(use, usage_off=-1000).usage, "a count below none is none"
