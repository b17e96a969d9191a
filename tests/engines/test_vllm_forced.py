"""A text that is decoded token by token: what is asked, and what counts as an answer."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvgate.core.errors import BadAnswer
from kvgate.engines import _vllm_forced, _vllm_layers
from kvgate.engines._family_child import MAX_LINE_BYTES
from kvgate.engines._vllm_forced import forced_body, forced_rows
from kvgate.engines._vllm_layers import layers_of

WORKERS = Path(_vllm_forced.__file__).parent / "workers"
IDS = (10, 11, 12, 13, 14)


def answer(tokens: list[int], tops: list[dict[int, float]]) -> dict[str, Any]:
    named = [{f"token_id:{i}": x for i, x in top.items()} for top in tops]
    return {"choices": [{"logprobs": {"tokens": [f"token_id:{t}" for t in tokens], "top_logprobs": named}}]}


@pytest.mark.parametrize(
    ("start", "prompt", "forced"), [(1, [10], 4), (2, [10], 4), (3, [10, 11], 3), (4, [10, 11, 12], 2)]
)
def test_the_token_before_is_forced_too(start: int, prompt: list[int], forced: int) -> None:
    """A prompt's last position is no decode step, so the row of token `start` comes after one forced token."""
    body = forced_body("model", IDS, start, 8)

    assert body["prompt"] == prompt
    assert body["vllm_xargs"]["kvgate_forced"] == list(IDS[len(prompt) :])
    assert body["max_tokens"] == forced
    assert (body["logprobs"], body["ignore_eos"], body["temperature"]) == (8, True, 0.0)


@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_rows_are_of_the_tokens_asked_for(start: int) -> None:
    """One row a token from `start` to the last, each with the top that its own step gave."""
    first = max(1, start - 1)
    tops = [{100 + i: -0.5, i: -2.0} for i in range(first, 5)]

    rows = forced_rows(answer(list(IDS[first:]), tops), IDS, start)

    assert [row.ids for row in rows] == [(100 + i, i) for i in range(start, 5)]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (answer([12, 13, 99], [{1: -1.0}] * 3), "nothing was forced"),
        (answer([12, 13], [{1: -1.0}] * 2), "nothing was forced"),
        (answer([12, 13, 14], [{1: -1.0}] * 2), "1 positions in the answer, 2 asked for"),
        (answer([12, 13, 14], [{1: -1.0}, {1: 0.5}, {1: -1.0}]), "over 0"),
        ({"choices": [{"logprobs": {"tokens": ["a"], "top_logprobs": [{}]}}]}, "no logprobs with token ids"),
        ({"choices": [{"logprobs": None}]}, "no logprobs"),
        ({"choices": []}, "no logprobs"),
        ([], "no logprobs"),
        ({"choices": [{"logprobs": {"tokens": [], "top_logprobs": [None] * 3}}]}, "no logprobs"),
    ],
)
def test_anything_else_is_no_answer(reply: Any, says: str) -> None:
    """Other tokens than the text's, missing rows, or no log-probabilities."""
    with pytest.raises(BadAnswer, match=says):
        forced_rows(reply, IDS, 3)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The worker's module, with a base class in vLLM's place."""

    class Base:
        def __init__(self, config: object, device: object, pinned: bool) -> None:
            pass

    base = types.ModuleType("vllm.v1.sample.logits_processor")
    base.AdapterLogitsProcessor = Base  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.syspath_prepend(str(WORKERS))
    monkeypatch.delitem(sys.modules, "vllm_forced", raising=False)
    yield importlib.import_module("vllm_forced")
    monkeypatch.delitem(sys.modules, "vllm_forced")


def config(layers: dict[str, Any]) -> Any:
    """A configuration of vLLM, as far as the worker looks into it."""
    return types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(static_forward_context=layers),
        model_config=types.SimpleNamespace(dtype="torch.bfloat16"),
    )


def layer(word: str = "fp8", k: float = 0.5, v: float = 0.25, heads: int = 1, **more: Any) -> Any:
    """An attention layer of vLLM, likewise."""
    fields = {
        "kv_cache_dtype": word,
        "kv_cache": types.SimpleNamespace(dtype="torch.float8_e4m3fn"),
        "attn_backend": types.SimpleNamespace(get_name=lambda: "CPU_ATTN"),
        "_k_scale": types.SimpleNamespace(numel=lambda: heads),
        "_k_scale_float": k,
        "_v_scale_float": v,
        "_q_scale_float": 1.0,
        "query_quant": None,
    }
    return types.SimpleNamespace(**fields | more)


def test_the_worker_leaves_one_token(worker: Any) -> None:
    """Inside vLLM: at each step all but the named token are ruled out; requests without names are left alone."""

    class Row(list[float]):
        def fill_(self, value: float) -> None:
            self[:] = [value] * len(self)

    tokens = worker.ForcedTokens(None, None, False)
    made = tokens.new_req_logits_processor(types.SimpleNamespace(extra_args={worker.KEY: [2, 0]}))

    assert worker.KEY == _vllm_forced.KEY
    assert [made(said, Row([1.0, 2.0, 3.0])).index(0.0) for said in ([], [2])] == [2, 0]
    assert made([2, 0], Row([1.0, 2.0, 3.0])) == [1.0, 2.0, 3.0]
    assert tokens.new_req_logits_processor(types.SimpleNamespace(extra_args=None)) is None


def test_the_worker_tells_what_its_layers_hold(worker: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Once, at the first request: a row a layer in lines that our reader takes; other things in there are left out."""
    layers = {f"model.layers.{n}.self_attn.attn": layer(k=0.02 + n) for n in range(40)}
    layers["model.layers.40.self_attn.attn"] = layer("auto", k=float("nan"), heads=3, query_quant=object())
    layers["model.layers.41.mamba"] = types.SimpleNamespace(kv_cache=[])
    layers["model.norm"] = layer()
    tokens = worker.ForcedTokens(config(layers), None, False)

    for _ in range(2):
        tokens.new_req_logits_processor(types.SimpleNamespace(extra_args=None))

    lines = capfd.readouterr().err.splitlines()
    found = layers_of(lines)
    assert len(lines) == 2
    assert worker.LAYERS == _vllm_layers.LAYERS
    assert max(map(len, lines)) < MAX_LINE_BYTES
    assert [x.layer for x in found] == [*range(41)]
    assert (found[3].k_scale, found[3].v_scale, found[3].query_dtype) == (3.02, 0.25, "bfloat16")
    assert (found[40].word, found[40].heads, found[40].query_dtype) == ("auto", 3, "float8_e4m3fn")
    assert found[40].k_scale != found[40].k_scale


def test_layers_of_another_make_are_not_told(worker: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Where the inside is not as in the version that was read, nothing is written and requests go on."""
    tokens = worker.ForcedTokens(types.SimpleNamespace(), None, False)

    assert tokens.new_req_logits_processor(types.SimpleNamespace(extra_args=None)) is None
    assert capfd.readouterr().err == ""
