"""Runs, arms, cases."""

from __future__ import annotations

import json
import re

import pytest
from store_samples import SUITE, begin, case, deployment

from kvgate.core.deployment import Engaged, Engagement
from kvgate.core.errors import StoreError, UserError
from kvgate.core.observation import Case
from kvgate.store import keys, schema
from kvgate.store.columns import NotJson
from kvgate.store.open import Store
from kvgate.store.rows import ArmRow


def test_a_run_comes_back(store: Store) -> None:
    """A new run is running, has a readable id, and keeps its manifest."""
    run_id = store.begin_run("key", {"b": [1, None, "ü"], "a": {"x": 0.1}})
    row = store.run_for("key")

    assert row is not None and row == store.find_run(run_id)
    assert re.fullmatch(r"\d{8}-\d{4}-[0-9a-f]{6}", run_id)
    assert (row.run_id, row.key, row.state) == (run_id, "key", "running")
    assert row.manifest == {"b": [1, None, "ü"], "a": {"x": 0.1}}
    assert store.run_for("other") is None


def test_the_newest_run_counts_even_if_the_clock_goes_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are ordered by when they began, not by what the clock said."""
    first = begin(store)
    monkeypatch.setattr(keys, "now_text", lambda: "1999-01-01T00:00:00.000000+00:00")
    monkeypatch.setattr("kvgate.store.store.now_text", keys.now_text)
    second = begin(store)

    assert [r.run_id for r in store.runs()] == [second, first]
    assert store.find_run("last").run_id == second
    assert store.run_for("key") == store.find_run(second)
    assert store.find_run("last").created.startswith("1999")


def test_states(store: Store) -> None:
    """A state is one of four; another word is a mistake of the caller, and a run that is gone one of the store."""
    run_id = begin(store)
    for state in ("finished", "invalid", "interrupted", "running"):
        store.set_state(run_id, state)
        assert store.find_run(run_id).state == state
    with pytest.raises(ValueError, match="done"):
        store.set_state(run_id, "done")
    with pytest.raises(StoreError, match="no longer has the run 'x'; restore a copy"):
        store.set_state("x", "finished")


def test_find_run_by_prefix(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unique beginning is enough; none and several are told with what there is."""
    with pytest.raises(UserError, match="has no runs"):
        store.find_run("last")
    ids = iter(["20260101-0000-aaaaaa", "20260101-0000-aabbbb", "20270101-0000-cccccc"])
    monkeypatch.setattr("kvgate.store.store._new_id", lambda c: next(ids))
    a, b, c = (store.begin_run("k", {}) for _ in range(3))

    assert store.find_run("2027").run_id == c
    assert store.find_run("20260101-0000-aaa").run_id == a
    for wrong, said in (
        ("2026", "2 runs begin with '2026'"),
        ("x", "no run begins with 'x'"),
        ("", "no run"),
        ("%", "no run"),
        ("20260101-0000-AAA", "no run"),
    ):
        with pytest.raises(UserError, match=said) as e:
            store.find_run(wrong)
        assert b in str(e.value) and "kvgate runs" in str(e.value)


def test_many_runs_make_a_short_message(store: Store) -> None:
    """The message lists six ids and counts the rest."""
    for _ in range(9):
        store.begin_run("k", {})
    with pytest.raises(UserError, match="and 3 more"):
        store.find_run("zzz")


def test_passwords_in_urls_are_not_stored(store: Store) -> None:
    """Manifest, arms, deployments and evidence keep the user of a URL, not the password."""
    url, clean = "https://me:s3cret@host:8000/v1", "https://me:***@host:8000/v1"
    run_id = store.begin_run("k", {"attach": [url], "postgresql://a:s3c/ret@h": 1})
    store.save_arm(run_id, ArmRow("base", "serving", "base", url, (), deployment(build=url)))
    store.add_evidence(run_id, "log", "base", {"lines": [f"listening on {url}"]})
    with store._db.read() as c:
        tables = [t.name for t in schema.metadata.sorted_tables]
        dump = "".join(str(c.exec_driver_sql(f"SELECT * FROM {name}").all()) for name in tables)

    assert store.find_run(run_id).manifest["attach"] == [clean]
    assert store.arms(run_id)[0].recipe == clean
    assert store.evidence(run_id)[0].body == {"lines": [f"listening on {clean}"]}
    assert "s3cret" not in dump


def test_a_manifest_must_be_json(store: Store) -> None:
    """NaN and objects are refused, and no run begins."""
    for wrong in ({"x": float("nan")}, {"x": object()}, {1: 2}):
        with pytest.raises(NotJson):
            store.begin_run("k", wrong)  # type: ignore[arg-type]
    assert store.runs() == []


def test_arms_come_back(store: Store) -> None:
    """An arm keeps all it was recorded with, once a place."""
    run_id = store.begin_run("k", {})
    engaged = Engaged(Engagement.CONFIRMED, "the log says so", ("K (q8_0)",))
    rows = [
        ArmRow("base", "panel", "base", "native", (), deployment(pid=7), engaged),
        ArmRow("base", "serving", "base", "native", (), deployment(pid=8), engaged),
        ArmRow("batch", "serving", "floor", "native", ("slots", "ubatch_tokens"), None, None),
    ]
    for row in reversed(rows):
        store.save_arm(run_id, row)

    assert store.arms(run_id) == rows


def test_another_start_of_an_arm_replaces_what_was_observed(store: Store) -> None:
    """A restart changes process and log; another recipe under the same name is refused."""
    run_id = begin(store)
    again = ArmRow("base", "panel", "base", "native", (), deployment(pid=99, slots=4))
    store.save_arm(run_id, again)

    assert store.arms(run_id) == [again]
    for wrong in (
        ArmRow("base", "panel", "base", "q8_0", (), None),
        ArmRow("base", "panel", "floor", "native"),
        ArmRow("base", "panel", "base", "native", ("slots",)),
    ):
        with pytest.raises(StoreError, match="arm 'base' has"):
            store.save_arm(run_id, wrong)
    assert store.arms(run_id) == [again]
    with pytest.raises(ValueError, match="role"):
        ArmRow("x", "panel", "judge", "native")


def test_equal_deployments_are_stored_once(store: Store) -> None:
    """Runs and arms share the body of a deployment, not its process."""
    for key, pid in (("a", 1), ("b", 2)):
        run_id = store.begin_run(key, {})
        store.save_arm(run_id, ArmRow("base", "panel", "base", "native", (), deployment(pid=pid)))
        assert store.arms(run_id)[0].deployment == deployment(pid=pid)
    with store._db.read() as c:
        assert c.exec_driver_sql("SELECT count(*) FROM deployments").scalar() == 1


def test_a_case_keeps_the_order_of_its_keys(store: Store) -> None:
    """A resumed run asks the same question: a schema's grammar follows the order of its properties."""
    body = {"schema": {"room": 1, "device": 2, "a": {"z": 1, "b": 2}}}
    run_id = begin(store, [made := Case.make(SUITE, cluster="c", body=body)])

    again = store.cases(run_id, made.suite)[made.id]

    assert json.dumps(again.body) == json.dumps(body)


def test_cases_are_idempotent(store: Store) -> None:
    """The same cases again change nothing; new ones are added; the order is that of their ids."""
    run_id = begin(store, [case(1), case(2)])
    store.add_cases(run_id, [case(3), case(2)])
    want = {c.id: c for c in sorted([case(1), case(2), case(3)], key=lambda c: c.id)}

    assert list(store.cases(run_id, "golden").items()) == list(want.items())
    assert store.cases(run_id, "needle") == {}


def test_a_case_cannot_change(store: Store) -> None:
    """Other content under the same id is refused, whole."""
    run_id = begin(store, [case(1)])
    one = case(1)
    for changed in (
        Case(one.id, one.suite, "other", one.bucket, one.category, one.body),
        Case(one.id, one.suite, one.cluster, one.bucket, one.category, {**one.body, "n": 2}),
    ):
        with pytest.raises(StoreError, match="other content"):
            store.add_cases(run_id, [case(5), changed])
        with pytest.raises(StoreError, match="two different cases"):
            store.add_cases(run_id, [one, changed])

    assert store.cases(run_id, "golden") == {one.id: one}


def test_a_case_needs_its_run(store: Store) -> None:
    """Foreign keys are on."""
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        store.add_cases("nobody", [case(1)])
