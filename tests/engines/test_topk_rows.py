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
