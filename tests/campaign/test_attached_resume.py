"""SIGKILL of a check of servers that run on, then the same command; and the same with an arm of its own settings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from attached_kit import servers
from test_resume import SCRIPT, Command, decisions, torn

#: Slow enough for a kill to land in the middle.
SLOW = {"ttft_ms": 25.0}


class Attached(Command):
    """`kvgate check URL --against URL`."""

    def __init__(self, folder: Path, url: str, base: str, *options: str) -> None:
        super().__init__(Path("x"), folder, "--against", base, *options)
        self.argv[self.argv.index("x")] = url
        at = self.argv.index("--threads")
        del self.argv[at : at + 2]


def kill_and_finish(command: Command, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill the whole at random instants, then let it end; only what was in flight is repeated."""
    for _ in range(kills):
        process = command.start()
        command.wait_done(command.done() + rng.randint(2, 5), process)
        process.kill()
        process.communicate(timeout=10)
        assert command.gone()
    code, document, err = command.finish()
    assert code in (0, 1, 3), err
    assert torn(command).total() <= kills, (
        f"more was repeated than the one piece in flight at each kill: {torn(command)}"
    )
    assert command.gone() and command.locks() == []
    return document


@pytest.mark.kill
def test_a_killed_check_of_running_servers_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kills: the servers run on, the same command goes on to the verdict of a run that was left alone."""
    options = ("--suite", "golden")
    with servers(SLOW, SLOW | {"break_rate": 0.5}) as ((base, base_key), (url, key)):
        monkeypatch.setenv("KVGATE_BASE_API_KEY", base_key)
        monkeypatch.setenv("KVGATE_API_KEY", key)
        code, alone, err = Attached(tmp_path / "alone", url, base, *options).finish()
        assert code in (0, 1, 3), err
        resumed = kill_and_finish(Attached(tmp_path / "killed", url, base, *options), 2, random.Random(5))

    assert decisions(resumed) == decisions(alone)


@pytest.mark.kill
def test_a_killed_check_with_an_arm_of_its_own_resumes(smollm2: Path, tmp_path: Path) -> None:
    """`--arm` is part of the key: the same command finds its run, and the extra floor is there once."""
    fake = ("--engine", "fake", "--engine-env", f"KVGATE_FAKE_SCRIPT={SCRIPT}")
    options = (*fake, "--suite", "golden", "--arm", "small:batch=64")
    code, whole, err = Command(smollm2, tmp_path / "whole", *options).finish()
    assert code in (0, 1, 3), err
    command = Command(smollm2, tmp_path / "killed", *options)

    document = kill_and_finish(command, 2, random.Random(6))

    assert decisions(document) == decisions(whole)
    assert command.rows("select count(*) from runs") == [(1,)]
    assert "small" in {arm for (arm,) in command.rows("select arm from arms")}
