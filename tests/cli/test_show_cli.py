"""A finished run is shown as its check ended, from the store and the check's own JSON document."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from kvgate.cli.main import main


class Run(NamedTuple):
    """A store's folder and what the check printed."""

    folder: Path
    said: str
    code: int


def said(*argv: str) -> tuple[int, str]:
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        code = main(argv)
    return code, out.getvalue()


@pytest.fixture(scope="module")
def checked(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two candidates on the fake engine, judged in a terminal of 100 columns."""
    folder = tmp_path_factory.mktemp("checked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        argv = ["check", str(smollm2), "--kv", "q8_0", "--kv", "q4_0", "--engine", "fake", "--policy", "smoke"]
        code, text = said(*argv, "--suite", "fidelity", "--threads", "1", "--store", str(folder / "kvgate.db"))
    yield Run(folder, text, code)


@pytest.fixture
def run(checked: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A copy of the store for one test."""
    monkeypatch.setenv("COLUMNS", "100")
    shutil.copy(checked.folder / "kvgate.db", tmp_path / "kvgate.db")
    return checked._replace(folder=tmp_path)


def shown(run: Run, *more: str) -> str:
    code, text = said("show", "last", "--store", str(run.folder / "kvgate.db"), *more)
    assert code == run.code
    return text


def test_show_says_what_check_said(run: Run) -> None:
    """One line on the run, then every line of the check's ending, to the letter, the next commands too."""
    head, rest = shown(run).split("\n", 1)

    assert head.startswith("run ") and ": finished, begun 20" in head and head.endswith(" UTC")
    assert rest == run.said
    for words in ("KV cache per recipe", "Results (90 % intervals)", "q8_0: ", "q4_0: FAIL", "  published  "):
        assert words in rest
    assert rest.count("$ kvgate check ") == 2


def test_a_verdict_of_another_policy_is_marked(run: Run) -> None:
    """It stands behind the run's own, which stay as they were, and says whose it is."""
    said("gate", "last", "--policy", "strict", "--store", str(run.folder / "kvgate.db"))
    text = shown(run)

    own, others = run.said.split("note: ")[0], text.split("\n", 1)[1]
    assert others.startswith(own)
    assert others.count(" (what if: by policy strict, not the run's own)\n") == 2


def test_without_its_document_the_numbers_are_missed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts and storage are the store's; where the numbers can be had again is said, and then they are there."""
    document = next(checked_document(run))
    kept = document.read_text()
    document.unlink()
    try:
        text = shown(run)
        assert "Results (90 % intervals)" not in text and "KV cache per recipe" in text and "q4_0: FAIL" in text
        assert "results: not beside the report any more: kvgate report 20" in text
        for wrong in ("{", '{"schema": "kvgate.check/1", "run": "another"}', "[]", '"' * 9):
            document.write_text(wrong)
            assert "results: not beside the report any more" in shown(run)
        again = run.folder / "reports" / document.parent.name / "again"  # where `kvgate report` puts it
        again.mkdir(parents=True)
        (again / "check.json").write_text(kept)
        assert "Results (90 % intervals)" in shown(run)
    finally:
        document.write_text(kept)


def checked_document(run: Run) -> Iterator[Path]:
    """Where the check has put its JSON document."""
    for line in run.said.splitlines():
        if line.startswith("report: "):
            yield Path(line.removeprefix("report: ")).with_name("check.json")


def test_a_run_of_an_earlier_kvgate_still_has_its_verdicts(run: Run) -> None:
    """Without the facts there is no storage table and no duration; findings and next steps are there."""
    with sqlite3.connect(run.folder / "kvgate.db") as c:
        c.execute("DELETE FROM evidence WHERE kind = 'facts'")
    text = shown(run)

    assert "KV cache per recipe" not in text
    assert text.count("        next  ") == 2 and "q4_0: FAIL" in text


def test_json_is_as_it_was(run: Run) -> None:
    """The document of `show --json` keeps its keys."""
    document = json.loads(shown(run, "--json"))

    assert document["schema"] == "kvgate.show/1"
    assert set(document) == {"schema", "run", "state", "created", "exit_code", "report", "verdicts", "manifest"}
    assert Path(document["report"]).name == "report.html"
