"""The session as a whole: paths, bodies, probing, attaching, against small scripted servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvgate.core.deployment import Engagement, Expected
from kvgate.core.engine import Attach, Available, Generate, Lane, Missing
from kvgate.core.errors import BadAnswer, LaneUnavailable, UserError
from kvgate.core.registry import get
from kvgate.engines.openai import DRIVER, OpenAISession
from kvgate.testing import fake_request

Handler = Callable[[dict[str, Any]], Any]
HELLO = [{"role": "user", "content": "hi"}]


def against(routes: dict[str, Handler], use: Callable[[OpenAISession], Awaitable[Any]], **session: Any) -> Any:
    """Run `use` with a session on a server whose POST and GET routes are functions of the body."""

    async def handle(request: web.Request) -> web.StreamResponse:
        route = routes.get(request.path)
        if route is None:
            return web.json_response({"error": {"message": "File Not Found", "type": "not_found_error"}}, status=404)
        got = route(await request.json() if request.method == "POST" else {})
        return got if isinstance(got, web.StreamResponse) else web.json_response(got)

    async def run() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with OpenAISession(f"http://127.0.0.1:{runner.addresses[0][1]}", **session) as s:
                return await use(s)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def chat_answer(text: str = "ok") -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]}


def error(status: int, **fields: Any) -> web.Response:
    return web.json_response({"error": fields}, status=status)


def sse(*events: str, content_type: str = "text/event-stream") -> web.Response:
    return web.Response(text="".join(f"data: {e}\n\n" for e in events), content_type=content_type)


CHUNK = json.dumps({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]})


def test_body_of_a_chat() -> None:
    """Defaults go into each body, a request's `extra` wins over them, and `stream` cannot be overridden."""
    seen: dict[str, Any] = {}

    def chat(body: dict[str, Any]) -> Any:
        seen.update(body)
        return chat_answer()

    ask = Generate(messages=HELLO, max_tokens=5, seed=3, top_logprobs=0, extra={"min_p": 0.1, "stream": True})
    against(
        {"/v1/chat/completions": chat},
        lambda s: s.generate(ask),
        defaults={"cache_prompt": False, "min_p": 0.5},
        model="m",
    )

    assert seen == {
        "model": "m",
        "messages": HELLO,
        "max_tokens": 5,
        "temperature": 0.0,
        "seed": 3,
        "cache_prompt": False,
        "min_p": 0.1,
        "stream": False,
    }


def test_the_model_is_the_first_that_the_server_lists() -> None:
    """Without a name the server is asked once."""
    names = []

    def chat(body: dict[str, Any]) -> Any:
        names.append(body["model"])
        return chat_answer()

    async def twice(s: OpenAISession) -> None:
        await s.generate(Generate(messages=HELLO))
        await s.generate(Generate(messages=HELLO))

    against({"/v1/models": lambda _: {"data": [{"id": "served"}]}, "/v1/chat/completions": chat}, twice)

    assert names == ["served", "served"]


def test_either_messages_or_a_prompt() -> None:
    """Neither or both is a programming error."""

    async def use(s: OpenAISession) -> None:
        for bad in (Generate(), Generate(messages=HELLO, prompt="x")):
            with pytest.raises(ValueError, match="either"):
                await s.generate(bad)

    against({}, use)


def test_token_ids_go_to_llama_cpp_where_it_is() -> None:
    """A prompt of ids uses /completion if the server has it, with n_predict and n_probs."""
    seen: list[dict[str, Any]] = []

    def native(body: dict[str, Any]) -> Any:
        seen.append(body)
        rows = [{"token": "x", "logprob": -1.0, "top_logprobs": [{"token": "x", "logprob": -1.0}]}]
        return {"content": "x", "stop": True, "tokens": [4], "completion_probabilities": rows}

    routes = {"/tokenize": lambda _: {"tokens": [7]}, "/completion": native}
    got = against(routes, lambda s: s.generate(Generate(prompt=[1, 2], max_tokens=6, top_logprobs=1)))

    assert got.token_ids == (4,)
    assert seen[0] == {"prompt": [7], "n_predict": 1}
    assert {k: seen[1][k] for k in ("prompt", "n_predict", "n_probs")} == {
        "prompt": [1, 2],
        "n_predict": 6,
        "n_probs": 1,
    }


def test_token_ids_go_to_completions_elsewhere() -> None:
    """A server without /completion gets the ids at /v1/completions, as vLLM takes them."""
    seen: list[dict[str, Any]] = []

    def completions(body: dict[str, Any]) -> Any:
        seen.append(body)
        return {"choices": [{"text": "x"}]}

    against({"/v1/completions": completions}, lambda s: s.generate(Generate(prompt=[1, 2])), model="m")

    assert seen[0]["prompt"] == [1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "exceed_context_size_error", "message": "request (9 tokens) exceeds"},
        {"code": "context_length_exceeded", "message": "too long"},
        {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000."},
        {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
    ],
)
def test_context_exceeded_has_its_kind(fields: dict[str, Any]) -> None:
    """llama.cpp, OpenAI, vLLM and SGLang say it in four ways; it is one kind."""

    async def use(s: OpenAISession) -> None:
        with pytest.raises(BadAnswer, match="context_exceeded: HTTP 400") as caught:
            await s.generate(Generate(messages=HELLO))
        assert (caught.value.kind, caught.value.status) == ("context_exceeded", 400)

    against({"/v1/chat/completions": lambda _: error(400, **fields)}, use)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([CHUNK], "truncated"),
        ([CHUNK, CHUNK[:-5]], "not_json"),
        ([CHUNK, '{"error": {"message": "engine core died"}}', "[DONE]"], "error_in_200"),
        (["[DONE]"], "no_choices"),
        ([], "truncated"),
        (["7", "[DONE]"], "bad_shape"),
    ],
)
def test_streams_that_are_no_answers(events: list[str], kind: str) -> None:
    """A stream counts only if it came to its final event and every event before it made sense."""

    async def use(s: OpenAISession) -> None:
        with pytest.raises(BadAnswer) as caught:
            await s.generate(Generate(messages=HELLO, stream=True))
        assert caught.value.kind == kind

    against({"/v1/chat/completions": lambda _: sse(*events)}, use)


def test_what_follows_the_final_event_is_not_read() -> None:
    """Nothing after [DONE] belongs to the answer."""
    got = against(
        {"/v1/chat/completions": lambda _: sse(CHUNK, "[DONE]", CHUNK)},
        lambda s: s.generate(Generate(messages=HELLO, stream=True)),
    )

    assert (got.text, len(got.events)) == ("hi", 1)


def test_a_server_that_does_not_stream_has_no_arrivals() -> None:
    """A whole JSON body to a streaming request is an answer without events."""
    got = against(
        {"/v1/chat/completions": lambda _: chat_answer("whole")},
        lambda s: s.generate(Generate(messages=HELLO, stream=True)),
    )

    assert (got.text, got.events) == ("whole", ())


def test_a_strict_server_is_asked_again_without_the_extension() -> None:
    """continuous_usage_stats is vLLM's; a server that refuses it gets the plain options, once and for all."""
    options = []

    def chat(body: dict[str, Any]) -> Any:
        options.append(body["stream_options"])
        if "continuous_usage_stats" in body["stream_options"]:
            return error(400, message="Unknown parameter: 'stream_options.continuous_usage_stats'")
        return sse(CHUNK, "[DONE]")

    async def twice(s: OpenAISession) -> None:
        await s.generate(Generate(messages=HELLO, stream=True))
        await s.generate(Generate(messages=HELLO, stream=True))

    against({"/v1/chat/completions": chat}, twice)

    plain = {"include_usage": True}
    assert options == [plain | {"continuous_usage_stats": True}, plain, plain]


@pytest.mark.parametrize("page", ["", "# HELP x y\n# TYPE x counter\n"])
def test_watch_05_a_page_without_samples_is_no_data(page: str) -> None:
    """200 with an empty metrics page, or one of comments only, is BadAnswer and not good health."""

    async def use(s: OpenAISession) -> None:
        with pytest.raises(BadAnswer, match="no samples"):
            await s.metrics()

    against({"/metrics": lambda _: web.Response(text=page)}, use)


def test_tokens_without_a_tokenizer_are_a_guess() -> None:
    """Where no /tokenize is, the count is a guess and says so; a failing one raises."""
    tokens = against({}, lambda s: s.tokenize("eight by"))
    assert (len(tokens.ids), tokens.exact) == (2, False)

    with pytest.raises(BadAnswer, match="500"):
        against({"/tokenize": lambda _: error(500, message="boom")}, lambda s: s.tokenize("x"))


def test_lanes_are_probed() -> None:
    """A lane is what a tiny request showed: chat works here, the others give their reasons."""
    lanes = against({"/v1/chat/completions": lambda _: chat_answer()}, lambda s: s.lanes())

    assert set(lanes) == set(Lane)
    assert isinstance(lanes[Lane.CHAT], Available)
    for lane, word in {
        Lane.COMPLETE: "404",
        Lane.TOKENIZE: "404",
        Lane.METRICS: "404",
        Lane.DECODE_TOPK: "did not come",
        Lane.PANEL: "no panel",
    }.items():
        missing = lanes[lane]
        assert isinstance(missing, Missing)
        assert word in missing.reason


def test_degenerate_tops_are_not_asked_for_in_shorter_lists() -> None:
    """All 0.0 is nonsense in a list of five; the same server's list of one would look like a certain token."""

    def completions(body: dict[str, Any]) -> Any:
        row = {str(i): {"logprob": 0.0} for i in range(body.get("prompt_logprobs", 0))}
        return {"choices": [{"text": "a", "prompt_logprobs": [None, *[row] * (len(body["prompt"]) - 1)]}]}

    routes = {"/v1/completions": completions, "/tokenize": lambda _: {"tokens": [1, 2, 3]}}
    missing = against(routes, lambda s: s.lanes())[Lane.PREFILL_TOPK]

    assert isinstance(missing, Missing) and "degenerate logprobs" in missing.reason


def test_top_k_is_what_the_server_grants() -> None:
    """A cap of 5 is found by asking for less after a refusal."""

    def completions(body: dict[str, Any]) -> Any:
        k = body.get("logprobs", 0)
        if k > 5:
            return error(400, message="logprobs must be at most 5")
        top = {f"t{i}": -1.0 - i for i in range(k)}
        rows = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [top]}
        return {"choices": [{"text": "a", "logprobs": rows if k else None}]}

    lanes = against({"/v1/completions": completions}, lambda s: s.lanes())

    assert lanes[Lane.DECODE_TOPK] == Available({"top_k": 5})


EXPECTED = Expected(k_codec="q8_0", v_codec="q8_0", k_rotation=64, v_rotation=64, bytes_per_token=1)
LOAD_START = "llama_model_loader: loaded meta data\n"
LLAMA_LOG = (
    "llama_kv_cache: size =   11.95 MiB (  1024 cells,  30 layers,  1/1 seqs), "
    "K ({k}):    5.98 MiB, V (q8_0):    5.98 MiB\n"
    "llama_kv_cache: n_rot_k = {rot}, n_embd_head_k_all = 64\n"
)


@pytest.mark.parametrize(
    ("log", "level"),
    [
        (None, Engagement.UNOBSERVED),
        ("nothing of interest\n", Engagement.UNOBSERVED),
        (LLAMA_LOG.format(k="q8_0", rot=64), Engagement.CONFIRMED),
        (LLAMA_LOG.format(k="f16", rot=64), Engagement.CONTRADICTED),
        (LLAMA_LOG.format(k="q8_0", rot=0), Engagement.CONTRADICTED),
        # Appended over a restart: only the last load counts.
        (LLAMA_LOG.format(k="f16", rot=0) + LOAD_START + LLAMA_LOG.format(k="q8_0", rot=64), Engagement.CONFIRMED),
        ("Namespace(kv_cache_dtype='auto')\n", Engagement.UNOBSERVED),
        ("Namespace(kv_cache_dtype='fp8_e5m2')\n", Engagement.CONTRADICTED),
    ],
)
def test_an_attached_server_is_as_sure_as_its_log(tmp_path: Path, log: str | None, level: Engagement) -> None:
    """Without a log nothing is observed; with one it confirms or contradicts."""
    path = None
    if log is not None:
        path = tmp_path / "server.log"
        path.write_text(log)

    async def observe() -> Any:
        async with DRIVER.open(Attach("http://127.0.0.1:1", "q8_0", log=path)) as session:
            assert isinstance(session, OpenAISession)
            from kvgate.engines._attached import describe

            return describe("http://127.0.0.1:1", "q8_0", {}, session._log)

    engaged = DRIVER.engaged(EXPECTED, asyncio.run(observe()))

    assert engaged.level is level


def test_deployment_of_an_attached_server() -> None:
    """What its pages say is identity; a build that says nothing, and all else, stays unknown."""
    routes = {
        "/v1/models": lambda _: {"data": [{"id": "m", "meta": {"n_ctx": 1024, "ftype": "Q4_1"}}]},
        "/props": lambda _: {"total_slots": 2, "build_info": "b0-unknown", "chat_template": "{{x}}"},
    }
    seen = against(routes, lambda s: s.deployment(), spelling="fp8_e4m3 keep=L0-3")

    assert (seen.identity.context_tokens, seen.identity.slots, seen.identity.weights_dtype) == (1024, 2, "Q4_1")
    assert (seen.identity.build, seen.identity.version, seen.identity.model_digest) == (None, None, None)
    assert seen.subject.requested == "fp8_e4m3/keep=L0-3"
    assert seen.consequence.k_codec is None


def test_the_driver_only_attaches() -> None:
    """It is registered, starts nothing and has no panel, and each refusal says so in one line."""
    assert get("engine", "openai") is DRIVER
    with pytest.raises(UserError, match="cannot start"):
        DRIVER.resolve(fake_request())
    with pytest.raises(LaneUnavailable, match="no panel"):
        DRIVER.open_panel({})
    with pytest.raises(UserError, match="cannot be read"):
        DRIVER.open(Attach("http://127.0.0.1:1", log=Path("/nonexistent/log")))
