"""The tables, and how a database gets them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from store_samples import SRC

from kvgate.store import schema
from kvgate.store.migrations import config
from kvgate.store.open import Store, open_store

#: The tables of docs/contracts.md. What is added to them there: runs.serial, runs.created, arms.place, arms.note,
#: arms.engaged, scores.error, comparisons.revision, .detail and .repaired, verdicts.revision and .created.
WORK_KEY = "run_id suite suite_version arm case_id repeat attempt"
TABLES = {
    "runs": "run_id key serial created manifest state lease_owner lease_until",
    "deployments": "digest body",
    "arms": "run_id arm place role recipe perturb deployment_digest note engaged",
    "cases": "run_id suite case_id cluster bucket category body",
    "work": f"{WORK_KEY} state error",
    "observations": f"{WORK_KEY} started ms seed prompt_digest raw finish_reason usage timing error",
    "positions": "run_id suite case_id repeat lane arm ref_arm start n estimator data sha256",
    "scores": f"{WORK_KEY} scorer_version value flags error",
    "comparisons": "run_id arm ref_arm suite case_id scorer_version revision break_class confirmed detail repaired",
    "evidence": "run_id kind arm sha256 body",
    "verdicts": "run_id candidate policy_digest records_digest revision created body",
}
KEYS = {
    "runs": "run_id",
    "deployments": "digest",
    "arms": "run_id arm place",
    "cases": "run_id suite case_id",
    "work": WORK_KEY,
    "observations": WORK_KEY,
    "positions": "run_id suite case_id repeat lane arm ref_arm start",
    "scores": f"{WORK_KEY} scorer_version",
    "comparisons": "run_id arm ref_arm suite case_id scorer_version revision",
    "evidence": "run_id kind arm sha256",
    "verdicts": "run_id candidate policy_digest records_digest revision",
}


def test_tables_are_the_contract(store: Store, path: Path) -> None:
    """A migrated file has the tables, columns and keys of the contract, and no others."""
    engine = sa.create_engine(f"sqlite:///{path}")
    found = sa.inspect(engine)
    names = set(found.get_table_names()) - {"alembic_version"}

    assert {n: " ".join(c["name"] for c in found.get_columns(n)) for n in names} == TABLES
    assert {n: " ".join(found.get_pk_constraint(n)["constrained_columns"]) for n in names} == KEYS
    engine.dispose()


def test_migrations_lead_to_the_metadata(store: Store) -> None:
    """Alembic finds no difference between the migrated file and the tables in the code."""
    with store._db.read() as c:
        context = MigrationContext.configure(c, opts={"compare_type": True})

        assert compare_metadata(context, schema.metadata) == []


def test_a_changed_table_would_be_noticed(store: Store) -> None:
    """The comparison above sees a column that no migration makes."""
    changed = sa.MetaData()
    for table in schema.metadata.tables.values():
        table.to_metadata(changed)
    changed.tables["runs"].append_column(sa.Column("forgotten", sa.Text))
    with store._db.read() as c:
        assert len(compare_metadata(MigrationContext.configure(c), changed)) == 1


def test_revisions_are_those_of_the_folder() -> None:
    """REVISIONS lists every migration, in order; the last is Alembic's head."""
    scripts = ScriptDirectory.from_config(config())

    assert [s.revision for s in scripts.walk_revisions()] == list(reversed(schema.REVISIONS))
    assert scripts.get_current_head() == schema.HEAD


def test_foreign_keys_hold_on_both_dialects() -> None:
    """The tables compile for PostgreSQL too."""
    from sqlalchemy.dialects import postgresql

    for table in schema.metadata.sorted_tables:
        assert "CREATE TABLE" in str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))


def test_a_killed_migration_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade that ends half-way leaves an empty file, and the next opening works."""
    from alembic import op

    made = op.create_table
    calls = []

    def stops(name: str, *columns: sa.Column[object]) -> None:
        calls.append(name)
        if len(calls) == 4:
            raise KeyboardInterrupt
        made(name, *columns)

    with monkeypatch.context() as m:
        m.setattr(op, "create_table", stops)
        with pytest.raises(KeyboardInterrupt):
            open_store(path)

    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == []
    with open_store(path) as s:
        assert s.runs() == []


def test_the_package_is_light() -> None:
    """Importing kvgate.store and asking where it lies loads neither SQLAlchemy nor numpy; opening does."""
    code = (
        "import sys, kvgate.store as s; s.default_location(); heavy = {'sqlalchemy', 'alembic', 'numpy'};"
        "print(heavy & set(sys.modules));"
        "s.open_store; print('sqlalchemy' in sys.modules, heavy & set(sys.modules) - {'sqlalchemy'}, s.Store.__name__)"
    )
    out = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True)

    assert out.stdout.splitlines() == ["set()", "True set() Store"], out.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy package does not invent names."""
    import kvgate.store

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kvgate.store.nothing
    assert all(getattr(kvgate.store, n) for n in kvgate.store.__all__)
