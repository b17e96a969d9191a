"""`kvgate check` on real vLLM on the CPU, end to end: SmolLM2 in FP8 against bfloat16.

The whole file takes a quarter of an hour on two cores; most of it is vLLM's start, half a minute to a minute each.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgate.core.deployment import Engagement
from kvgate.core.engine import Request, Settings
from kvgate.core.errors import EngineDied, UserError
from kvgate.core.recipe import parse
from kvgate.engines.vllm import DRIVER
from kvgate.models.model_folder import model_folder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
CONTEXT_TOKENS = 1024


def request_of(folder: Path, python: str, recipe: str, **settings: Any) -> Request:
    chosen = Settings(**{"context_tokens": CONTEXT_TOKENS, "threads": 2, **settings})
    return Request(model_folder(folder), parse(recipe), chosen, recipe, Path(python))


def kvgate(*words: str, store: Path, python: str) -> subprocess.Popen[str]:
    """The command as a person types it; its standard output goes to a file beside the store, so that no pipe fills."""
    argv = [sys.executable, "-m", "kvgate", *words, "--store", str(store), "--out", str(store.parent / "out")]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "KVGATE_VLLM_PYTHON": python}
    with (store.parent / "stdout").open("w") as out:
        return subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.PIPE, text=True)


CHECK = ("--engine", "vllm", "--policy", "smoke", "--suite", "topk", "--threads", "2")


@pytest.fixture(scope="module")
def checked(smollm2_folder: Path, vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One check of both FP8 types, in the middle of which the first server is killed.

    Base, two candidates and two floors are started, and the base once more.
    """
    words = ("check", str(smollm2_folder), *CHECK, "--kv", "fp8_e4m3", "--kv", "fp8_e5m2", "--json")
    folder = tmp_path_factory.mktemp("check")
    run = kvgate(*words, store=folder / "kvgate.db", python=vllm_python)
    assert run.stderr is not None
    said: list[str] = []
    killed = None
    for line in run.stderr:
        said.append(line)
        if killed is None and "base: topk" in line:
            killed = next(servers_of(run.pid))
            os.kill(killed, signal.SIGKILL)
    status = run.wait()
    log = "".join(said)
    assert killed is not None, log
    assert status in (0, 1, 3), log
    return {"json": json.loads((folder / "stdout").read_text()), "stderr": log, "rc": status}


def test_the_check_ends_with_a_verdict_for_each(checked: dict[str, Any]) -> None:
    """Both candidates engaged and were measured: neither verdict is INVALID."""
    verdicts = {v["candidate"]: v["decision"] for v in checked["json"]["verdicts"]}

    assert set(verdicts) == {"fp8_e4m3", "fp8_e5m2"}
    assert "INVALID" not in verdicts.values()
    assert checked["json"]["exit_code"] == checked["rc"]


def test_e5m2_is_worse_than_e4m3(checked: dict[str, Any]) -> None:
    """Two bits of mantissa lose more than three, by more than their intervals."""
    e4m3, e5m2 = (checked["json"]["results"][name]["topk"]["topk_prefill.kl_mean"] for name in ("fp8_e4m3", "fp8_e5m2"))

    assert e4m3["value"] > 0
    assert e4m3["hi"] < e5m2["lo"]


def test_capacity_is_twice_the_baselines(checked: dict[str, Any]) -> None:
    """The engine's own lines: FP8 holds twice the tokens of bfloat16, both as planned to the token."""
    lines = {
        arm["name"]: " ".join(place["reason"] for place in arm["engaged"].values()) for arm in checked["json"]["arms"]
    }

    assert "bf16 and 46,592 tokens, as planned" in lines["base"]
    assert "fp8_e4m3 and 93,184 tokens, as planned" in lines["fp8_e4m3"]
    assert "fp8_e5m2 and 93,184 tokens, as planned" in lines["fp8_e5m2"]


def test_the_run_went_on_after_the_kill(checked: dict[str, Any]) -> None:
    """A server that was killed in the middle is said, started again, and what was in flight is asked again."""
    # The terminal wraps.
    assert "killed by signal 9" in " ".join(checked["stderr"].split())
    assert not any(v["decision"] == "INVALID" for v in checked["json"]["verdicts"])


def test_kept_layers_are_in_the_room(smollm2_folder: Path, vllm_python: str) -> None:
    """Two layers left in bfloat16 take the room that was planned, to the token."""
    request = request_of(smollm2_folder, vllm_python, "fp8_e4m3/keep=L0-1")
    launch = DRIVER.resolve(request)

    async def run() -> Any:
        async with DRIVER.open(launch) as session:
            return await session.deployment()

    found = asyncio.run(run())

    assert DRIVER.engaged(launch.expected, found).level is Engagement.CONFIRMED
    assert any("kv_cache_dtype_skip_layers=\"['0', '1']\"" in line for line in found.evidence)


def test_a_checkpoint_with_scales_is_no_baseline_by_auto(
    kv_scheme_folder: Path, vllm_python: str, tmp_path: Path
) -> None:
    """`auto` would start it in FP8: refused in one line, before anything starts."""
    words = ("check", str(kv_scheme_folder), *CHECK, "--base", "auto", "--kv", "fp8_e4m3")

    run = kvgate(*words, store=tmp_path / "kvgate.db", python=vllm_python)
    _, said = run.communicate(timeout=120)

    assert run.returncode == 2
    assert "starts in fp8_e4m3 without a word, which is no baseline" in " ".join(said.split())
    assert "Traceback" not in said


def test_its_baseline_is_bfloat16_in_fact(kv_scheme_folder: Path, vllm_python: str) -> None:
    """The compute type spelled out wins over the checkpoint's scheme: the room is that of bfloat16."""
    launch = DRIVER.resolve(request_of(kv_scheme_folder, vllm_python, "native"))

    async def run() -> Any:
        async with DRIVER.open(launch) as session:
            return await session.deployment()

    found = asyncio.run(run())

    assert DRIVER.engaged(launch.expected, found).level is Engagement.CONFIRMED
    assert (found.consequence.k_codec, found.consequence.cells) == ("bf16", 46_592)


def test_a_wrong_flag_is_one_line(smollm2_folder: Path, vllm_python: str) -> None:
    """vLLM's own word for it, without its help page."""
    launch = DRIVER.resolve(request_of(smollm2_folder, vllm_python, "native", arguments=("--no-such-flag=1",)))

    async def run() -> None:
        async with DRIVER.open(launch):
            pass

    with pytest.raises(EngineDied) as e:
        asyncio.run(run())
    assert "unrecognized arguments: --no-such-flag=1" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_type_of_another_engine_is_refused(smollm2_folder: Path, vllm_python: str) -> None:
    """q8_0 is llama.cpp's; the message says what vLLM has."""
    with pytest.raises(UserError, match="allowed: bf16, fp8_e4m3, fp8_e5m2"):
        DRIVER.resolve(request_of(smollm2_folder, vllm_python, "q8_0"))


def servers_of(parent: int) -> Iterator[int]:
    """Process groups of vLLM servers below a process."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            words = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if b"family_server.py\0serve\0" in words and ancestor(int(fields[1]), parent):
            yield int(stat.parent.name)


def ancestor(pid: int, wanted: int) -> bool:
    while pid > 1:
        if pid == wanted:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def test_a_run_killed_leaves_nothing(smollm2_folder: Path, vllm_python: str, tmp_path: Path) -> None:
    """A SIGKILL of kvgate itself ends vLLM's whole family within five seconds."""
    words = ("check", str(smollm2_folder), *CHECK, "--kv", "fp8_e4m3")
    run = kvgate(*words, store=tmp_path / "kvgate.db", python=vllm_python)
    assert run.stderr is not None
    for line in run.stderr:
        if "base: topk" in line:
            break
    group = next(servers_of(run.pid))
    family = [int(p.name) for p in Path("/proc").glob("[0-9]*") if _group(int(p.name)) == group]
    assert len(family) >= 3

    run.kill()
    run.wait()

    until = time.monotonic() + 5.0
    while time.monotonic() < until and any(_group(pid) == group for pid in family):
        time.sleep(0.1)
    assert not [pid for pid in family if _group(pid) == group]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
