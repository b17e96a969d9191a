"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WORK_KEY = ("run_id", "suite", "suite_version", "arm", "case_id", "repeat", "attempt")
CASE_KEY = ("run_id", "suite", "case_id")


def text(name: str, *, key: bool = False, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=key, nullable=null)


def number(name: str, *, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=False, autoincrement=False)


def blob(name: str, *, null: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=null)


def work_key() -> list[sa.Column[str] | sa.Column[int]]:
    numbers = ("suite_version", "repeat", "attempt")
    return [number(c, key=True) if c in numbers else text(c, key=True) for c in WORK_KEY]


def of_run() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"])


def of_case() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(CASE_KEY, [f"cases.{c}" for c in CASE_KEY])


def of_work() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(WORK_KEY, [f"work.{c}" for c in WORK_KEY])


def upgrade() -> None:
    op.create_table(
        "runs",
        text("run_id", key=True),
        text("key"),
        number("serial"),
        text("created"),
        text("manifest"),
        text("state"),
        text("lease_owner", null=True),
        text("lease_until", null=True),
    )
    op.create_index("runs_by_key", "runs", ["key"])
    op.create_table("deployments", text("digest", key=True), text("body"))
    op.create_table(
        "arms",
        text("run_id", key=True),
        text("arm", key=True),
        text("place", key=True),
        text("role"),
        text("recipe"),
        text("perturb"),
        text("deployment_digest", null=True),
        text("note", null=True),
        text("engaged", null=True),
        of_run(),
        sa.ForeignKeyConstraint(["deployment_digest"], ["deployments.digest"]),
    )
    op.create_table(
        "cases",
        *(text(c, key=True) for c in CASE_KEY),
        text("cluster"),
        text("bucket"),
        text("category"),
        blob("body"),
        of_run(),
    )
    op.create_table("work", *work_key(), text("state"), text("error"), of_case())
    op.create_table(
        "observations",
        *work_key(),
        text("started"),
        sa.Column("ms", sa.Double, nullable=False),
        number("seed"),
        text("prompt_digest"),
        blob("raw", null=True),
        text("finish_reason", null=True),
        text("usage", null=True),
        text("timing", null=True),
        text("error"),
        of_work(),
    )
    op.create_table(
        "positions",
        *(text(c, key=True) for c in CASE_KEY),
        number("repeat", key=True),
        text("lane", key=True),
        text("arm", key=True),
        text("ref_arm", key=True),
        number("start", key=True),
        number("n"),
        text("estimator"),
        blob("data"),
        text("sha256"),
        of_case(),
    )
    op.create_table(
        "scores",
        *work_key(),
        number("scorer_version", key=True),
        sa.Column("value", sa.Double, nullable=True),
        text("flags"),
        text("error"),
        of_work(),
    )
    op.create_table(
        "comparisons",
        *(text(c, key=True) for c in ("run_id", "arm", "ref_arm", "suite", "case_id")),
        number("scorer_version", key=True),
        number("revision", key=True),
        text("break_class"),
        sa.Column("confirmed", sa.Boolean, nullable=True),
        text("detail"),
        sa.Column("repaired", sa.Boolean, nullable=False),
        of_case(),
    )
    op.create_table(
        "evidence",
        *(text(c, key=True) for c in ("run_id", "kind", "arm", "sha256")),
        blob("body"),
        of_run(),
    )
    op.create_table(
        "verdicts",
        *(text(c, key=True) for c in ("run_id", "candidate", "policy_digest", "records_digest")),
        number("revision", key=True),
        text("created"),
        text("body"),
        of_run(),
    )
