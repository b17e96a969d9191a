"""What a run adds to the store. Nothing recorded is changed: a retry is a new attempt, a refinement a new revision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from kvgate.core.deployment import Deployment
from kvgate.core.errors import StoreError
from kvgate.core.observation import Case, PositionBlock, Raw, Work, content_digest
from kvgate.store import schema as t
from kvgate.store.columns import NotJson, canonical, pack_json, pack_json_in_order, unpack_json, without_passwords
from kvgate.store.database import Database
from kvgate.store.keys import at, at_work, fetch, insert, work_key
from kvgate.store.rows import ArmRow

Redact = Callable[[Raw], Raw]


class Writer:
    """The writing half of `Store`; every method is one transaction."""

    def __init__(self, database: Database, redact: Redact) -> None:
        self._db, self._redact = database, redact

    # arms

    def save_arm(self, run_id: str, arm: ArmRow) -> None:
        """Record an arm in one place, or what another start of it showed (process, port, log lines).

        Raises:
            StoreError: the arm was recorded with another role, recipe or perturbation.
        """
        row = without_passwords({"recipe": arm.recipe, "perturb": list(arm.perturb)})
        row |= {"role": arm.role, "deployment_digest": None, "note": None, "engaged": None}
        if arm.engaged is not None:
            row["engaged"] = [arm.engaged.level.value, arm.engaged.reason, list(arm.engaged.lines)]
        where = at(t.arms, run_id=run_id, arm=arm.arm, place=arm.place)
        with self._db.write() as c:
            if arm.deployment is not None:
                row["deployment_digest"], row["note"] = _save_deployment(c, arm.deployment)
            old = c.execute(sa.select(t.arms).where(where)).mappings().first()
            if old is None:
                c.execute(sa.insert(t.arms).values(run_id=run_id, arm=arm.arm, place=arm.place, **row))
                return
            for name in ("role", "recipe", "perturb"):
                if old[name] != row[name]:
                    raise StoreError(f"run {run_id}: arm {arm.arm!r} has {name} {old[name]!r}, not {row[name]!r}")
            c.execute(sa.update(t.arms).where(where).values(**row))

    # cases and work

    def add_cases(self, run_id: str, cases: Sequence[Case]) -> None:
        """Record cases; the ones already there must be equal.

        Raises:
            StoreError: a case of this id is there with other content. NotJson: a body that JSON cannot hold.
        """
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for case in cases:
            row = {
                "cluster": case.cluster,
                "bucket": case.bucket,
                "category": case.category,
                "body": pack_json_in_order(case.body, f"case {case.id}"),
            }
            if rows.setdefault((case.suite, case.id), row) != row:
                raise StoreError(f"{case.suite}: two different cases have the id {case.id}")
        with self._db.write() as c:
            for suite in {suite for suite, _ in rows}:
                for old in fetch(c, sa.select(t.cases).where(at(t.cases, run_id=run_id, suite=suite))):
                    new = rows.pop((suite, old["case_id"]), None)
                    if new is not None and _comparable(new) != _comparable(old):
                        raise StoreError(f"run {run_id}: {suite} case {old['case_id']} is recorded with other content")
            insert(c, t.cases, [{"run_id": run_id, "suite": s, "case_id": i, **row} for (s, i), row in rows.items()])

    def start_work(self, run_id: str, suite: str, suite_version: int, work: Work) -> int:
        """Begin an attempt and give its number, from 1. An attempt that a dead process left running becomes "lost".

        Raises:
            StoreError: this work is done (an answer is never replaced), or its case is not recorded.
        """
        where = at_work(t.work, run_id, suite, suite_version, work)
        with self._db.write() as c:
            before = c.execute(sa.select(t.work.c.attempt, t.work.c.state).where(where)).all()
            if any(state == "done" for _, state in before):
                raise StoreError(f"run {run_id}: {suite} {work.arm} {work.case_id} #{work.repeat} is already done")
            if any(state == "running" for _, state in before):
                c.execute(sa.update(t.work).where(where, t.work.c.state == "running").values(state="lost"))
            attempt = 1 + max((a for a, _ in before), default=0)
            key = work_key(run_id, suite, suite_version, work, attempt)
            c.execute(sa.insert(t.work).values(**key, state="running", error=""))
            self._sign_of_life(c, run_id)
        return attempt

    def finish_work(
        self,
        run_id: str,
        suite: str,
        suite_version: int,
        work: Work,
        attempt: int,
        raw: Raw,
        positions: Sequence[PositionBlock] = (),
    ) -> None:
        """Record an answer, its positions and the end of the attempt: all of it or nothing.

        Raises:
            NotJson: the body or a number is not JSON; nothing was written, the attempt may be finished with an error.
            StoreError: the attempt is not running, or positions come before the run's base arm is recorded.
            ValueError: positions of a failed attempt, of another case, or of a wrong dtype.
        """
        raw = self._redact(raw)
        key = work_key(run_id, suite, suite_version, work, attempt)
        observation = key | _observation(raw)
        blocks = _position_rows(run_id, suite, work, raw, positions)
        where = at_work(t.work, run_id, suite, suite_version, work) & (t.work.c.attempt == attempt)
        state = "failed" if raw.error else "done"
        with self._db.write() as c:
            ended = c.execute(
                sa.update(t.work).where(where, t.work.c.state == "running").values(state=state, error=raw.error)
            )
            if ended.rowcount != 1:
                raise StoreError(
                    f"run {run_id}: {suite} {work.case_id}: attempt {attempt} of {work.arm} is not running"
                )
            observation["prompt_digest"] = _prompt_digest(c, run_id, suite, work.case_id)
            c.execute(sa.insert(t.observations).values(**observation))
            if blocks:
                base = _base_arm(c, run_id)
                insert(c, t.positions, [{**b, "ref_arm": base} for b in blocks])
            self._sign_of_life(c, run_id)

    def _sign_of_life(self, connection: sa.Connection, run_id: str) -> None:
        """Hook of the store: moves `lease_until` on."""


def _comparable(case_row: Mapping[str, Any]) -> list[Any]:
    """Content of a case; not its compressed bytes, which another zlib may make differently."""
    body = canonical(unpack_json(case_row["body"], "a case"), "a case")
    return [case_row["cluster"], case_row["bucket"], case_row["category"], body]


def _save_deployment(c: sa.Connection, deployment: Deployment) -> tuple[str, dict[str, Any]]:
    """Digest and note; the body is shared by every run with the same deployment."""
    digest = deployment.digest()
    body = without_passwords(deployment.model_dump(mode="json"))
    note = {name: body.pop(name) for name in ("note", "evidence")}
    if not c.execute(sa.select(t.deployments.c.digest).where(t.deployments.c.digest == digest)).first():
        c.execute(sa.insert(t.deployments).values(digest=digest, body=body))
    return digest, note


def _observation(raw: Raw) -> dict[str, Any]:
    """Columns of an answer. `finish_reason`, `usage` and `timing` repeat what the body says, for queries by hand."""
    if not math.isfinite(raw.ms):
        raise NotJson(f"duration {raw.ms} is not a number")
    if not -(2**63) <= raw.seed < 2**63:
        raise NotJson(f"seed {raw.seed} does not fit into 64 bits")
    body = raw.body if raw.body is not None else {}
    packed = None if raw.body is None else pack_json(raw.body, "an answer")
    reason, usage = body.get("finish_reason"), body.get("usage")
    timing = body.get("timing", body.get("timings"))
    return {
        "started": raw.started,
        "ms": raw.ms,
        "seed": raw.seed,
        "raw": packed,
        "finish_reason": reason if isinstance(reason, str) else None,
        "usage": usage if isinstance(usage, Mapping) else None,
        "timing": timing if isinstance(timing, Mapping) else None,
        "error": raw.error,
    }


def _prompt_digest(c: sa.Connection, run_id: str, suite: str, case_id: str) -> str:
    """sha256 of the case's body: of what was asked."""
    body = c.execute(sa.select(t.cases.c.body).where(at(t.cases, run_id=run_id, suite=suite, case_id=case_id))).scalar()
    return content_digest(unpack_json(body, f"case {case_id}")) if body is not None else ""


def _position_rows(
    run_id: str, suite: str, work: Work, raw: Raw, blocks: Sequence[PositionBlock]
) -> list[dict[str, Any]]:
    if not blocks:
        return []
    from kvgate.store.positions import pack, split  # numpy: not for runs without positions

    if raw.error:
        raise ValueError(f"{suite} {work.case_id}: a failed attempt has no positions")
    rows = []
    for block in blocks:
        if (block.case_id, block.repeat) != (work.case_id, work.repeat) or work.arm not in ("*", block.arm):
            raise ValueError(f"positions of {block.arm} {block.case_id} #{block.repeat} with {work}")
        for start, data in split(block):
            packed = pack(data)
            rows.append(
                {
                    "run_id": run_id,
                    "suite": suite,
                    "case_id": block.case_id,
                    "repeat": block.repeat,
                    "lane": block.lane,
                    "arm": block.arm,
                    "start": start,
                    "n": len(data),
                    "estimator": block.estimator,
                    "data": packed.data,
                    "sha256": packed.sha256,
                }
            )
    return rows


def _base_arm(c: sa.Connection, run_id: str) -> str:
    found = c.execute(sa.select(t.arms.c.arm).where(at(t.arms, run_id=run_id, role="base")).distinct()).scalars().all()
    if len(found) != 1:
        raise StoreError(f"run {run_id}: positions need one base arm, recorded with save_arm; there are {len(found)}")
    return str(found[0])
