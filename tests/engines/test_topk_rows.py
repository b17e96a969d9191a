"""Tops in the shapes that servers send, and the refusal of what is none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvgate.core.engine import TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines import _topk

IDS = [5, 6, 7, 8]


def vllm(rows: list[Any]) -> dict[str, Any]:
    return {"choices": [{"prompt_logprobs": rows}]}


def test_vllm_rows() -> None:
    """One entry a prompt token, null first; the text's own token may lie outside the top."""
    entry = {"6": {"logprob": -3.0, "rank": 9}, "1": {"logprob": -0.3, "rank": 1}, "2": {"logprob": -2.0, "rank": 2}}

    rows = _topk.vllm_rows(vllm([None, entry, entry, entry]), IDS, 2)

    assert rows == [TopKRow((1, 2, 6), (-0.3, -2.0, -3.0))] * 2


def test_sglang_rows() -> None:
    """[logprob, id, text] triples; the first entry of a whole prompt is null, and a later start gives fewer."""
    entry = [[-0.2, 1, "a"], [-2.0, 2, "b"]]
    whole = {"meta_info": {"input_top_logprobs": [None, entry, entry, entry]}}
    tail = {"meta_info": {"input_top_logprobs": [entry, entry]}}

    assert _topk.sglang_rows(whole, IDS, 2) == _topk.sglang_rows(tail, IDS, 2) == [TopKRow((1, 2), (-0.2, -2.0))] * 2


def test_native_row() -> None:
    """llama.cpp's entry with ids; a token without mass is left out."""
    top = [{"id": 3, "logprob": -0.1}, {"id": 4, "logprob": -3.4e38}]

    assert _topk.native_row({"completion_probabilities": [{"top_logprobs": top}]}) == TopKRow((3,), (-0.1,))


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [None, {}],
        [None, {}, {}, {}],
        [None, None, None, None],
        [None, {"x": {"logprob": -1}}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
        [None, {"1": {"logprob": math.nan}}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
        [None, {"1": {"logprob": math.nan}, "2": {"logprob": -1}}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
        [None, {"1": {"logprob": 0.5}}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
        [None, {"1": {"logprob": 0.0}, "2": {"logprob": 0.0}}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
        [None, {"1": {"logprob": -0.1}, "2": {"logprob": -0.2}}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
        [None, {"1": {}}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
        [None, {"1": 3}, {"1": {"logprob": -1}}, {"1": {"logprob": -1}}],
    ],
)
def test_nonsense_is_refused(rows: Any) -> None:
    """Wrong length, null, no number, over 0, all 0.0, more mass than 1: a bad answer, never a number."""
    with pytest.raises(BadAnswer):
        _topk.vllm_rows(vllm(rows), IDS, 1)


@pytest.mark.parametrize("answer", [None, {}, {"meta_info": {"input_top_logprobs": [[["a", "b", "c"]]] * 4}}, []])
def test_other_shapes_are_refused(answer: Any) -> None:
    """Another server's answer is a bad one for each reader."""
    for read in (lambda: _topk.vllm_rows(answer, IDS, 1), lambda: _topk.sglang_rows(answer, IDS, 1)):
        with pytest.raises(BadAnswer):
            read()
    with pytest.raises(BadAnswer):
        _topk.native_row(answer)


def test_rows_are_put_in_order() -> None:
    """A dictionary promises no order; the most likely token is first, whatever its id."""
    entry = {"1": {"logprob": -2.0}, "7": {"logprob": -0.3}, "3": {"logprob": -3.0}}

    assert _topk.vllm_rows(vllm([None, entry]), [5, 6], 1) == [TopKRow((7, 1, 3), (-0.3, -2.0, -3.0))]


def test_a_token_twice_in_one_top_is_refused() -> None:
    """Lists may repeat an id where dictionaries cannot; its mass would be counted twice."""
    twice = [[-1.0, 3, "a"], [-1.5, 3, "a"]]
    with pytest.raises(BadAnswer, match="a token twice"):
        _topk.sglang_rows({"meta_info": {"input_top_logprobs": [None, twice]}}, [5, 6], 1)


def test_what_servers_are_asked_for() -> None:
    """As many entries as wanted; SGLang's list begins one position early; llama.cpp keeps its slot's cache."""
    assert _topk.vllm_body("m", IDS, 9) == {
        "model": "m", "prompt": IDS, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 9,
    }  # fmt: skip
    sglang = _topk.sglang_body(IDS, 2, 9)
    assert (sglang["input_ids"], sglang["logprob_start_len"], sglang["top_logprobs_num"]) == (IDS, 1, 9)
    assert sglang["return_logprob"] is True and _topk.sglang_body(IDS, 0, 9)["logprob_start_len"] == 0
    native = _topk.native_body(IDS, 9)
    assert (native["prompt"], native["n_probs"], native["n_predict"]) == (IDS, 9, 1)
    assert native["cache_prompt"] is True and native["id_slot"] == 0, "else each step is a prefill, not a decode"
