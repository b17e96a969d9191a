"""Migrations by Alembic. A new one is a file in `versions/` (the next number) and a new last entry in
`schema.REVISIONS`; it runs on a connection that is already in its transaction, so that a kill leaves the old schema.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic.config import Config


def config(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration for these migrations, without a file."""
    found = Config(attributes={"connection": connection})
    found.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    found.set_main_option("path_separator", "os")
    return found
