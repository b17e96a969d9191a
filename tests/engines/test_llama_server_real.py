"""The real llama.cpp server: how it starts, what its log says, what it refuses. One thread, small contexts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from llama_kit import TEXT, launch

from kvgate.core.deployment import Engagement
from kvgate.core.engine import Available, Generate, Lane, Launch, Missing
from kvgate.core.errors import EngineDied, LaneUnavailable
from kvgate.core.geometry import ModelFiles
from kvgate.engines._llama_panel import panel_of
from kvgate.engines._llama_serving import LlamaCppSession, serve
from kvgate.engines.llama_cpp import DRIVER
from kvgate.models.resolve import model_files

pytestmark = pytest.mark.engine

#: Every type with a number to compare, and the asymmetric and unrotated ones.
RECIPES = [
    *("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4", "nvfp4"),
    *("k=q8_0,v=q4_0", "k=f16,v=q8_0", "q8_0+none", "k=q4_0+none,v=f16"),
]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> ModelFiles:
    return model_files(smollm2, name="smollm2")


def in_session(made: Launch, do: Callable[[LlamaCppSession], Coroutine[Any, Any, Any]]) -> Any:
    """Run `do` with a server of `made`."""

    async def run() -> Any:
        async with serve(made) as session:
            return await do(session)

    return asyncio.run(run())


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_kv_type_starts_and_logs_what_was_planned(model: ModelFiles, recipe: str) -> None:
    """Types, rotation and MiB in the log are the plan's, to the printed 0.01."""
    made = launch(recipe, model, context_tokens=300)

    seen = in_session(made, LlamaCppSession.deployment)
    engaged = DRIVER.engaged(made.expected, seen)

    assert engaged.level is Engagement.CONFIRMED, engaged
    assert [(f"{p.k_mib:.2f}", f"{p.v_mib:.2f}") for p in seen.consequence.parts] == [
        (f"{k:.2f}", f"{v:.2f}") for _, _, k, v in made.expected.parts_mib
    ]
    assert (seen.identity.threads, seen.identity.slots, seen.identity.context_tokens) == (1, 1, 512)
    assert None not in seen.identity.model_dump(exclude={"env"}).values()


def test_slots_and_checkpoints_are_observed(model: ModelFiles) -> None:
    """Slots multiply the cells, and leave one slot's context and batch as they are."""
    one = in_session(launch("q8_0", model, context_tokens=512), LlamaCppSession.deployment)
    made = launch("q8_0", model, context_tokens=512, slots=2, checkpoints=3)
    two = in_session(made, LlamaCppSession.deployment)

    assert {d.field for d in one.delta(two) if d.status != "same"} == {"slots", "checkpoints"}
    assert DRIVER.engaged(made.expected, two).level is Engagement.CONFIRMED
    assert (two.identity.slots, two.identity.checkpoints) == (2, 3)


def test_a_plan_for_another_type_is_contradicted(model: ModelFiles) -> None:
    """The running q4_0 server does not pass for q8_0, nor for q4_0 without rotation."""
    seen = in_session(launch("q4_0", model, context_tokens=256), LlamaCppSession.deployment)

    for other in ("q8_0", "q4_0+none", "k=q4_0,v=f16"):
        expected = launch(other, model, context_tokens=256).expected
        assert DRIVER.engaged(expected, seen).level is Engagement.CONTRADICTED


def test_the_server_serves(model: ModelFiles) -> None:
    """Chat, completion on ids, tokens, metrics and lanes work, and equal requests get equal answers."""
    chat = Generate(messages=[{"role": "user", "content": "Name a colour."}], max_tokens=8)

    async def use(s: LlamaCppSession) -> None:
        first, again = await s.generate(chat), await s.generate(chat)
        assert first.text == again.text != ""
        assert again.raw["timings"]["cache_n"] == 0, "a cached prompt would make answers depend on earlier ones"
        ids = (await s.tokenize(TEXT[:400])).ids
        assert (await s.tokenize(TEXT[:400], special=True)).ids[-10:] == ids[-10:]
        forced = await s.generate(Generate(prompt=ids, max_tokens=2, top_logprobs=3))
        assert len(forced.topk) == 2
        assert "llamacpp:prompt_tokens_total" in await s.metrics()
        lanes = await s.lanes()
        missing = {lane for lane, how in lanes.items() if isinstance(how, Missing)}
        assert missing == {Lane.PREFILL_TOPK}
        assert lanes[Lane.DECODE_TOPK] == Available({"top_k": 49152})
        assert s.load_log()

    in_session(launch("q8_0", model, context_tokens=512), use)


def test_a_stranger_is_refused_and_the_key_is_nowhere(model: ModelFiles) -> None:
    """Requests without the random key get 401; the key is in no log line, deployment or command line."""

    async def knock(s: LlamaCppSession) -> None:
        url, key = s._http.url, str(s._http._key)
        pid = (await s.deployment()).note.pid or 0
        async with aiohttp.ClientSession() as stranger:
            for headers in ({}, {"Authorization": "Bearer guess"}):
                async with stranger.get(url + "/props", headers=headers) as answer:
                    assert answer.status == 401
        assert url.startswith("http://127.0.0.1:")
        assert {c.laddr.ip for c in psutil.Process(pid).net_connections("tcp") if c.status == "LISTEN"} == {"127.0.0.1"}
        told = json.dumps([*s.load_log(), (await s.deployment()).model_dump_json(), *psutil.Process(pid).cmdline()])
        assert key not in told
        assert key[-4:] not in "".join(s.load_log())

    in_session(launch("native", model, context_tokens=256), knock)


def test_nothing_is_left_after_closing(model: ModelFiles) -> None:
    """The process is gone when the session closes, also when the caller fails inside."""
    pids: list[int] = []

    async def fail(s: LlamaCppSession) -> None:
        pids.append((await s.deployment()).note.pid or 0)
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        in_session(launch("native", model, context_tokens=256), fail)
    assert not psutil.pid_exists(pids[0])


def test_a_model_file_that_changes_between_two_arms_is_noticed(model: ModelFiles, tmp_path: Path) -> None:
    """Another byte of weights ends the next server and the next panel; a new date alone does not."""
    path = tmp_path / "copy.gguf"
    shutil.copyfile(model.path, path)
    made = launch("native", model_files(path))
    path.touch()
    assert in_session(made, LlamaCppSession.deployment).identity.model_digest == model.digest
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))

    with pytest.raises(EngineDied, match=r"copy\.gguf has changed"):
        in_session(made, LlamaCppSession.deployment)
    with pytest.raises(LaneUnavailable, match=r"copy\.gguf has changed"), panel_of({"base": made}):
        pass


def test_a_server_that_is_killed_is_a_dead_engine(model: ModelFiles) -> None:
    """A request to a dead server says how it ended."""

    async def kill(s: LlamaCppSession) -> None:
        psutil.Process((await s.deployment()).note.pid or 0).kill()
        with pytest.raises(EngineDied, match="killed by signal 9"):
            await s.generate(Generate(prompt="Hello", max_tokens=4))

    in_session(launch("native", model, context_tokens=256), kill)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"hello, this is no model", "invalid magic characters"), (None, "failed to read|gguf")],
    ids=["not gguf", "cut"],
)
def test_a_bad_file_kills_the_load_with_its_reason(
    model: ModelFiles, tmp_path: Path, content: bytes | None, says: str
) -> None:
    """The line of the log that says why is in the error."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(content if content is not None else model.path.read_bytes()[:100_000])
    made = launch("native", dataclasses.replace(model, path=path), context_tokens=256)

    with pytest.raises(EngineDied, match=says):
        in_session(made, LlamaCppSession.deployment)


def test_a_type_that_aborts_would_be_a_dead_engine(model: ModelFiles) -> None:
    """q8_1, forced past the resolver, ends the child by a signal and is told as that; we live on."""
    made = launch("q8_0", model, context_tokens=256)
    q8_1 = {**made.engine_options, "type_k": 9, "type_v": 9}

    with pytest.raises(EngineDied, match=r"signal 6.*unsupported V-type"):
        in_session(dataclasses.replace(made, engine_options=q8_1), LlamaCppSession.deployment)
