"""Scores, comparisons, evidence, verdicts: appended, never changed."""

from __future__ import annotations

import pytest
from store_samples import SUITE, answer, begin, case, read, verdict

from kvgate.core.errors import StoreError
from kvgate.core.observation import PairScore, Raw, Score, Work, content_digest
from kvgate.core.verdict import Decision
from kvgate.store.columns import NotJson
from kvgate.store.open import Store

ONE = case(1)
BASE, CANDIDATE = Work("base", ONE.id), Work("q8_0", ONE.id)


def run_with_answers(store: Store) -> str:
    run_id = begin(store, [ONE])
    for work in (BASE, CANDIDATE, Work("q8_0", ONE.id, 1)):
        answer(store, run_id, work, Raw({"text": "x"}))
    return run_id


def count(store: Store, table: str) -> int:
    with store._db.read() as c:
        return int(c.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() or 0)


def test_scores_come_back_once_a_key_is_complete(store: Store) -> None:
    """Scores stand beside the answers, in their order, as soon as none is missing."""
    run_id = run_with_answers(store)
    first, second = Score(0.1, ("a", "b")), Score(None, (), "no JSON \ud800")
    store.save_scores(run_id, SUITE, 1, [(BASE, 1, Score(1.0)), (CANDIDATE, 1, first)])
    assert read(store, run_id).scores == {("base", ONE.id): (Score(1.0),)}
    store.save_scores(run_id, SUITE, 1, [(Work("q8_0", ONE.id, 1), 1, second)])

    assert read(store, run_id).scores[("q8_0", ONE.id)] == (first, second)


def test_the_same_scorer_must_agree_with_itself(store: Store) -> None:
    """Re-scoring writes nothing if equal and is refused if not; a new version stands beside the old one."""
    run_id = run_with_answers(store)
    store.save_scores(run_id, SUITE, 1, [(BASE, 1, Score(0.1 + 0.2, ("x",)))])
    store.save_scores(run_id, SUITE, 1, [(BASE, 1, Score(0.1 + 0.2, ("x",)))])
    assert count(store, "scores") == 1
    for other in (Score(0.3, ("x",)), Score(0.1 + 0.2), Score(None, ("x",)), Score(0.1 + 0.2, ("x",), "e")):
        with pytest.raises(StoreError, match="scorer version 1"):
            store.save_scores(run_id, SUITE, 1, [(CANDIDATE, 1, Score(1.0)), (BASE, 1, other)])
    assert count(store, "scores") == 1
    store.save_scores(run_id, SUITE, 2, [(BASE, 1, Score(0.0))])

    assert read(store, run_id).scores == {("base", ONE.id): (Score(0.0),)}
    assert read(store, run_id, scorer_version=1).scores == {("base", ONE.id): (Score(0.1 + 0.2, ("x",)),)}


def test_a_score_needs_its_answer(store: Store) -> None:
    """NaN, a work that is not there, an attempt that is not there."""
    run_id = run_with_answers(store)
    with pytest.raises(NotJson):
        store.save_scores(run_id, SUITE, 1, [(BASE, 1, Score(float("nan")))])
    for work, attempt in ((Work("q4_0", ONE.id), 1), (BASE, 2)):
        with pytest.raises(StoreError, match=r"(?i)foreign key"):
            store.save_scores(run_id, SUITE, 1, [(work, attempt, Score(1.0))])
    assert count(store, "scores") == 0


def test_comparisons_are_refined_by_revision(store: Store) -> None:
    """The last revision counts; an equal one is not written again; the history stays."""
    run_id = run_with_answers(store)
    seen = PairScore("invalid_json", None, "at $.a", False)
    for pair in (seen, seen, PairScore("invalid_json", True, "at $.a"), PairScore("", False, repaired=True)):
        store.save_comparisons(run_id, SUITE, 1, "base", [("q8_0", ONE.id, pair)])
        assert read(store, run_id).pairs == {("q8_0", ONE.id): pair}
    store.save_comparisons(run_id, SUITE, 1, "other", [("q8_0", ONE.id, seen)])
    store.save_comparisons(run_id, SUITE, 1, "base", [("q4_0", ONE.id, seen)])

    assert count(store, "comparisons") == 5
    assert read(store, run_id).pairs == {("q8_0", ONE.id): PairScore("", False, repaired=True)}
    store.save_comparisons(run_id, SUITE, 2, "base", [("q8_0", ONE.id, seen)])
    assert read(store, run_id).pairs == {("q8_0", ONE.id): seen}


def test_final_scores_find_their_attempts(store: Store) -> None:
    """Scores of successful attempts and comparisons are written together; twice is once."""
    run_id = begin(store, [ONE])
    answer(store, run_id, BASE, Raw({"text": "x"}))
    answer(store, run_id, CANDIDATE, Raw(None, error="EngineTimeout: 5 s"))
    answer(store, run_id, CANDIDATE, Raw({"text": "y"}))
    pair = PairScore("text_differs", True)
    for _ in range(2):
        store.save_final(
            run_id,
            SUITE,
            1,
            ref_arm="base",
            scores=[(BASE, Score(1.0)), (CANDIDATE, Score(0.5))],
            pairs=[("q8_0", ONE.id, pair)],
        )
    found = read(store, run_id)

    assert found.scores == {("base", ONE.id): (Score(1.0),), ("q8_0", ONE.id): (Score(0.5),)}
    assert found.pairs == {("q8_0", ONE.id): pair}
    assert (count(store, "scores"), count(store, "comparisons")) == (2, 1)
    with pytest.raises(StoreError, match="not done"):
        store.save_final(run_id, SUITE, 1, ref_arm="base", scores=[(Work("x", ONE.id), Score(1.0))], pairs=[])


def test_evidence_is_content_addressed(store: Store) -> None:
    """The same document twice is one row; kinds can be asked for."""
    run_id = begin(store)
    body = {"lines": ["\ud800", "x\0"], "n": 1}
    sha = store.add_evidence(run_id, "log", "base", body)

    assert sha == store.add_evidence(run_id, "log", "base", dict(reversed(body.items()))) == content_digest(body)
    store.add_evidence(run_id, "plan", "", {})
    assert [(e.kind, e.arm, e.body) for e in store.evidence(run_id)] == [("log", "base", body), ("plan", "", {})]
    assert [e.sha256 for e in store.evidence(run_id, "log")] == [sha]
    with pytest.raises(NotJson):
        store.add_evidence(run_id, "log", "base", {"x": float("nan")})


def test_verdicts_are_kept(store: Store) -> None:
    """One for each candidate, policy and records; judged anew, the newest is read and the old one stays."""
    run_id = begin(store)
    first, other = verdict(), verdict(candidate="q4_0", decision=Decision.FAIL)
    for v in (first, other, first):
        store.save_verdict(run_id, v)
    assert store.verdicts(run_id) == [first.to_json(), other.to_json()]
    assert count(store, "verdicts") == 2
    changed = verdict(decision=Decision.INCONCLUSIVE)
    store.save_verdict(run_id, changed)
    stricter = verdict(policy_digest="p2")
    store.save_verdict(run_id, stricter)

    assert store.verdicts(run_id) == [other.to_json(), changed.to_json(), stricter.to_json()]
    assert count(store, "verdicts") == 4
