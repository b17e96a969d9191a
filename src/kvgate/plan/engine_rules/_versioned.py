"""Numbers and words of one engine that depend on its version, from the TOML file beside its rule.

Every row has a source and a range of versions: `since` is inside, `until` is not. `[read]` says which versions were
looked at; a version outside is answered with the nearest rows, and a note that says so.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.source import Source

_VERSION = re.compile(
    r"[vb]?(?P<main>\d{1,9}(?:\.\d{1,9}){0,4})(?:[.\-_]?(?:a|b|rc|alpha|beta|post|dev)\.?\d*)*(?:[+\-].*)?"
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One row: a value, where it holds, where it was read."""

    name: str
    value: float | int | str | bool
    since: str
    until: str
    source: Source
    note: str = ""

    @property
    def number(self) -> float:
        return float(self.value)

    @property
    def integer(self) -> int:
        return int(self.value)

    @property
    def versions(self) -> str:
        """The range in words: "0.21.0 and later", "before 0.21.0"."""
        if self.since and self.until:
            return f"{self.since} to before {self.until}"
        if self.since:
            return f"{self.since} and later"
        return f"before {self.until}" if self.until else "all versions read"


@dataclass(frozen=True, slots=True)
class Facts:
    """The rows that hold for one version of one engine; `newest`: it is the one whose source was read in full."""

    engine: str
    version: str
    key: tuple[int, ...]
    rows: tuple[Fact, ...]
    notes: tuple[str, ...]
    newest: bool = True

    def __getitem__(self, name: str) -> Fact:
        """The row of this name; a missing one is a programming error."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{self.engine} {self.version}: {name}")


def facts(engine: str, version: str = "") -> Facts:
    """Rows of `engine` that hold for `version`; empty is the newest version that was read.

    Raises:
        UserError: the version is not a version.
    """
    read, rows = _table(engine)
    asked = version.strip()
    key = _key(engine, asked or read.newest)
    notes: tuple[str, ...] = ()
    if key >= _key(engine, read.until):
        notes = (_unknown(engine, asked, "newer", read.newest),)
    elif key < _key(engine, read.first):
        notes = (_unknown(engine, asked, "older", read.first),)
        key = _key(engine, read.first)
    held = tuple(
        r
        for r in rows
        if (not r.since or _key(engine, r.since) <= key) and (not r.until or key < _key(engine, r.until))
    )
    return Facts(engine, asked or read.newest, key, held, notes, key >= _key(engine, read.newest))


def _unknown(engine: str, asked: str, side: str, nearest: str) -> str:
    return f"{engine} {asked} is {side} than what was read: rules of {nearest}, unknown whether they hold"


@dataclass(frozen=True, slots=True)
class _Read:
    """Versions that were looked at: `first` and `newest` inside, `until` not."""

    first: str
    newest: str
    until: str


@cache
def _table(engine: str) -> tuple[_Read, tuple[Fact, ...]]:
    with (Path(__file__).parent / f"{engine}.toml").open("rb") as file:
        data = tomllib.load(file)
    rows = tuple(
        Fact(
            name=row["name"],
            value=row["value"],
            since=row.get("since", ""),
            until=row.get("until", ""),
            source=Source(row["source"]["kind"], row["source"]["ref"], row["source"].get("version", "")),
            note=row.get("note", ""),
        )
        for row in data["fact"]
    )
    return _Read(**data["read"]), rows


def _key(engine: str, version: str) -> tuple[int, ...]:
    """Numbers for comparison. llama.cpp's wheel versions end in the build: 2026.10.11549 is b11549."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise UserError(f"{version!r} is not a version of {engine}", fix="write it as 0.32.0 (llama.cpp: b11549)")
    numbers = tuple(int(n) for n in found["main"].split("."))
    return numbers[-1:] if engine == "llama_cpp" else numbers
