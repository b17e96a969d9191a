"""What is concluded from a run: scores, comparisons, evidence, verdicts. Appended, never changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from kvgate.core.errors import StoreError
from kvgate.core.observation import PairScore, Score, Work, content_digest
from kvgate.core.verdict import Verdict
from kvgate.store import schema as t
from kvgate.store.columns import NotJson, canonical, pack_json, without_passwords
from kvgate.store.database import Database
from kvgate.store.keys import at, fetch, insert, later_text, suite_version_of, work_key


class Judged:
    """The part of `Store` that keeps conclusions; every method is one transaction."""

    _db: Database

    def save_scores(
        self, run_id: str, suite: str, scorer_version: int, rows: Iterable[tuple[Work, int, Score]]
    ) -> None:
        """Append scores of (work, attempt). Scores of this version that are there must be equal.

        Raises:
            StoreError: the same scorer version gives another score than before.
        """
        with self._db.write() as c:
            version = suite_version_of(c, run_id, suite)
            self._add_scores(c, run_id, suite, version, scorer_version, rows)

    def save_comparisons(
        self,
        run_id: str,
        suite: str,
        scorer_version: int,
        ref_arm: str,
        rows: Iterable[tuple[str, str, PairScore]],
    ) -> None:
        """Append comparisons of (arm, case id) with `ref_arm`. One that differs from the last is a new revision."""
        with self._db.write() as c:
            _add_comparisons(c, run_id, suite, scorer_version, ref_arm, rows)

    def save_final(
        self,
        run_id: str,
        suite: str,
        scorer_version: int,
        *,
        ref_arm: str,
        scores: Iterable[tuple[Work, Score]],
        pairs: Iterable[tuple[str, str, PairScore]],
    ) -> None:
        """Scores of finished work and comparisons in one transaction; the successful attempts are looked up.

        Raises:
            StoreError: a score of work that is not done, or see `save_scores`.
        """
        with self._db.write() as c:
            version = suite_version_of(c, run_id, suite)
            done = sa.select(t.work.c.arm, t.work.c.case_id, t.work.c.repeat, t.work.c.attempt).where(
                at(t.work, run_id=run_id, suite=suite, suite_version=version, state="done")
            )
            attempts = {Work(arm, case_id, repeat): attempt for arm, case_id, repeat, attempt in c.execute(done)}
            rows = []
            for work, score in scores:
                if work not in attempts:
                    raise StoreError(f"run {run_id}: {suite}: a score of {work}, which is not done")
                rows.append((work, attempts[work], score))
            self._add_scores(c, run_id, suite, version, scorer_version, rows)
            _add_comparisons(c, run_id, suite, scorer_version, ref_arm, pairs)

    def _add_scores(
        self,
        c: sa.Connection,
        run_id: str,
        suite: str,
        version: int,
        scorer_version: int,
        rows: Iterable[tuple[Work, int, Score]],
    ) -> None:
        where = at(t.scores, run_id=run_id, suite=suite, suite_version=version, scorer_version=scorer_version)
        there = {
            (Work(r["arm"], r["case_id"], r["repeat"]), r["attempt"]): Score(r["value"], tuple(r["flags"]), r["error"])
            for r in fetch(c, sa.select(t.scores).where(where))
        }
        new = []
        for work, attempt, score in rows:
            if score.value is not None and not math.isfinite(score.value):
                raise NotJson(f"{suite} {work.case_id}: score {score.value} is not a number")
            old = there.setdefault((work, attempt), score)
            if old is score:
                key = work_key(run_id, suite, version, work, attempt)
                new.append(key | {"scorer_version": scorer_version, **_score(score)})
            elif old != score:
                raise StoreError(
                    f"run {run_id}: {suite} {work.arm} {work.case_id} #{work.repeat}: scorer version {scorer_version} "
                    f"gave {old.value} before and gives {score.value} now: raise the scorer's version"
                )
        insert(c, t.scores, new)

    # evidence, verdicts

    def add_evidence(self, run_id: str, kind: str, arm: str, body: Mapping[str, Any]) -> str:
        """Record a document and give its sha256; the same again writes nothing."""
        clean = without_passwords(body)
        digest = content_digest_of(clean, f"evidence {kind}")
        key = {"run_id": run_id, "kind": kind, "arm": arm, "sha256": digest}
        with self._db.write() as c:
            if not c.execute(sa.select(t.evidence.c.sha256).where(at(t.evidence, **key))).first():
                c.execute(sa.insert(t.evidence).values(**key, body=pack_json(clean, f"evidence {kind}")))
        return digest

    def save_verdict(self, run_id: str, verdict: Verdict) -> None:
        """Record a verdict; the same again writes nothing, another on the same records is a new revision."""
        body = verdict.to_json()
        key = {
            "run_id": run_id,
            "candidate": verdict.candidate,
            "policy_digest": verdict.policy_digest,
            "records_digest": verdict.records_digest,
        }
        with self._db.write() as c:
            query = sa.select(t.verdicts.c.revision, t.verdicts.c.body).where(at(t.verdicts, **key))
            last = max(c.execute(query).all(), key=lambda r: r.revision, default=None)
            if last is None or canonical(last.body, "verdict") != canonical(body, "verdict"):
                revision = 1 if last is None else last.revision + 1
                # `verdicts` gives the newest; a clock that was set back must not make an older one of it.
                before = c.execute(sa.select(sa.func.max(t.verdicts.c.created)).where(at(t.verdicts, run_id=run_id)))
                created = later_text(before.scalar())
                c.execute(sa.insert(t.verdicts).values(**key, revision=revision, created=created, body=body))


def content_digest_of(value: Any, what: str) -> str:
    """`core.content_digest`, with NotJson for what JSON cannot hold."""
    canonical(value, what)
    return content_digest(value)


def _score(score: Score) -> dict[str, Any]:
    return {"value": score.value, "flags": list(score.flags), "error": score.error}


def _add_comparisons(
    c: sa.Connection,
    run_id: str,
    suite: str,
    scorer_version: int,
    ref_arm: str,
    rows: Iterable[tuple[str, str, PairScore]],
) -> None:
    there = last_comparisons(c, run_id, suite, scorer_version, ref_arm)
    new = []
    for arm, case_id, pair in rows:
        revision, old = there.get((arm, case_id), (0, None))
        if old == pair:
            continue
        there[(arm, case_id)] = (revision + 1, pair)
        new.append(
            {
                "run_id": run_id,
                "arm": arm,
                "ref_arm": ref_arm,
                "suite": suite,
                "case_id": case_id,
                "scorer_version": scorer_version,
                "revision": revision + 1,
                "break_class": pair.break_class,
                "confirmed": pair.confirmed,
                "detail": pair.detail,
                "repaired": pair.repaired,
            }
        )
    insert(c, t.comparisons, new)


def last_comparisons(
    c: sa.Connection, run_id: str, suite: str, scorer_version: int, ref_arm: str
) -> dict[tuple[str, str], tuple[int, PairScore]]:
    """(arm, case id) -> highest revision and its comparison."""
    where = at(t.comparisons, run_id=run_id, suite=suite, scorer_version=scorer_version, ref_arm=ref_arm)
    query = sa.select(t.comparisons).where(where).order_by(t.comparisons.c.revision)
    return {
        (r["arm"], r["case_id"]): (
            r["revision"],
            PairScore(r["break_class"], r["confirmed"], r["detail"], r["repaired"]),
        )
        for r in fetch(c, query)
    }
