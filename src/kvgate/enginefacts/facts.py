"""Facts about one engine, read from its TOML file: types, log lines, numerical epochs, C layouts.

Every row carries its source and the range of package versions in which it holds: `since` is inside, `until` is not.
No logic of any engine.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvgate.core.errors import UserError
from kvgate.core.source import Source


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceRow(_Row):
    """Where a row comes from, as in `core.source.Source`."""

    kind: str
    ref: str
    version: str = ""

    def as_source(self) -> Source:
        return Source(self.kind, self.ref, self.version)


class Ranged(_Row):
    """A row that holds for package versions from `since` up to, but not including, `until`. Empty is unbounded."""

    since: str = ""
    until: str = ""
    source: SourceRow

    def holds(self, version: str) -> bool:
        """Whether this row holds for a package version such as "2026.10.11549"."""
        key = version_key(version)
        return (not self.since or version_key(self.since) <= key) and (not self.until or key < version_key(self.until))


class DtypeRow(Ranged):
    """A KV type: canonical codec id, the engine's word, and its number where the engine takes one."""

    codec: str
    spelling: str
    number: int | None = None


class RefusedRow(Ranged):
    """A word that people write and that must not reach the engine.

    `block`, if given, is what head_dim would have to be a multiple of.
    """

    spelling: str
    why: str
    fix: str = ""
    block: int | None = None


class LogRow(Ranged):
    """Regular expressions of load log lines by name; named groups hold the values."""

    patterns: dict[str, str]

    @model_validator(mode="after")
    def _compile(self) -> Self:
        for name, pattern in self.patterns.items():
            try:
                re.compile(pattern)
            except re.error as e:
                raise ValueError(f"log pattern {name!r}: {e}") from None
        return self


class EpochRow(Ranged):
    """A known numerical change: runs on different sides of it are not compared."""

    name: str
    before: str


class LayoutRow(Ranged):
    """C structs of one wheel version, bytes and byte offsets; `defaults` are read back after load and must agree."""

    version: str
    platforms: tuple[str, ...]
    sizes: dict[str, int]
    offsets: dict[str, dict[str, int]]
    defaults: dict[str, dict[str, int]]


class PlatformRow(_Row):
    """A platform where a lane cannot be had, and the reason for the user."""

    platform: str
    lane: str
    why: str
    source: SourceRow


class ForcedRotationRow(Ranged):
    """Architectures (by prefix) whose rotation does not follow the rule, so that none is predicted."""

    architectures: tuple[str, ...]


class EngineFacts(_Row):
    """All rows of one engine."""

    schema_: str = Field(alias="schema")
    engine: str
    package: str
    dtype: tuple[DtypeRow, ...] = ()
    refused: tuple[RefusedRow, ...] = ()
    log: tuple[LogRow, ...] = ()
    epoch: tuple[EpochRow, ...] = ()
    layout: tuple[LayoutRow, ...] = ()
    platform: tuple[PlatformRow, ...] = ()
    forced_rotation: tuple[ForcedRotationRow, ...] = ()

    def dtype_of(self, codec: str) -> DtypeRow | None:
        """The row of a canonical codec id."""
        return next((d for d in self.dtype if d.codec == codec), None)

    def codec_of(self, spelling: str) -> str | None:
        """The canonical codec id behind a word of the engine's log."""
        return next((d.codec for d in self.dtype if d.spelling == spelling), None)

    def refusal_of(self, word: str) -> RefusedRow | None:
        return next((r for r in self.refused if r.spelling == word), None)

    def patterns(self, version: str | None) -> dict[str, str]:
        """Log patterns for a package version; of the newest row where the version is not known."""
        rows = [r for r in self.log if version is None or r.holds(version)]
        newest = max(rows, key=lambda r: version_key(r.since), default=None)
        return {} if newest is None else newest.patterns

    def epoch_name(self, version: str | None) -> str | None:
        """Sides of all known numerical changes that a version is on; None if the version is not known."""
        if version is None:
            return None
        return ", ".join(e.name if e.holds(version) else e.before for e in self.epoch)

    def layout_of(self, version: str) -> LayoutRow | None:
        return next((r for r in self.layout if r.version == version), None)


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version for comparison: "2026.10.11549" -> (2026, 10, 11549)."""
    return tuple(int(n[:9]) for n in re.findall(r"\d+", version))


@cache
def load(engine: str) -> EngineFacts:
    """Facts of an engine.

    Raises:
        UserError: there is no file for this engine.
    """
    folder = Path(__file__).parent
    known = sorted(p.stem for p in folder.glob("*.toml"))
    if engine not in known:
        raise UserError(f"no facts about engine {engine!r}", allowed=known)
    with (folder / f"{engine}.toml").open("rb") as f:
        return EngineFacts.model_validate(tomllib.load(f))
