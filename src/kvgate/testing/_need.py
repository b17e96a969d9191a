"""`need(...)`: an assertion that `python -O` does not remove."""

from __future__ import annotations


def need(ok: object, message: str) -> None:
    """Raise AssertionError with `message` unless `ok`."""
    if not ok:
        raise AssertionError(message)
