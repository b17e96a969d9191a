"""Reads `claims/*.toml`; a fault is one line that names the file, the claim and the field."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from kvgate.core.errors import UserError
from kvgate.evidence.claim import Claim
from kvgate.evidence.family import families

_TRAITS = ("mla", "windows", "hybrid", "moe", "shared")


@dataclass(frozen=True, slots=True)
class Published:
    """A claim and the publication (a file's title) that holds it."""

    claim: Claim
    title: str
    file: str


class _ClaimFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    claim: tuple[Claim, ...]


def parse_claims(text: str, file: str) -> tuple[Published, ...]:
    """Claims of one file.

    Raises:
        UserError: not TOML, or a table that is no claim; one line.
    """
    try:
        body = tomllib.loads(text)
        parsed = _ClaimFile.model_validate(body)
    except tomllib.TOMLDecodeError as e:
        raise UserError(f"evidence file {file} is not TOML: {e}") from e
    except ValidationError as e:
        raise UserError(f"evidence file {file}: {_first(e, body)}") from e
    return tuple(Published(c, parsed.title, file) for c in parsed.claim)


def checked(found: Iterable[Published]) -> dict[str, Published]:
    """All claims by id, in id order, with their references looked up.

    Raises:
        UserError: an id twice; a contradiction that leads nowhere or back to nothing; an unknown family or trait.
    """
    by_id: dict[str, Published] = {}
    for published in found:
        if published.claim.id in by_id:
            raise UserError(f"evidence file {published.file}: two claims have the id {published.claim.id!r}")
        by_id[published.claim.id] = published
    for published in by_id.values():
        for fault in _faults(published.claim, by_id):
            raise UserError(f"evidence file {published.file}: claim {published.claim.id}: {fault}")
    return dict(sorted(by_id.items()))


@cache
def claims() -> Mapping[str, Published]:
    """Every claim that ships with kvgate, by id.

    Raises:
        UserError: a file is wrong.
    """
    folder = files(__package__) / "claims"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return checked(p for name in names for p in parse_claims(folder.joinpath(name).read_text(encoding="utf-8"), name))


def _faults(claim: Claim, by_id: Mapping[str, Published]) -> Iterable[str]:
    if claim.family and claim.family not in families():
        yield f"family {claim.family!r} is not in families.toml"
    for trait in claim.traits:
        if trait not in _TRAITS:
            yield f"trait {trait!r} is none of {', '.join(_TRAITS)}"
    for mine, theirs in (("contradicted_by", "contradicts"), ("contradicts", "contradicted_by")):
        for other in getattr(claim, mine):
            if other not in by_id:
                yield f"{mine} names {other!r}, which is no claim"
            elif claim.id not in getattr(by_id[other].claim, theirs):
                yield f"{mine} names {other!r}, whose {theirs} does not name it back"


def _first(error: ValidationError, body: Mapping[str, Any]) -> str:
    """The first fault in words: claim 3 (vllm-x): recipe: ..."""
    fault = error.errors(include_url=False)[0]
    where, said = list(fault["loc"]), str(fault["msg"]).removeprefix("Value error, ")
    if len(where) >= 2 and where[0] == "claim" and isinstance(where[1], int):
        table = body["claim"][where[1]]
        name = table.get("id", "no id") if isinstance(table, dict) else "no table"
        where[:2] = [f"claim {where[1] + 1} ({name})"]
    return ": ".join([*map(str, where), said])
