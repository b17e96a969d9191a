"""What is read back. Everything is sorted here, not by the database: collations differ between databases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from kvgate.core.deployment import Deployment, Engaged, Engagement
from kvgate.core.errors import StoreError
from kvgate.core.observation import Case, PairScore, PositionBlock, Raw, Records, Score, Work, content_digest
from kvgate.store import schema as t
from kvgate.store.columns import unpack_json
from kvgate.store.database import Database
from kvgate.store.judged import last_comparisons
from kvgate.store.keys import at, fetch, suite_version_of
from kvgate.store.rows import ArmRow, EvidenceRow

#: Text of an attempt whose process died and that nobody has repeated yet.
LOST = "lost: kvgate ended while this ran"


class Answered(NamedTuple):
    """A successful attempt and its answer."""

    work: Work
    attempt: int
    raw: Raw


class Reader:
    """The reading half of `Store`."""

    _db: Database

    def arms(self, run_id: str) -> Sequence[ArmRow]:
        """Arms by name and place, with what was last observed of each."""
        query = (
            sa.select(t.arms, t.deployments.c.body)
            .join_from(t.arms, t.deployments, isouter=True)
            .where(at(t.arms, run_id=run_id))
        )
        with self._db.read() as c:
            rows = [_arm(r) for r in fetch(c, query)]
        return sorted(rows, key=lambda r: (r.arm, r.place))

    def cases(self, run_id: str, suite: str) -> Mapping[str, Case]:
        """Cases by id, in the order of their ids."""
        with self._db.read() as c:
            return _cases(c, run_id, suite)

    def done(self, run_id: str, suite: str, suite_version: int) -> Mapping[Work, str]:
        """Work that needs no run: "done" once an attempt succeeded, "failed" while the newest attempt failed.

        Work whose newest attempt is running or lost is not in it, whatever came before: a retry was in flight.
        """
        with self._db.read() as c:
            newest = _newest(c, run_id, suite, suite_version)
        return {w: r["state"] for w, r in sorted(newest.items(), key=_by_work) if r["state"] in ("done", "failed")}

    def errors(self, run_id: str, suite: str) -> Mapping[str, Sequence[str]]:
        """Arm -> one text for each piece of its work that never succeeded: the newest attempt's error.

        Panel work stands under "*". Work that is running now, or was never begun, is not in it.
        """
        out: dict[str, list[str]] = defaultdict(list)
        with self._db.read() as c:
            newest = _newest(c, run_id, suite, suite_version_of(c, run_id, suite))
        for work, row in sorted(newest.items(), key=_by_work):
            if row["state"] in ("failed", "lost"):
                out[work.arm].append(row["error"] or LOST)
        return dict(out)

    def answered(self, run_id: str, suite: str) -> Sequence[Answered]:
        """Every piece of work that succeeded, by case, arm and repeat: which repeat and attempt each raw is."""
        with self._db.read() as c:
            return _answered(c, run_id, suite, suite_version_of(c, run_id, suite))

    def records(
        self,
        run_id: str,
        suite: str,
        *,
        base: str,
        floors: Sequence[str],
        candidates: Sequence[str],
        scorer_version: int | None = None,
    ) -> Records:
        """All that a suite saw in a run, of these arms and of panel work ("*").

        Failed work is left out (see `errors`). Scores and pairs are those of `scorer_version`, by default of the
        newest that is there; a key of `scores` is present once all its answers are scored. The digest covers cases,
        answers and positions: see `store.digest`.

        Raises:
            StoreError: a damaged row, named.
        """
        from kvgate.store.digest import records_digest

        wanted = {base, *floors, *candidates, t.ALL_ARMS}
        with self._db.read() as c:
            version = suite_version_of(c, run_id, suite)
            answered = [a for a in _answered(c, run_id, suite, version) if a.work.arm in wanted]
            found = Records(
                suite=suite,
                base=base,
                floors=tuple(floors),
                candidates=tuple(candidates),
                cases=_cases(c, run_id, suite),
                raws={key: tuple(a.raw for a in group) for key, group in _by_key(answered).items()},
                scores=_scores(c, run_id, suite, version, scorer_version, answered),
                pairs=_pairs(c, run_id, suite, scorer_version, base, {*floors, *candidates}),
                positions=_positions(c, run_id, suite, base, wanted),
            )
        return replace(found, digest=records_digest(found))

    def scorer_versions(self, run_id: str, suite: str) -> tuple[int, ...]:
        """Versions of the scorer whose scores are there, in order."""
        query = sa.select(t.scores.c.scorer_version).where(at(t.scores, run_id=run_id, suite=suite)).distinct()
        with self._db.read() as c:
            return tuple(sorted(c.execute(query).scalars()))

    def evidence(self, run_id: str, kind: str | None = None) -> Sequence[EvidenceRow]:
        """Documents by kind, arm and digest.

        Raises:
            StoreError: one does not have the digest it is filed under.
        """
        where = at(t.evidence, run_id=run_id) if kind is None else at(t.evidence, run_id=run_id, kind=kind)
        with self._db.read() as c:
            rows = [_evidence(r) for r in fetch(c, sa.select(t.evidence).where(where))]
        return sorted(rows, key=lambda r: (r.kind, r.arm, r.sha256))

    def verdicts(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """The newest verdict of each candidate under each policy, in the order of judging."""
        with self._db.read() as c:
            rows = fetch(c, sa.select(t.verdicts).where(at(t.verdicts, run_id=run_id)))
        newest: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for r in sorted(rows, key=lambda r: (r["created"], r["revision"], r["candidate"])):
            newest[(r["candidate"], r["policy_digest"])] = dict(r)
        return [r["body"] for r in sorted(newest.values(), key=lambda r: (r["created"], r["candidate"]))]


# rows


def _by_work(item: tuple[Work, Any]) -> tuple[str, str, int]:
    work = item[0]
    return work.case_id, work.arm, work.repeat


def _arm(r: Mapping[str, Any]) -> ArmRow:
    engaged = r["engaged"]
    return ArmRow(
        arm=r["arm"],
        place=r["place"],
        role=r["role"],
        recipe=r["recipe"],
        perturb=tuple(r["perturb"]),
        deployment=Deployment.model_validate(r["body"] | r["note"]) if r["body"] is not None else None,
        engaged=Engaged(Engagement(engaged[0]), engaged[1], tuple(engaged[2])) if engaged is not None else None,
    )


def _cases(c: sa.Connection, run_id: str, suite: str) -> dict[str, Case]:
    rows = fetch(c, sa.select(t.cases).where(at(t.cases, run_id=run_id, suite=suite)))
    return {
        r["case_id"]: Case(
            id=r["case_id"],
            suite=suite,
            cluster=r["cluster"],
            bucket=r["bucket"],
            category=r["category"],
            body=unpack_json(r["body"], f"run {run_id}, {suite} case {r['case_id']}"),
        )
        for r in sorted(rows, key=lambda r: str(r["case_id"]))
    }


def _newest(c: sa.Connection, run_id: str, suite: str, version: int) -> dict[Work, Mapping[str, Any]]:
    """The newest attempt of each piece of work; a successful one if there is any."""
    query = sa.select(t.work).where(at(t.work, run_id=run_id, suite=suite, suite_version=version))
    found: dict[Work, Mapping[str, Any]] = {}
    for r in sorted(fetch(c, query), key=lambda r: (r["state"] == "done", r["attempt"])):
        found[Work(r["arm"], r["case_id"], r["repeat"])] = r
    return found


def _answered(c: sa.Connection, run_id: str, suite: str, version: int) -> list[Answered]:
    newest = {w: r["attempt"] for w, r in _newest(c, run_id, suite, version).items() if r["state"] == "done"}
    o = t.observations
    out = []
    for r in fetch(c, sa.select(o).where(at(o, run_id=run_id, suite=suite, suite_version=version))):
        work = Work(r["arm"], r["case_id"], r["repeat"])
        if newest.get(work) == r["attempt"]:
            where = f"run {run_id}, {suite}: answer of {work.arm} to {work.case_id} #{work.repeat}"
            body = None if r["raw"] is None else unpack_json(r["raw"], where)
            out.append(Answered(work, r["attempt"], Raw(body, r["error"], r["seed"], r["started"], r["ms"])))
    return sorted(out, key=lambda a: _by_work((a.work, None)))


def _by_key(answered: Sequence[Answered]) -> dict[tuple[str, str], list[Answered]]:
    out: dict[tuple[str, str], list[Answered]] = defaultdict(list)
    for a in answered:
        out[(a.work.arm, a.work.case_id)].append(a)
    return out


def _scores(
    c: sa.Connection, run_id: str, suite: str, version: int, scorer: int | None, answered: Sequence[Answered]
) -> dict[tuple[str, str], tuple[Score, ...]]:
    where = at(t.scores, run_id=run_id, suite=suite, suite_version=version)
    if scorer is None:
        scorer = c.execute(sa.select(sa.func.max(t.scores.c.scorer_version)).where(where)).scalar() or 0
    query = sa.select(t.scores).where(where, t.scores.c.scorer_version == scorer)
    there = {
        (Work(r["arm"], r["case_id"], r["repeat"]), r["attempt"]): Score(r["value"], tuple(r["flags"]), r["error"])
        for r in fetch(c, query)
    }
    out = {}
    for key, group in _by_key(answered).items():
        found = [there.get((a.work, a.attempt)) for a in group]
        if all(score is not None for score in found):
            out[key] = tuple(score for score in found if score is not None)
    return out


def _pairs(
    c: sa.Connection, run_id: str, suite: str, scorer: int | None, base: str, arms: set[str]
) -> dict[tuple[str, str], PairScore]:
    if scorer is None:
        where = at(t.comparisons, run_id=run_id, suite=suite, ref_arm=base)
        scorer = c.execute(sa.select(sa.func.max(t.comparisons.c.scorer_version)).where(where)).scalar() or 0
    there = last_comparisons(c, run_id, suite, scorer, base)
    return {key: pair for key, (_, pair) in sorted(there.items(), key=lambda i: (i[0][1], i[0][0])) if key[0] in arms}


def _positions(c: sa.Connection, run_id: str, suite: str, base: str, arms: set[str]) -> tuple[PositionBlock, ...]:
    p = t.positions
    blocks = []
    for r in fetch(c, sa.select(p).where(at(p, run_id=run_id, suite=suite, ref_arm=base))):
        if r["arm"] in arms:
            blocks.append(_block(r))
    return tuple(sorted(blocks, key=lambda b: (b.case_id, b.arm, b.repeat, b.lane, b.start)))


def _block(r: Mapping[str, Any]) -> PositionBlock:
    from kvgate.store.positions import unpack  # numpy: not for runs without positions

    where = "run {run_id}, {suite} case {case_id} #{repeat}, {lane} of {arm} from {start}".format_map(r)
    data = unpack(r["data"], r["n"], r["sha256"], where)
    return PositionBlock(r["case_id"], r["repeat"], r["lane"], r["arm"], r["start"], r["estimator"], data)


def _evidence(r: Mapping[str, Any]) -> EvidenceRow:
    where = f"evidence {r['kind']} {r['sha256'][:12]}"
    body = unpack_json(r["body"], where)
    if content_digest(body) != r["sha256"]:
        raise StoreError(f"the store is damaged: {where}: wrong checksum")
    return EvidenceRow(r["kind"], r["arm"], r["sha256"], body)
