"""Several models in one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.main import main
from kvgate.core.errors import StoreError


def argv(folder: Path, *models: str) -> list[str]:
    options = ["--kv", "q8_0", "--engine", "fake", "--policy", "smoke", "--threads", "1", "--suite", "fidelity"]
    return ["check", *models, *options, "--store", str(folder / "k.db"), "--json"]


@pytest.fixture
def copies(smollm2: Path, tmp_path: Path) -> list[str]:
    """The model under two names."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").symlink_to(smollm2)
    return [str(tmp_path / f"{name}.gguf") for name in ("a", "b")]


def test_models_run_in_turn_and_the_worst_decides(
    copies: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One document with a check a model; the exit code is the worst of all."""
    code = main(argv(tmp_path, *copies))
    document = json.loads(capsys.readouterr().out)

    assert document["schema"] == "kvgate.checks/1"
    assert [c["model"]["name"] for c in document["checks"]] == ["a", "b"]
    assert code == document["exit_code"] == max(c["exit_code"] for c in document["checks"])


def test_a_wrong_second_model_starts_nothing(
    copies: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All models are looked at before the first is run."""
    assert main(argv(tmp_path, copies[0], "/no/such.gguf")) == 2
    assert "no/such" in capsys.readouterr().err
    assert not (tmp_path / "k.db").exists()


def test_a_model_given_twice_is_refused(copies: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same name twice is a mistake."""
    assert main(argv(tmp_path, copies[0], copies[0])) == 2
    assert "given twice" in capsys.readouterr().err


def test_a_model_that_breaks_off_does_not_stop_the_next(
    copies: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line says why, it counts as INVALID, and the other model has its verdict."""
    from kvgate.campaign import series

    honest = series.check

    def breaks(spec: Any, progress: Any) -> Any:
        if spec.model == copies[0]:
            raise StoreError("the disk is full")
        return honest(spec, progress)

    monkeypatch.setattr(series, "check", breaks)
    assert main(argv(tmp_path, *copies)) == 4
    checks = json.loads(capsys.readouterr().out)["checks"]

    assert checks[0]["why"] == "the disk is full" and checks[0]["exit_code"] == 4
    assert checks[1]["model"]["name"] == "b" and checks[1]["verdicts"]
