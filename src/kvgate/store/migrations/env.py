"""Run by Alembic: migrate the connection that it was given."""

from __future__ import annotations

from alembic import context

from kvgate.store.schema import metadata

# render_as_batch: SQLite changes a column only by copying its table.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
