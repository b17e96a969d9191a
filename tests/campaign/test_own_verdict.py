"""A run's own verdict is by the policy of its check; those of other policies stand beside it, never in its place."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import spec_of

from kvgate.campaign.check import Outcome, check
from kvgate.campaign.measured import keep_facts, measured_of
from kvgate.campaign.own import verdicts_of
from kvgate.campaign.progress import Silent
from kvgate.campaign.rejudge import report_run
from kvgate.cli.main import main
from kvgate.store.open import open_store

#: Fails whatever is measured, as `golden` alone breaks nothing here.
HARSH = """
schema = "kvgate.policy/1"
name = "harsh"
[[rule]]
id = "kl"
use = "ceiling"
metric = "prefill.kl_mean"
max = -1.0
"""


@pytest.fixture(scope="module")
def ran(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A run of two equal arms on the fake engine, judged by smoke."""
    folder = tmp_path_factory.mktemp("own")
    return folder / "kvgate.db", check(spec_of(smollm2, folder, {}), Silent())


@pytest.fixture
def where(ran: tuple[Path, Outcome], tmp_path: Path) -> list[str]:
    """Options that name that run in a store of the test's own, after `kvgate gate` by a policy that fails it."""
    shutil.copy(ran[0], tmp_path / "k.db")
    (tmp_path / "harsh.toml").write_text(HARSH)
    where = ["--store", str(tmp_path / "k.db")]
    assert main(["gate", "last", "--policy", str(tmp_path / "harsh.toml"), *where]) == 1
    return where


def test_runs_lists_the_runs_own_verdict(
    ran: tuple[Path, Outcome], where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A what-if changes nothing in the list but a word that it is there."""
    capsys.readouterr()
    main(["runs", "--json", *where])
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    main(["runs", *where])
    text = capsys.readouterr().out
    headline = ran[1].view.verdicts[0].headline()

    assert row["verdicts"] == {"q8_0": headline} and "FAIL" not in headline
    assert (row["policy"], row["also_judged_by"]) == ("smoke", ["harsh"])
    words = " ".join(text.split())
    assert f"q8_0 {headline} (by smoke; also judged by harsh: kvgate show {row['run']})" in words


def test_documents_are_by_the_policy_of_the_newest_leg(where: list[str], tmp_path: Path) -> None:
    """A run that was resumed with another policy is reported by that one."""
    with open_store(where[1]) as store:
        measured = measured_of(store, store.runs()[0].run_id)
        newest = {"policy": str(tmp_path / "harsh.toml"), "duration_s": measured.facts.duration_s + 1}
        assert report_run(store, "last", outputs=False).view.policy == "smoke"
        keep_facts(replace(measured, facts=measured.facts.model_copy(update=newest)))

        assert report_run(store, "last", outputs=False).view.policy == "harsh"


def test_show_has_both_and_exits_with_the_runs_own(
    ran: tuple[Path, Outcome], where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The own verdict first; the what-if is called that, and does not set the exit code."""
    capsys.readouterr()
    assert main(["show", "last", *where]) == ran[1].exit_code != 1
    text = capsys.readouterr().out
    main(["show", "last", "--json", *where])
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]

    assert [(v["policy"], v["own"]) for v in verdicts] == [("smoke", True), ("harsh", False)]
    assert "q8_0: FAIL (what if: by policy harsh, not the run's own)" in text


def test_a_run_of_an_earlier_kvgate_owns_its_first_policy(where: list[str], tmp_path: Path) -> None:
    """Its facts hold no policy: the first that judged it was the check's."""
    with sqlite3.connect(tmp_path / "k.db") as c:
        c.execute("DELETE FROM evidence WHERE kind = 'facts'")
    with open_store(tmp_path / "k.db") as store:
        own, others = verdicts_of(store, store.find_run("last").run_id)

    assert [v["policy"] for v in own] == ["smoke"] and [v["policy"] for v in others] == ["harsh"]
