"""Bodies of servers as they were seen, whole and streamed, and what becomes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from kvgate.core.engine import Generated
from kvgate.core.errors import BadAnswer
from kvgate.engines._logprobs import check_rows, read_rows
from kvgate.engines._openai_parse import Assembler, chat_piece, completion_piece, native_piece

MS = 1_000_000


def chat(**message: Any) -> dict[str, Any]:
    """A whole chat body around a message."""
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


def whole(body: Any, read: Any = chat_piece, k: int = 0) -> Generated:
    """The answer of one body."""
    answer = Assembler(read, k)
    answer.add(body)
    return answer.finish()


def streamed(*events: tuple[float, Mapping[str, Any]], read: Any = chat_piece) -> Generated:
    """The answer of (ms, body) events."""
    answer = Assembler(read, 0)
    for t_ms, body in events:
        answer.add(body, round(t_ms * MS))
    return answer.finish()


def chunk(delta: Mapping[str, Any], n: int | None = None, finish: str | None = None) -> dict[str, Any]:
    """A chat chunk, with continuous usage if `n` is given."""
    body: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return body if n is None else body | {"usage": {"prompt_tokens": 9, "completion_tokens": n}}


def test_missing_values_stay_missing() -> None:
    """Text null is empty text, a missing finish_reason is None: neither is made up."""
    body = chat(content=None)
    del body["choices"][0]["finish_reason"]

    got = whole(body)

    assert (got.text, got.finish_reason, got.usage, got.token_ids) == ("", None, {}, None)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"ok": True}, "no_choices"),
        ({"choices": None}, "no_choices"),
        ({"choices": []}, "no_choices"),
        ([1, 2], "bad_shape"),
        ("text", "bad_shape"),
        ({"choices": [7]}, "bad_shape"),
        ({"choices": [{"index": 0}]}, "bad_shape"),
        (chat(content=7), "bad_shape"),
        (chat(content=["a"]), "bad_shape"),
        (chat(content="", tool_calls="get_weather"), "bad_shape"),
    ],
)
def test_other_shapes_are_no_answers(body: Any, kind: str) -> None:
    """JSON that is not a chat completion is BadAnswer, not an empty answer."""
    with pytest.raises(BadAnswer) as caught:
        whole(body)

    assert caught.value.kind == kind


def test_bench_02_several_tokens_in_one_event() -> None:
    """With continuous usage 1, 17, 31 at 435.8, 619.4, 801.8 ms the time per token is 12.2 ms, not 183 ms."""
    got = streamed(
        (20.0, chunk({"role": "assistant", "content": ""}, 0)),
        (435.8, chunk({"content": "I"}, 1)),
        (619.4, chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}]}, 17)),
        (801.8, chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}, 31)),
        (802.0, chunk({}, 31, "tool_calls")),
        (802.1, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 31}}),
    )

    assert got.events == ((435_800_000, 1), (619_400_000, 17), (801_800_000, 31))
    (first, n_first), (last, n_last) = got.events[0], got.events[-1]
    assert n_first is not None and n_last is not None
    assert (last - first) / MS / (n_last - n_first) == pytest.approx(12.2, abs=0.05)
    assert got.usage["completion_tokens"] == 31


def test_without_a_count_tokens_are_unknown() -> None:
    """An event is not a token: without usage or logprobs the count is None, and a closing total adds no arrival."""
    got = streamed(
        (1, chunk({"role": "assistant", "content": None})),
        (2, chunk({"content": "two words"})),
        (3, chunk({"content": " more"})),
        (4, chunk({}, 7, "stop")),
    )

    assert got.events == ((2 * MS, None), (3 * MS, None))
    assert (got.text, got.finish_reason) == ("two words more", "stop")


def test_tokens_that_a_parser_holds_back_show_as_events() -> None:
    """A count that grows without text is an arrival of tokens: the parser swallowed them."""
    got = streamed((1, chunk({"content": "a"}, 1)), (2, chunk({"content": ""}, 6)), (3, chunk({}, 6, "stop")))

    assert got.events == ((1 * MS, 1), (2 * MS, 6))


def test_reasoning_counts_as_tokens_but_not_as_text() -> None:
    """The first reasoning token is the first token."""
    got = streamed((1, chunk({"reasoning_content": "hm"}, 1)), (2, chunk({"content": "yes"}, 2)))

    assert got.events == ((1 * MS, 1), (2 * MS, 2))
    assert got.text == "yes"


def test_parse_40_streamed_arguments_are_not_repaired() -> None:
    """Arguments whose last brace a stream parser lost come back without it; the whole body has it."""
    fragments = ['{"id": ', "42"]
    calls = [{"index": 0, "id": "c1", "type": "function", "function": {"name": "get", "arguments": ""}}]
    got = streamed(
        (1, chunk({"tool_calls": calls})),
        *(
            (2.0 + i, chunk({"tool_calls": [{"index": 0, "function": {"arguments": f}}]}))
            for i, f in enumerate(fragments)
        ),
    )
    full = whole(chat(content=None, tool_calls=[{"id": "c1", "function": {"name": "get", "arguments": '{"id": 42}'}}]))

    assert got.tool_calls[0] == {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"id": 42'}}
    assert full.tool_calls[0]["function"]["arguments"] == '{"id": 42}'


def test_parallel_calls_keep_their_order() -> None:
    """Fragments of two calls are put together by index, whatever order they come in."""
    got = streamed(
        (1, chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]})),
        (2, chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]})),
        (3, chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]})),
    )

    assert [(c["id"], c["function"]["arguments"]) for c in got.tool_calls] == [("a", "{}"), ("b", "{}")]


def entry(token: str, logprob: Any, *top: tuple[str, Any], token_id: int | None = None) -> dict[str, Any]:
    """A logprobs entry in the chat shape."""
    out = {"token": token, "logprob": logprob, "top_logprobs": [{"token": t, "logprob": x} for t, x in top]}
    return out if token_id is None else out | {"id": token_id}


def test_llama_cpp_native_body() -> None:
    """llama.cpp's own shape: its stop word in OpenAI's, its counts as usage, its ids and top logprobs."""
    got = whole(
        {
            "content": "_t",
            "tokens": [79, 100],
            "stop": True,
            "stop_type": "limit",
            "tokens_predicted": 2,
            "tokens_evaluated": 3,
            "truncated": False,
            "completion_probabilities": [
                entry("_", -3.87, ("_", -3.87), (" is", -4.2)),
                entry("t", -4.07, ("t", -4.07)),
            ],
        },
        native_piece,
        k=2,
    )

    assert (got.text, got.finish_reason, got.token_ids) == ("_t", "length", (79, 100))
    assert got.usage == {"prompt_tokens": 3, "completion_tokens": 2}
    assert got.topk[0].top == (("_", -3.87), (" is", -4.2))


def test_llama_cpp_completions_have_the_chat_shape_of_logprobs() -> None:
    """/v1/completions of llama.cpp puts `content` into logprobs; ids come from there."""
    body = {
        "choices": [
            {"text": "-by", "logprobs": {"content": [entry("-", -0.8, token_id=29), entry("by", -2.1, token_id=17)]}}
        ]
    }

    assert whole(body, completion_piece, k=1).token_ids == (29, 17)


def test_openai_completions_shape_of_logprobs() -> None:
    """The old shape of three parallel lists."""
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": [{"a": -1.0, "c": -1.5}, None]}
    got = whole({"choices": [{"text": "ab", "logprobs": logprobs}]}, completion_piece, k=2)

    assert [p.logprob for p in got.topk] == [-1.0, -2.0]
    assert got.topk[0].top == (("a", -1.0), ("c", -1.5))


def test_logprobs_that_were_asked_for_must_come() -> None:
    """A server that ignores the wish gives no answer to it."""
    with pytest.raises(BadAnswer) as caught:
        whole(chat(content="hi"), k=3)

    assert caught.value.kind == "no_logprobs"


def test_a_cut_prompt_is_no_answer() -> None:
    """llama.cpp says `truncated` where it dropped part of the prompt."""
    with pytest.raises(BadAnswer) as caught:
        whole({"content": "x", "truncated": True}, native_piece)

    assert caught.value.kind == "context_exceeded"


NEAR_ONE = math.log(1.00016)


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([entry("a", 0.0), entry("b", 0.0)], "all 0.0"),
        ([entry("a", 0.0, ("a", 0.0), ("b", 0.0))], "all 0.0"),
        ([entry("a", -1.0), entry("b", float("nan"))], "not a finite number"),
        ([entry("a", -1.0, ("a", -1.0), ("b", None))], "not a finite number"),
        ([entry("a", float("-inf"))], "not a finite number"),
        ([entry("a", 0.7)], "over 0"),
        ([entry("a", -0.1, ("a", -0.1), ("b", -0.1))], "sums to 1.81"),
        ([entry(t, -4.0, (t, -4.0), ("z", -4.0)) for t in "abcd"], "identical"),
    ],
)
def test_degenerate_logprobs_are_refused(rows: list[dict[str, Any]], word: str) -> None:
    """Numbers that no model can have meant are named and never counted."""
    with pytest.raises(BadAnswer, match=word) as caught:
        check_rows(read_rows(rows))

    assert caught.value.kind == "degenerate_logprobs"


@pytest.mark.parametrize(
    "rows",
    [
        [entry("a", 0.0)],  # one certain token is possible: a probability over 1 - 6e-8 rounds to 0.0 in float32
        [entry("a", 0.0, ("a", 0.0), ("b", -18.0)), entry("b", 0.0, ("b", 0.0), ("c", -19.0))],
        [entry("a", NEAR_ONE)],  # the sum over a whole vocabulary was seen at 1.00016
        [entry(t, -4.0) for t in "abc"],  # three equal positions may be chance
        [entry("a", -1e-9)] * 3 + [entry("a", -2e-9)],  # a repetition loop, nearly certain
        [entry("a", -9999.0)],  # OpenAI's word for "very unlikely"
        [],
    ],
)
def test_extreme_but_possible_logprobs_pass(rows: list[dict[str, Any]]) -> None:
    """The other side of each bound: what a real model can give is let through."""
    check_rows(read_rows(rows))


def test_nan_literals_of_json_are_seen() -> None:
    """Python's parser accepts NaN in JSON; it still ends as BadAnswer."""
    rows = json.loads('[{"token": "a", "logprob": NaN, "top_logprobs": []}]')

    with pytest.raises(BadAnswer, match="finite"):
        check_rows(read_rows(rows))
