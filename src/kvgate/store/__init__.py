"""L1: the record of every run, on SQLite. Sees only core.

    location.py  where it lies, and its rights      open.py      opening and migration
    store.py     Store: the runs, and all that follows for one of them
    writer.py    arms, cases, work and answers      judged.py    scores, comparisons, evidence, verdicts
    reader.py    what is read back                  digest.py    the digest that seeds the resampling
    schema.py    tables and revisions               keys.py      their keys
    columns.py   text and JSON for any database     positions.py columns of scored positions
    lease.py     one process a run                  database.py  transactions; faults.py: its errors as ours

Names are loaded on first use: importing this package does not import SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.store.columns import NotJson
    from kvgate.store.location import default_location
    from kvgate.store.open import open_store
    from kvgate.store.rows import ArmRow, EvidenceRow, RunRow
    from kvgate.store.store import Store

__all__ = ["ArmRow", "EvidenceRow", "NotJson", "RunRow", "Store", "default_location", "open_store"]

_HOME = {
    "ArmRow": "rows",
    "EvidenceRow": "rows",
    "RunRow": "rows",
    "NotJson": "columns",
    "Store": "store",
    "default_location": "location",
    "open_store": "open",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
