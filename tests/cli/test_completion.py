"""Completion as a shell does it: the script that kvgate prints is sourced, and its function is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvgate.cli import _complete
from kvgate.store.open import open_store

SHELL = """

source <(_KVGATE_COMPLETE=source_bash "$PYTHON" -m kvgate)
asked=("$@")
COMP_WORDS=("${asked[@]}")
COMP_CWORD=$(( ${#asked[@]} - 1 ))
_kvgate_completion "$FOLDER/kvgate"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(tmp_path: Path, *words: str) -> list[str]:
    """What bash would offer after these words; the last one is what has been typed so far."""
    program = tmp_path / "kvgate"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvgate "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", SHELL, "bash", "kvgate", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": sys.executable, "FOLDER": str(tmp_path), "KVGATE_STORE": str(tmp_path / "k.db")},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("comp",), ["compare"]),
        (("check", "--pol"), ["--policy"]),
        (("check", "smollm2", "--policy", "s"), ["smoke", "strict"]),
        (("check", "smollm2", "--engine", "llama"), ["llama_cpp"]),
    ],
)
def test_bash_completes_verbs_options_and_values(tmp_path: Path, words: tuple[str, ...], offered: list[str]) -> None:
    """A verb, an option's name, and two options' values."""
    assert sorted(completed(tmp_path, *words)) == offered


def test_runs_of_the_store_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids as they are stored, and `last`; without a store nothing, and no store is made by asking."""
    place = tmp_path / "k.db"
    monkeypatch.setenv("KVGATE_STORE", str(place))
    assert _complete.runs("") == []
    assert not place.exists()
    with open_store(place) as store:
        run = store.begin_run("key", {})

    assert _complete.runs("") == ["last", run]
    assert _complete.runs(run[:8]) == [run]
    assert _complete.models("smol") == ["smollm2"]
    monkeypatch.setenv("KVGATE_STORE", "postgresql://nobody@192.0.2.1/x")
    assert _complete.runs("") == ["last"]
