"""Tables of the store. Portable types only: the same metadata serves PostgreSQL.

A change of the tables is a new file in `migrations/versions` and a new last entry in REVISIONS; a test holds both
against this metadata.
"""

from __future__ import annotations

import sqlalchemy as sa

from kvgate.store.columns import AnyText, JsonText

#: Every revision that this kvgate can read or bring up to date, oldest first. The last one is ours.
REVISIONS = ("0001",)
HEAD = REVISIONS[-1]

#: The work row of a panel case: one run serves all arms.
ALL_ARMS = "*"

metadata = sa.MetaData()


def _text(name: str, *, key: bool = False, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, AnyText, primary_key=key, nullable=null)


def _int(name: str, *, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=False, autoincrement=False)


def _json(name: str, *, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, JsonText, nullable=null)


runs = sa.Table(
    "runs",
    metadata,
    _text("run_id", key=True),
    _text("key"),
    # Order of beginning: `created` may go back with the clock, and run ids are only sorted to the minute.
    _int("serial"),
    _text("created"),
    _json("manifest"),
    _text("state"),
    _text("lease_owner", null=True),
    _text("lease_until", null=True),
    sa.Index("runs_by_key", "key"),
)

deployments = sa.Table("deployments", metadata, _text("digest", key=True), _json("body"))

arms = sa.Table(
    "arms",
    metadata,
    _text("run_id", key=True),
    _text("arm", key=True),
    _text("place", key=True),
    _text("role"),
    _text("recipe"),
    _json("perturb"),
    _text("deployment_digest", null=True),
    # What the digest leaves out and another start changes: process, port, log lines.
    _json("note", null=True),
    _json("engaged", null=True),
    sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
    sa.ForeignKeyConstraint(["deployment_digest"], ["deployments.digest"]),
)

cases = sa.Table(
    "cases",
    metadata,
    _text("run_id", key=True),
    _text("suite", key=True),
    _text("case_id", key=True),
    _text("cluster"),
    _text("bucket"),
    _text("category"),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
)

_WORK_KEY = ("run_id", "suite", "suite_version", "arm", "case_id", "repeat", "attempt")


def _work_key() -> list[sa.Column[str] | sa.Column[int]]:
    numbers = ("suite_version", "repeat", "attempt")
    return [_int(c, key=True) if c in numbers else _text(c, key=True) for c in _WORK_KEY]


def _of_work() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(_WORK_KEY, [f"work.{c}" for c in _WORK_KEY])


def _of_case() -> sa.ForeignKeyConstraint:
    columns = ("run_id", "suite", "case_id")
    return sa.ForeignKeyConstraint(columns, [f"cases.{c}" for c in columns])


work = sa.Table("work", metadata, *_work_key(), _text("state"), _text("error"), _of_case())

observations = sa.Table(
    "observations",
    metadata,
    *_work_key(),
    _text("started"),
    sa.Column("ms", sa.Double, nullable=False),
    _int("seed"),
    _text("prompt_digest"),
    sa.Column("raw", sa.LargeBinary, nullable=True),
    _text("finish_reason", null=True),
    _json("usage", null=True),
    _json("timing", null=True),
    _text("error"),
    _of_work(),
)

positions = sa.Table(
    "positions",
    metadata,
    _text("run_id", key=True),
    _text("suite", key=True),
    _text("case_id", key=True),
    _int("repeat", key=True),
    _text("lane", key=True),
    _text("arm", key=True),
    _text("ref_arm", key=True),
    _int("start", key=True),
    _int("n"),
    _text("estimator"),
    sa.Column("data", sa.LargeBinary, nullable=False),
    _text("sha256"),
    _of_case(),
)

scores = sa.Table(
    "scores",
    metadata,
    *_work_key(),
    _int("scorer_version", key=True),
    sa.Column("value", sa.Double, nullable=True),
    _json("flags"),
    _text("error"),
    _of_work(),
)

comparisons = sa.Table(
    "comparisons",
    metadata,
    _text("run_id", key=True),
    _text("arm", key=True),
    _text("ref_arm", key=True),
    _text("suite", key=True),
    _text("case_id", key=True),
    _int("scorer_version", key=True),
    # A comparison is refined while reruns confirm it: each change is a new revision, the highest counts.
    _int("revision", key=True),
    _text("break_class"),
    sa.Column("confirmed", sa.Boolean, nullable=True),
    _text("detail"),
    sa.Column("repaired", sa.Boolean, nullable=False),
    _of_case(),
)

evidence = sa.Table(
    "evidence",
    metadata,
    _text("run_id", key=True),
    _text("kind", key=True),
    _text("arm", key=True),
    _text("sha256", key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    _text("run_id", key=True),
    _text("candidate", key=True),
    _text("policy_digest", key=True),
    _text("records_digest", key=True),
    # A newer kvgate may word or judge the same records differently; what was said before is kept.
    _int("revision", key=True),
    _text("created"),
    _json("body"),
    sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"]),
)
