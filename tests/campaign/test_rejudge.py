"""Stored runs again: other policies, re-scoring, reports without outputs, two runs side by side."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import spec_of

from kvgate.campaign.check import Outcome, check
from kvgate.campaign.progress import Silent
from kvgate.campaign.rejudge import _apart, compare_runs, gate_run, report_run, rescore
from kvgate.cli.main import main
from kvgate.core.errors import StoreError, UserError
from kvgate.core.estimate import Estimate
from kvgate.core.observation import Score
from kvgate.core.verdict import Decision
from kvgate.gate.policy import load_policy, parse_policy
from kvgate.store.open import open_store
from kvgate.suites.golden import SUITE as GOLDEN

LENIENT = """
schema = "kvgate.policy/1"
name = "mine"
alpha = 0.05
floor = { arms = ["batch", "restart", "twin", "ubatch32"], max = {} }
[[rule]]
id = "kl"
use = "ceiling"
metric = "prefill.kl_mean"
excess_max = LIMIT
"""


@pytest.fixture(scope="module")
def ran(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A finished run of q8_0, which breaks its answers, on the fake engine."""
    folder = tmp_path_factory.mktemp("ran")
    script = {"per_recipe": {"q8_0": {"break_rate": 0.5}}}
    return folder / "kvgate.db", check(spec_of(smollm2, folder, script), Silent())


@pytest.fixture
def done(ran: tuple[Path, Outcome], tmp_path: Path) -> Outcome:
    """That run in a store of the test's own."""
    shutil.copy(ran[0], tmp_path / "kvgate.db")
    return ran[1]


def mine(limit: str) -> Any:
    return parse_policy(LENIENT.replace("LIMIT", limit), "mine")


def test_a_stored_run_is_judged_as_it_was(done: Outcome, tmp_path: Path) -> None:
    """The same policy on the stored records gives the same verdict, findings and report numbers."""
    with open_store(tmp_path / "kvgate.db") as store:
        again = gate_run(store, "last", load_policy("smoke"), tmp_path / "again")
        rows = store.verdicts(done.view.run_id)

    assert [v.to_json() for v in again.view.verdicts] == [v.to_json() for v in done.view.verdicts]
    assert again.view.evidence == done.view.evidence
    assert dataclasses.replace(again.view, records={}) == dataclasses.replace(done.view, records={})
    assert len(rows) == len(done.view.verdicts), "the same verdict is not stored twice"


def test_another_policy_is_another_verdict(done: Outcome, tmp_path: Path) -> None:
    """A limit below what was measured fails, one above passes; the first verdict stays."""
    with open_store(tmp_path / "kvgate.db") as store:
        passed = gate_run(store, done.view.run_id[:8], mine("5.0"))
        failed = gate_run(store, "last", mine("0.0"))
        kept = {v["policy_digest"] for v in store.verdicts(done.view.run_id)}

    assert passed.exit_code == 0
    assert [v.decision for v in failed.view.verdicts] == [Decision.FAIL]
    assert len(kept) == 3
    assert passed.files["report.html"].exists() and passed.files["report.html"] != failed.files["report.html"]


def test_a_mistyped_floor_is_refused(done: Outcome, tmp_path: Path) -> None:
    """As check and policy check do; no verdict is added."""
    wrong = parse_policy(LENIENT.replace("LIMIT", "5.0").replace('"twin"', '"twinn"'), "mine")
    with open_store(tmp_path / "kvgate.db") as store:
        with pytest.raises(UserError, match="floor arm 'twinn' is not known; allowed: batch, restart"):
            gate_run(store, "last", wrong)
        assert len(store.verdicts(done.view.run_id)) == len(done.view.verdicts)


def test_a_run_without_engine_files_is_judged(done: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the model's file nor an engine is touched."""

    def gone(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the model or the engine was touched")

    monkeypatch.setattr("kvgate.campaign.prepare.resolve_model", gone)
    monkeypatch.setattr("kvgate.engines.fake.DRIVER.__class__.open", gone)
    with open_store(tmp_path / "kvgate.db") as store:
        assert gate_run(store, "last", load_policy("smoke")).exit_code == done.exit_code


def test_rescoring_verifies_an_unchanged_version(done: Outcome, tmp_path: Path) -> None:
    """Nothing is written where the version is there; the panel says why it cannot be scored again."""
    with open_store(tmp_path / "kvgate.db") as store:
        run_id, found = rescore(store, "last")
        assert store.scorer_versions(run_id, "golden") == (GOLDEN.scorer_version,)
    by_name = {f.suite: f for f in found}

    assert run_id == done.view.run_id
    assert by_name["golden"].answers > 12 and by_name["golden"].before == (GOLDEN.scorer_version,)
    assert "only a new check" in by_name["fidelity"].why_not


def test_a_newer_scorer_is_appended(done: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are kept; a scorer that changes without a new version is refused."""
    honest = type(GOLDEN).score

    def other(self: Any, case: Any, raw: Any) -> Score:
        return dataclasses.replace(honest(self, case, raw), flags=("changed",))

    monkeypatch.setattr(type(GOLDEN), "score", other)
    with open_store(tmp_path / "kvgate.db") as store:
        with pytest.raises(StoreError, match="raise the scorer's version"):
            rescore(store, "last")
        monkeypatch.setattr(type(GOLDEN), "scorer_version", GOLDEN.scorer_version + 1)
        run_id, _ = rescore(store, "last")
        assert store.scorer_versions(run_id, "golden") == (GOLDEN.scorer_version - 1, GOLDEN.scorer_version)


def test_a_report_without_outputs(done: Outcome, tmp_path: Path) -> None:
    """No prompt and no answer is in any document; with outputs they are."""
    with open_store(tmp_path / "kvgate.db") as store:
        bare = report_run(store, "last", outputs=False)
        full = report_run(store, "last", outputs=True)
        cases = [c.body for c in store.cases(done.view.run_id, "golden").values()]
    prompts = [str(m["content"])[:40] for body in cases for m in body["messages"] if m["role"] == "user"]
    said = [path.read_text() for path in bare.files.values()]

    assert prompts and all(p not in text for p in prompts for text in said)
    assert bare.files["report.html"].stat().st_size < full.files["report.html"].stat().st_size


def test_two_runs_side_by_side(fake_check: Callable[..., Outcome], tmp_path: Path) -> None:
    """A worse candidate in the second run is exit 1; the same twice is 0; the same run is refused."""
    first = fake_check().view.run_id
    second = fake_check(fresh=True).view.run_id
    with open_store(tmp_path / "kvgate.db") as store:
        same = compare_runs(store, first, second)
        with pytest.raises(UserError, match="are the same run"):
            compare_runs(store, first, first)

    assert same.same_deployment and all(a is b for a, b in same.decisions.values())
    assert same.metrics and not any(m.apart for m in same.metrics)


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ((1.0, 2.0), (2.1, 3.0), True),
        ((2.1, 3.0), (1.0, 2.0), True),
        ((1.0, 2.0), (2.0, 3.0), False),
        ((1.0, 4.0), (2.0, 3.0), False),
        ((1.0, None), (5.0, 6.0), None),
    ],
)
def test_intervals_lie_apart_or_touch(a: Any, b: Any, apart: bool | None) -> None:
    """Either side may be the higher one; an open end says nothing."""
    one, two = (Estimate(1.0, lo, hi, 0.9, 9, 9, "1", "m", "open") for lo, hi in (a, b))

    assert _apart(one, two) is apart and _apart(one, None) is None


def test_other_settings_are_named(fake_check: Callable[..., Outcome], tmp_path: Path) -> None:
    """Runs under different settings are shown, with what differs, and never as the KV cache's doing."""
    first = fake_check(suites=("needle",)).view.run_id
    second = fake_check(suites=("needle",), context_tokens=2048).view.run_id
    where = ["--store", str(tmp_path / "kvgate.db")]
    with open_store(tmp_path / "kvgate.db") as store:
        delta = compare_runs(store, first, second)

    assert not delta.same_deployment
    assert {field for _, field, _, _ in delta.changed} >= {"context_tokens"}
    assert main(["compare", first, second, *where]) == 3


def test_other_questions_are_named(
    fake_check: Callable[..., Outcome], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another seed or other suites ask something else: said, and exit 3, whatever the decisions are."""
    first = fake_check(suites=("needle",)).view.run_id
    seeded = fake_check(suites=("needle",), seed=7).view.run_id
    again = fake_check(suites=("needle",), fresh=True).view.run_id
    other = fake_check(suites=("golden",)).view.run_id
    where = ["--store", str(tmp_path / "kvgate.db")]

    assert main(["compare", first, again, *where]) == 0
    assert "cases" not in capsys.readouterr().out
    assert main(["compare", first, seeded, *where]) == 3
    assert "needle: 4 and 4 cases, 0 of them the same" in capsys.readouterr().out
    assert main(["compare", first, other, *where, "--json"]) == 3
    questions = json.loads(capsys.readouterr().out)["questions"]
    assert {q["suite"]: (q["a"], q["b"], q["both"]) for q in questions} == {"needle": (4, 0, 0), "golden": (0, 12, 0)}


def test_the_verbs(done: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gate, score, report and policy through the command line: one JSON document each."""
    where = ["--store", str(tmp_path / "kvgate.db"), "--json"]
    policy = tmp_path / "mine.toml"
    policy.write_text(LENIENT.replace("LIMIT", "5.0"))
    schemas = []
    for argv, code in (
        (["gate", "last", "--policy", str(policy), *where], 0),
        (["score", "last", *where], 0),
        (["report", "last", "--no-outputs", *where], done.exit_code),
        (["policy", "show", "strict", "--json"], 0),
        (["policy", "check", str(policy), "--json"], 0),
    ):
        assert main(argv) == code, argv
        schemas.append(json.loads(capsys.readouterr().out)["schema"])

    assert schemas == [f"kvgate.{s}/1" for s in ("check", "score", "report", "policy.show", "policy.check")]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["gate", "last", "--policy", "nope"], "no policy 'nope'; allowed: default, smoke, strict"),
        (["gate", "20991231"], "no run begins with '20991231'"),
        (["score", "x"], "no run begins with 'x'"),
        (["compare", "last", "last"], "are the same run"),
        (["policy", "check", "/nonexistent"], "no policy"),
        (["report", "last", "--policy", "nope"], "no policy"),
    ],
)
def test_wrong_input_is_one_line(
    done: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    """Exit 2 and one line with what is allowed."""
    where = [] if argv[0] == "policy" else ["--store", str(tmp_path / "kvgate.db")]
    assert main([*argv, *where]) == 2
    err = capsys.readouterr().err.strip()

    assert said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["gate", "report"])
@pytest.mark.parametrize("folder", ["kvgate.db", "x\udcff", "n" * 300])
def test_a_folder_that_cannot_be_is_refused_first(
    done: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, folder: str
) -> None:
    """A file's name, bytes that are no text, a name too long: exit 2, and no verdict is added."""
    strict = ["--policy", "strict", "--store", str(tmp_path / "kvgate.db")]
    assert main([verb, "last", "--out", str(tmp_path / folder), *strict]) == 2
    err = capsys.readouterr().err.strip()

    assert "reports cannot be written into" in err and len(err.splitlines()) == 1
    with open_store(tmp_path / "kvgate.db") as store:
        assert len(store.verdicts(done.view.run_id)) == len(done.view.verdicts)


@pytest.mark.parametrize("verb", ["gate", "score", "report"])
def test_a_run_of_an_earlier_kvgate_is_one_line(
    done: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """It has verdicts but no facts: not called unfinished, and still shown."""
    with sqlite3.connect(tmp_path / "kvgate.db") as c:
        c.execute("DELETE FROM evidence WHERE kind = 'facts'")
    where = ["--store", str(tmp_path / "kvgate.db")]

    assert main([verb, "last", *where]) == 2
    assert "was recorded by an earlier kvgate" in capsys.readouterr().err
    assert main(["show", "last", *where]) == done.exit_code


@pytest.mark.parametrize("verb", ["gate", "score", "report", "show", "runs"])
def test_a_store_that_is_not_there_is_not_made(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typing mistake in --store makes no new store."""
    assert main([verb, "--store", str(tmp_path / "typo.db")]) == 2

    assert "there is no store at" in capsys.readouterr().err
    assert not (tmp_path / "typo.db").exists()


def test_an_unjudged_run_is_refused(tmp_path: Path) -> None:
    """A run that was interrupted before its judgement says how to go on."""
    with open_store(tmp_path / "kvgate.db") as store:
        store.begin_run("key", {"suites": {}})
        with pytest.raises(UserError, match="has not come to a judgement yet; run the same kvgate check again"):
            gate_run(store, "last", load_policy("smoke"))
