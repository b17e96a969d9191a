"""Combinations that the facts call an error, so that launch writes none of them: rows `[[trouble]]` of type and model.

Rows that ask for options (a flag, a variable, a backend) are the writers' own affair: they choose those.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import PurePath

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import EngineFacts, TroubleRow
from kvgate.enginefacts.versions import Holds, holds, version_of
from kvgate.launch.commands import Ask


def refuse_known_trouble(ask: Ask, facts: EngineFacts, word: str) -> None:
    """The first row that is known to apply to this type, model and device.

    Raises:
        UserError: with the row's reason and fix.
    """
    for row in facts.trouble:
        if row.severity == "error" and _plain(row) and _applies(row, ask, facts, word):
            raise UserError(f"{word} on {ask.where}: {row.message}; {row.why}", fix=row.fix)


def _plain(row: TroubleRow) -> bool:
    return bool(row.dtypes) and not (row.flags or row.env or row.backends or row.traits or row.context_from_tokens)


def _applies(row: TroubleRow, ask: Ask, facts: EngineFacts, word: str) -> bool:
    version = version_of(ask.version or facts.newest, facts.engine)
    heads = {d for y in ask.geometry.layers for d in (y.k_dim, y.v_dim) if d}
    return (
        holds(version, row.since, row.until, facts.engine) is not Holds.NO
        and any(fnmatchcase(word, p) for p in row.dtypes)
        and (not row.models or any(fnmatchcase(n, p) for n in _names(ask) for p in row.models))
        and (not row.vendor or ask.vendor == row.vendor)
        and (not row.capabilities or (ask.vendor == "nvidia" and _within(ask.capability, row.capabilities)))
        and (not row.architectures or any(fnmatchcase(ask.capability, a) for a in row.architectures))
        and (not row.heads or bool(heads & set(row.heads)))
    )


def _names(ask: Ask) -> set[str]:
    found = {ask.model, PurePath(ask.model).name, ask.geometry.name, ask.geometry.architecture, ask.model_type}
    return {n.lower() for n in found if n}


def _within(capability: str, wanted: tuple[str, ...]) -> bool:
    return any(capability == w or capability.split(".")[0] == w for w in wanted)
