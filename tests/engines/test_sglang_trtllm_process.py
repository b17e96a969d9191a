"""The families of processes around SGLang and TensorRT-LLM: death, contradiction, a wrong flag. With stand-ins."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from family_kit import launch, make_environment, request, script
from process_kit import gone, parent_of, shown_to_others, wait_for_text

from kvgate.core.deployment import Engagement
from kvgate.core.engine import Available, Generate, Lane, Launch, Missing
from kvgate.core.errors import BadAnswer, EngineDied, EngineTimeout, UserError
from kvgate.core.registry import discover
from kvgate.engines.openai import OpenAISession

TESTS = Path(__file__).parents[1]
BOTH = ("sglang", "trtllm")
PARENT = """
import asyncio, sys
from pathlib import Path
import kvgate.engines._family_child as child
child.has_changed = lambda model: ""
from family_kit import launch, script
from kvgate.core.registry import discover
async def main():
    made = launch(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), env=script(child_file=sys.argv[4]))
    async with discover("engine")[sys.argv[1]].open(made) as s:
        print((await s.deployment()).note.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {e: make_environment(tmp_path_factory.mktemp(e) / "env", e) for e in BOTH}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model here is only numbers: nothing lies in its folder that could change."""
    monkeypatch.setattr("kvgate.engines._family_child.has_changed", lambda model: "")


def using(use: Callable[[OpenAISession], Awaitable[Any]], engine: str, *args: Any, **settings: Any) -> Any:
    async def run() -> Any:
        async with discover("engine")[engine].open(launch(engine, *args, **settings)) as session:
            return await use(session)

    return asyncio.run(run())


def test_sglang_is_started_and_read(pythons: Mapping[str, Path], folder: Path) -> None:
    """Package, log and page make a confirmed deployment; both lanes of scoring give the same numbers."""
    ids = [104, 101, 108, 108, 111]

    async def use(session: OpenAISession) -> Any:
        lanes = await session.lanes()
        scored = [await session.score(ids, start=2, lane=lane, k=4) for lane in (Lane.PREFILL_TOPK, Lane.FORCED_DECODE)]
        return await session.deployment(), lanes, scored

    found, lanes, (prefill, steps) = using(use, "sglang", pythons["sglang"], folder, "fp8_e4m3")
    engaged = discover("engine")["sglang"].engaged(
        launch("sglang", pythons["sglang"], folder, "fp8_e4m3").expected, found
    )

    assert engaged.level is Engagement.CONFIRMED, engaged.reason
    assert (found.identity.version, found.identity.build) == ("0.5.23", "sglang 0.5.23")
    assert (found.loud.backend, found.identity.prefix_cache, found.identity.slots) == ("flashinfer", True, 1)
    assert isinstance(lanes[Lane.PREFILL_TOPK], Available)
    assert isinstance(lanes[Lane.FORCED_DECODE], Available)
    assert isinstance(lanes[Lane.PANEL], Missing)
    assert prefill == steps
    assert [len(r.ids) for r in prefill] == [4, 4, 4]


def test_trtllm_is_started_and_read(pythons: Mapping[str, Path], folder: Path, tmp_path: Path) -> None:
    """Bytes of a token confirm the type; the file of options is private and gone with the server."""
    note = tmp_path / "path"

    async def use(session: OpenAISession) -> Any:
        path = Path(note.read_text())
        mode = path.parent.stat().st_mode & 0o777
        return await session.deployment(), await session.lanes(), path, mode

    found, lanes, path, mode = using(use, "trtllm", pythons["trtllm"], folder, "fp8_e4m3", env=script(file=str(note)))
    engaged = discover("engine")["trtllm"].engaged(
        launch("trtllm", pythons["trtllm"], folder, "fp8_e4m3").expected, found
    )

    assert engaged.level is Engagement.CONFIRMED, engaged.reason
    assert (found.identity.version, found.consequence.cells) == ("1.2.0", 4096)
    assert isinstance(lanes[Lane.METRICS], Available)
    missing = lanes[Lane.PREFILL_TOPK]
    assert isinstance(missing, Missing)
    assert "no log-probabilities of prompt tokens" in missing.reason
    assert mode == 0o700
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("engine", "recipe", "fields", "says"),
    [
        ("sglang", "fp8_e4m3", {"stored": "torch.bfloat16"}, "K type: asked for fp8_e4m3, the log says bf16"),
        ("sglang", "fp8_e5m2", {"stored": "torch.float8_e4m3fnuz"}, "the log says fp8_e4m3fnuz"),
        ("sglang", "native", {"stored": "torch.float8_e4m3fn"}, "K type: asked for bf16, the log says fp8_e4m3"),
        ("sglang", "fp8_e4m3", {"stored": ""}, "names no KV cache type"),
        ("sglang", "fp8_e4m3", {"tokens_factor": 0.5}, "4,096 tokens in fp8_e4m3 were planned, the log says 2,048"),
        ("sglang", "fp8_e4m3", {"gib_factor": 2}, "4,096 tokens in fp8_e4m3 take 45.0 MiB, the log says 81.9"),
        ("trtllm", "fp8_e4m3", {"bytes": 23040}, "asked for fp8_e4m3, a token takes as many bytes as in bf16"),
        ("trtllm", "fp8_e4m3", {"bytes": 999}, "a token takes 999 bytes, fp8_e4m3 takes 11,520 and bf16 23,040"),
        ("trtllm", "native", {"bytes": 11520}, "a token takes 11,520 bytes, bf16 takes 23,040"),
        ("trtllm", "fp8_e4m3", {"tokens": 2048}, "4,096 tokens were planned, the log says 2,048"),
    ],
)
def test_a_type_that_did_not_engage(
    pythons: Mapping[str, Path], folder: Path, engine: str, recipe: str, fields: dict[str, Any], says: str
) -> None:
    """A server that serves as if nothing were wrong, in another type or room: contradicted, with the numbers."""
    made = launch(engine, pythons[engine], folder, recipe, env=script(**fields))

    found = using(lambda s: s.deployment(), engine, pythons[engine], folder, recipe, env=script(**fields))
    verdict = discover("engine")[engine].engaged(made.expected, found)

    assert verdict.level is Engagement.CONTRADICTED, verdict.reason
    assert says in verdict.reason


def test_arguments_alone_are_no_evidence(pythons: Mapping[str, Path], folder: Path) -> None:
    """TensorRT-LLM echoes `fp8` whatever it allocates: without its own numbers nothing is observed."""
    quiet = script(says_bytes=False, says_room=False)

    found = using(lambda s: s.deployment(), "trtllm", pythons["trtllm"], folder, "fp8_e4m3", env=quiet)
    made = launch("trtllm", pythons["trtllm"], folder, "fp8_e4m3")

    assert discover("engine")["trtllm"].engaged(made.expected, found).level is Engagement.UNOBSERVED
    assert found.consequence.k_codec is None


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("sglang", "SGLang ended while loading: exit status 2: unrecognized arguments: --no-such-flag"),
        ("trtllm", "TensorRT-LLM ended while loading: exit status 2: unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_wrong_flag_is_one_line(pythons: Mapping[str, Path], folder: Path, engine: str, says: str) -> None:
    """What the engine's own parser says of a flag that it does not know, in one line."""
    with pytest.raises(EngineDied) as e:
        using(lambda s: s.deployment(), engine, pythons[engine], folder, arguments=("--no-such-flag",))

    assert str(e.value) == says


@pytest.mark.parametrize("engine", BOTH)
def test_a_load_that_fails_says_why(pythons: Mapping[str, Path], folder: Path, engine: str) -> None:
    """The engine's own error, not that its process has ended."""
    with pytest.raises(EngineDied, match="exit status 1: RuntimeError: Not enough memory"):
        die = script(die="RuntimeError: Not enough memory. Please try another fraction")
        using(lambda s: s.deployment(), engine, pythons[engine], folder, env=die)


def test_a_port_that_is_taken_meanwhile(pythons: Mapping[str, Path], folder: Path) -> None:
    """Between finding a port and listening on it somebody else may: the error names it."""
    with pytest.raises(EngineDied, match=r"OSError: \[Errno 98\] Address already in use"):
        using(lambda s: s.deployment(), "sglang", pythons["sglang"], folder, env=script(port_taken=True))


@pytest.mark.parametrize("engine", BOTH)
def test_a_load_without_end_is_a_timeout(
    pythons: Mapping[str, Path], folder: Path, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is never ready is ended, with all its processes."""
    note = tmp_path / "child"

    def patience_s(launch: Launch) -> float:
        wait_for_text(note)  # on a busy machine its start alone may take seconds
        return 1.0

    monkeypatch.setattr("kvgate.engines._family_child.load_timeout_s", patience_s)

    with pytest.raises(EngineTimeout, match="was not ready within 1 s"):
        slow = script(slow_s=60, child_file=str(note))
        using(lambda s: s.deployment(), engine, pythons[engine], folder, env=slow)

    assert gone(int(note.read_text()), 1.0)


def test_a_keeper_that_says_nothing_is_a_timeout(
    pythons: Mapping[str, Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that hangs before the server is started has not died: that is said as what it is."""
    monkeypatch.setattr("kvgate.engines._family_child._KEEPER_TIMEOUT_S", 0.3)
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\nwhile read x; do :; done\n")
    hangs.chmod(0o755)
    made = replace(launch("sglang", pythons["sglang"], folder), argv=(str(hangs),))

    async def run() -> None:
        async with discover("engine")["sglang"].open(made):
            pass

    with pytest.raises(EngineTimeout, match="SGLang was not ready within"):
        asyncio.run(run())


def test_a_server_that_listens_late_is_waited_for(pythons: Mapping[str, Path], folder: Path) -> None:
    """SGLang says that it is ready after its own first request; still, the first of ours may be too early."""
    found = using(lambda s: s.deployment(), "sglang", pythons["sglang"], folder, env=script(late_s=1.0))

    assert found.consequence.cells == 4096


def test_the_key_is_seen_by_nobody(pythons: Mapping[str, Path], folder: Path) -> None:
    """Not on a command line, nor in an environment, the log, the evidence; and it is needed."""

    async def use(session: Any) -> None:
        deployment = await session.deployment()
        key, pid = session._http._key, deployment.note.pid
        assert key and pid
        shown = shown_to_others(pid)
        assert len(shown) >= 2
        assert not any(key.encode() in text for text in shown)
        assert key not in "".join(session.load_log())
        assert any("[key]" in line for line in session.load_log())
        assert key not in deployment.model_dump_json()
        session._http._key = None
        await session._http.__aexit__()
        await session._http.__aenter__()
        assert (await session._http.fetch("POST", "/generate", {"input_ids": [1]})).status == 401

    using(use, "sglang", pythons["sglang"], folder)


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("who", ["server", "keeper"])
def test_a_killed_engine_is_dead_and_leaves_nothing(
    pythons: Mapping[str, Path], folder: Path, tmp_path: Path, engine: str, who: str
) -> None:
    """Whoever of the family is killed: the next request is EngineDied, and the rest is ended."""
    note = tmp_path / "child"

    async def use(session: OpenAISession) -> int:
        pid = (await session.deployment()).note.pid
        assert pid
        parent = parent_of(pid)
        os.kill(pid if who == "server" else parent, signal.SIGKILL)
        assert await asyncio.to_thread(gone, pid, 5.0)
        with pytest.raises(EngineDied, match=r"killed by signal 9$"):
            await session.generate(Generate(prompt="a", max_tokens=2))
        return pid

    options = tmp_path / "path"
    pid = using(use, engine, pythons[engine], folder, env=script(child_file=str(note), file=str(options)))

    assert gone(pid, 5.0)
    assert gone(int(note.read_text()), 5.0)
    assert engine == "sglang" or not Path(options.read_text()).parent.exists()


@pytest.mark.kill
@pytest.mark.parametrize("engine", BOTH)
def test_the_family_dies_with_its_parent(
    pythons: Mapping[str, Path], folder: Path, tmp_path: Path, engine: str
) -> None:
    """A parent that is killed without a chance to clean up leaves no process for more than five seconds."""
    note = tmp_path / "child"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, engine, pythons[engine], folder, note],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS / "engines")])},
    )
    assert parent.stdout is not None
    pid, child = int(parent.stdout.readline()), int(note.read_text())
    assert not gone(pid, 0.1)

    parent.kill()
    parent.wait()
    parent.stdout.close()

    assert gone(pid, 5.0)
    assert gone(child, 1.0)


@pytest.mark.parametrize("engine", BOTH)
def test_a_parent_that_gives_up_while_it_loads(
    pythons: Mapping[str, Path], folder: Path, tmp_path: Path, engine: str
) -> None:
    """Nothing is left of a load that nobody waits for any more, the file of options neither."""
    note = tmp_path / "child"
    made = launch(
        engine, pythons[engine], folder, env=script(child_file=str(note), slow_s=60, file=str(tmp_path / "f"))
    )

    async def run() -> None:
        async with discover("engine")[engine].open(made):
            pass

    async def cancelled() -> None:
        task = asyncio.create_task(run())
        await asyncio.to_thread(wait_for_text, note)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())

    assert gone(int(note.read_text()), 1.0)
    assert engine == "sglang" or not Path((tmp_path / "f").read_text()).exists()


@pytest.mark.parametrize("engine", BOTH)
def test_an_interpreter_without_the_engine(folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the fix, before anything is started."""
    monkeypatch.delenv(f"KVGATE_{engine.upper()}_PYTHON", raising=False)
    driver = discover("engine")[engine]

    with pytest.raises(UserError, match=r"--engine-python PATH, set KVGATE_.*_PYTHON, or start the server yourself"):
        driver.resolve(request(engine, Path(sys.executable), folder))
    with pytest.raises(UserError, match="there is no engine interpreter '/nowhere/python'"):
        driver.resolve(request(engine, Path("/nowhere/python"), folder))


@pytest.mark.parametrize(
    ("fields", "lane", "says"),
    [
        ({"radix": False}, Lane.FORCED_DECODE, "a step computed"),
        ({"page": 64}, Lane.FORCED_DECODE, "goes through no given text step by step"),
        ({"speculative": "EAGLE"}, Lane.PREFILL_TOPK, r"speculative decoding is on \(EAGLE\)"),
        ({"ignores_start": True, "ignores_salt": True}, Lane.PREFILL_TOPK, "came from the prefix cache"),
    ],
)
def test_what_stands_in_a_lanes_way(
    pythons: Mapping[str, Path], folder: Path, fields: dict[str, Any], lane: Lane, says: str
) -> None:
    """A lane that would give other numbers than it says is missing, with the reason; never numbers."""

    async def use(session: OpenAISession) -> Missing | Available:
        found = (await session.lanes())[lane]
        with pytest.raises(BadAnswer, match=says):
            ids = list(b"a text that was asked for")
            await session.score(ids, start=3, lane=lane, k=4)
            await session.score(ids, start=3, lane=lane, k=4)
        return found

    found = using(use, "sglang", pythons["sglang"], folder, env=script(**fields))

    assert isinstance(found, Missing)
