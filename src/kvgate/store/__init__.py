"""L1: the record of every run, on SQLite. Sees only core.

    open.py      where the store lies, opening, rights, migration
    store.py     Store: the runs, and all of what follows for one of them
    writer.py    what a run adds          reader.py   what is read back
    schema.py    tables and revisions     columns.py  text and JSON that any database can hold
    positions.py columns of scored positions    digest.py  the digest that seeds the resampling
    lease.py     one process a run        database.py transactions       faults.py  a database's errors as ours

Names are loaded on first use: importing this package does not import SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.store.columns import NotJson
    from kvgate.store.open import default_location, open_store
    from kvgate.store.rows import ArmRow, EvidenceRow, RunRow
    from kvgate.store.store import Store

__all__ = ["ArmRow", "EvidenceRow", "NotJson", "RunRow", "Store", "default_location", "open_store"]

_HOME = {
    "ArmRow": "rows",
    "EvidenceRow": "rows",
    "RunRow": "rows",
    "NotJson": "columns",
    "Store": "store",
    "default_location": "open",
    "open_store": "open",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
