"""Our requests to SGLang, what our stand-in answers, and our flags, against SGLang's own models (sglang 0.5.23).

`data/sglang_0.5.23.json` is made from SGLang's wheel by `scripts/sglang_shapes.py`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from family_kit import launch, make_environment, script

from kvgate.core.engine import Generate, Lane
from kvgate.core.registry import discover
from kvgate.enginefacts.page_facts import load
from kvgate.engines._sglang_logprobs import prefill_body, step_body
from kvgate.engines._sglang_serving import SglangSession

SHAPES = json.loads((Path(__file__).parent / "data" / "sglang_0.5.23.json").read_text())
#: What the page has beside the arguments: srt/entrypoints/http_server.py server_info, utils/common.py
#: build_server_info, and the scheduler's own numbers.
BESIDE = {"version", "internal_states", "launch_command", "max_total_num_tokens", "startup_time", "kv_events"}
ASK = [{"role": "user", "content": "hi"}]


def fits(path: str, body: Any) -> None:
    """Whether SGLang's model of a request takes a body, without a field that it would leave aside in silence.

    Raises:
        jsonschema.ValidationError: it does not.
    """
    jsonschema.validate(body, SHAPES["requests"][path])
    if path == "/generate":
        strange = set(body["sampling_params"]) - set(SHAPES["sampling_params"])
        if strange:
            raise jsonschema.ValidationError(f"no sampling parameters: {strange}")


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Everything that a session of ours says to a server, and hears."""
    folder = tmp_path_factory.mktemp("shapes")
    model, record = folder / "model", folder / "record"
    model.mkdir()
    python = make_environment(folder / "env", "sglang")
    made = launch("sglang", python, model, "fp8_e4m3", env=script(record=str(record)))

    async def talk(session: SglangSession) -> None:
        await session.lanes()
        for stream in (False, True):
            await session.generate(Generate(messages=ASK, max_tokens=2, top_logprobs=0 if stream else 3, stream=stream))
            await session.generate(Generate(prompt="a", max_tokens=2, stream=stream))
        ids = list(b"a text of its own")
        rows = await session.score(ids, start=2, lane=Lane.PREFILL_TOPK, k=3)
        await session.score_beside(ids, start=2, lane=Lane.PREFILL_TOPK, k=2, base=rows)
        await session.score(ids[:6], start=2, lane=Lane.FORCED_DECODE, k=3)

    async def run() -> None:
        async with discover("engine")["sglang"].open(made) as session:
            await talk(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvgate.engines._family_child.has_changed", lambda model: "")
        asyncio.run(run())
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_every_request_is_one_that_sglang_takes(exchanged: list[dict[str, Any]]) -> None:
    """All that a session sends, on every route, parses in SGLang's request models, every field of it known."""
    for said in exchanged:
        fits(said["path"].removesuffix(" stream"), without_foreign(said["path"], said["body"]))

    assert {s["path"].removesuffix(" stream") for s in exchanged} == set(SHAPES["requests"])


def test_every_request_goes_past_the_cache(exchanged: list[dict[str, Any]]) -> None:
    """Each has a salt of its own, but for the steps of one text; a prompt is scored from its first token on."""
    bodies = [s["body"] for s in exchanged if not s["path"].startswith("/tokenize") and " stream" not in s["path"]]
    steps = {b["cache_salt"] for b in bodies if b.get("logprob_start_len") == -1}
    others = [b["cache_salt"] for b in bodies if b.get("logprob_start_len") != -1]

    assert len(set(others)) == len(others)
    assert not steps & set(others)
    assert {b["logprob_start_len"] for b in bodies if "logprob_start_len" in b} == {0, -1}


def without_foreign(path: str, body: Any) -> Any:
    """`/tokenize` is asked in two servers' words at once; SGLang's model says that it takes any field."""
    foreign = ("content", "add_special") if path == "/tokenize" else ()
    return {k: v for k, v in body.items() if k not in foreign}


def test_every_answer_of_the_stand_in_is_one_that_sglang_gives(exchanged: list[dict[str, Any]]) -> None:
    """What our reading is tested on parses in SGLang's response models; `/generate` has no model, but known keys."""
    for heard in exchanged:
        if heard["path"] != "/generate":
            jsonschema.validate(heard["answer"], SHAPES["responses"][heard["path"]])
            continue
        assert set(heard["answer"]) == {"text", "output_ids", "meta_info"}
        assert set(heard["answer"]["meta_info"]) <= set(SHAPES["meta_info"])

    assert {h["path"] for h in exchanged} >= {"/v1/completions stream", "/v1/chat/completions stream", "/generate"}


@pytest.mark.parametrize(
    "change",
    [
        {"top_logprob_num": 4},
        {"input_ids": "abc"},
        {"input_ids": [1.5]},
        {"logprob_start_len": "0"},
        {"return_logprob": "yes"},
        {"cache_salt": 7},
        {"token_ids_logprob": [["a"]]},
        {"sampling_params": {"max_tokens": 1}},
        {"prompt_logprobs": 4},
    ],
    ids=str,
)
def test_a_request_of_another_shape_is_caught(change: dict[str, Any]) -> None:
    """A misspelled field, which SGLang would leave aside without a word, and a wrong type do not pass."""
    fits("/generate", prefill_body([1, 2, 3], 4, "salt", [5]))
    fits("/generate", step_body([1, 2, 3], 4, "salt"))

    with pytest.raises(jsonschema.ValidationError):
        fits("/generate", prefill_body([1, 2, 3], 4, "salt") | change)


def test_an_answer_of_another_shape_is_caught() -> None:
    """The response models are no empty ones."""
    whole = {"id": "1", "model": "m", "object": "text_completion", "created": 1, "usage": {"prompt_tokens": 1}}

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(whole | {"choices": [{"index": "0"}]}, SHAPES["responses"]["/v1/completions"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tokens": "abc", "count": 1}, SHAPES["responses"]["/tokenize"])


def test_every_flag_is_one_of_sglangs(tmp_path: Path) -> None:
    """No flag that we give is unknown to its parser, and none is short for another."""
    python = make_environment(tmp_path / "env", "sglang")
    options = launch("sglang", python, tmp_path, "fp8_e5m2", arguments=("--attention-backend=triton",)).engine_options
    given = [w.partition("=")[0] for w in (*options["arguments"], options["key_flag"]) if w.startswith("--")]

    assert len(given) >= 14
    assert set(given) <= set(SHAPES["flags"])
    assert "--no-such-flag" not in SHAPES["flags"]


def test_every_argument_that_its_page_is_read_for_exists() -> None:
    """Keys of `/server_info` that rows name are SGLang's arguments, or what it puts beside them."""
    known = {f.removeprefix("--").replace("-", "_") for f in SHAPES["flags"]} | set(SHAPES["arguments_without_flag"])
    asked = {row.key.partition(".")[0] for row in load("sglang").fact if row.path == "/server_info" and row.key}

    assert asked - known <= BESIDE
    assert "kv_cache_dtype" in asked & known
