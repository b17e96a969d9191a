"""Verdicts of a store are found for the model that a command starts, whatever it is called there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kvgate.cli.main import main
from kvgate.core.verdict import Decision, NextStep, Verdict
from kvgate.lint.judged import Judged, asked_model
from kvgate.lint.model_view import model_view
from kvgate.lint.rule import Finding
from kvgate.lint.run import Options, lint
from kvgate.models.catalogue import catalogue_model
from kvgate.store.open import open_store

SMOL = catalogue_model("smollm2")
ARGS = "-ctk q4_0 -ctv q4_0 -fa on"
FAILED = Judged("smollm2", "llama_cpp", "q4_0", "FAIL", "r1", "smollm2", SMOL.sha256)


def verdict_of(text: str, *judged: Judged, model: str = "") -> Finding | None:
    found = lint(text, Options(judged=judged, model=model)).findings
    return next((f for f in found if f.id == "no-valid-verdict"), None)


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    """Another name of the judged file has its verdict; a file of the same name with other content has not."""
    digest = written(tmp_path / "renamed.gguf", b"one")
    written(tmp_path / "tiny.gguf", b"two")
    judged = Judged("tiny", "llama_cpp", "q4_0", "FAIL", "r1", "/models/tiny.gguf", digest)

    same = verdict_of(f"llama-server -m {tmp_path / 'renamed.gguf'} {ARGS}", judged)
    other = verdict_of(f"llama-server -m {tmp_path / 'tiny.gguf'} {ARGS}", judged)

    assert same is not None and same.severity == "error" and "FAILed" in same.message
    assert other is not None and other.severity == "warning" and other.message.startswith("no verdict")


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (f"llama-server -m /nowhere/x.gguf {ARGS}", "smollm2"),
        (f"llama-server -m /nowhere/{SMOL.file_name} {ARGS}", ""),
        (f"llama-server {ARGS}", "smollm2"),
    ],
)
def test_a_name_of_the_catalogue_is_its_file(text: str, model: str) -> None:
    """--model wins over the command's own path, and the catalogue's name and file name mean one model."""
    found = verdict_of(text, FAILED, model=model)

    assert found is not None and found.severity == "error"


def test_another_model_has_no_verdict() -> None:
    """--model of another model takes the verdict away, though the command names the judged file."""
    found = verdict_of(f"llama-server -m /nowhere/{SMOL.file_name} {ARGS}", FAILED, model="gemma3-270m")

    assert found is not None and found.severity == "warning"
    assert asked_model("x/model.gguf").names == ("x/model.gguf",)


def test_what_was_typed_counts_without_a_digest() -> None:
    """A verdict by the name that was asked holds where no file is here to compare."""
    judged = Judged("weights", "llama_cpp", "q4_0", "FAIL", "r1", "/models/My-Model.gguf")

    assert verdict_of(f"llama-server -m /srv/my-model.gguf {ARGS}", judged).severity == "error"  # type: ignore[union-attr]
    assert verdict_of(f"llama-server -m /srv/my-model2.gguf {ARGS}", judged).severity == "warning"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("my runs.db", "kvgate show r1 --store 'my runs.db' names"),
        ("postgresql://u:secret@h/d", "kvgate show r1 names"),
        ("", "kvgate show r1 names"),
    ],
)
def test_a_fail_says_what_to_do(store: str, shown: str) -> None:
    """The fix is not to ship it, and the command that names the next recipe; no address of a database is repeated."""
    judged = Judged("smollm2", "llama_cpp", "q4_0", "FAIL", "r1", store=store)

    found = verdict_of(f"llama-server -m smollm2.gguf {ARGS}", judged)

    assert found is not None and found.fix == f"do not ship q4_0 here; {shown} the next recipe"


def test_a_stored_fail_stops_the_lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The digest in the store's run is read: exit 1 for the file that failed, 0 for another one."""
    digest = written(tmp_path / "a.gguf", b"one")
    written(tmp_path / "b.gguf", b"two")
    store = str(tmp_path / "runs.db")
    with open_store(store) as opened:
        manifest = {"model": {"name": "smollm2", "digest": digest}, "spec": {"engine": "llama_cpp", "model": "smollm2"}}
        run = opened.begin_run("key", manifest)
        step = NextStep("try k=q8_0,v=q4_0", "K loses most")
        opened.save_verdict(run, Verdict("q4_0", Decision.FAIL, (), (), step, "default", "p", "r"))

    codes = [main(["lint", f"llama-server -m {tmp_path / n} {ARGS}", "--store", store]) for n in ("a.gguf", "b.gguf")]

    assert codes == [1, 0]
    assert f"kvgate show {run}" in " ".join(capsys.readouterr().out.split())


def test_a_name_of_the_catalogue_is_sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not fetched is said with the way to fetch it, and nothing is fetched."""
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))

    assert model_view("smollm2").why == "smollm2 is not on this machine yet: kvgate models get smollm2"
    assert "shipped catalogue" in model_view("smollm3").why
    assert not list(tmp_path.iterdir())
