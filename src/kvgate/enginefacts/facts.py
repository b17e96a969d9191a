"""Facts about one engine, read from its TOML file: types, log lines, numerical epochs, C layouts.

Every row carries its source and the range of package versions in which it holds: `since` is inside, `until` is not.
No logic of any engine.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, Self

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
    """A KV type: canonical codec id, the engine's word, and its number where the engine takes one.

    `aliases` are other words that the engine takes for the same layout.
    """

    codec: str
    spelling: str
    number: int | None = None
    aliases: tuple[str, ...] = ()


class WordRow(Ranged):
    """A word that the engine's option takes and that names no codec: `auto`, a preset of a method."""

    spelling: str
    means: str


class FlagRow(Ranged):
    """One option of the engine.

    Attributes:
        name: as the engine's help spells it. aliases: other spellings that its parser takes.
        key: what kvgate calls it, the same for all engines where the meaning is the same.
        takes: "value", "switch" (nothing follows), "maybe" (a value may follow), "list" (words up to the next flag).
        default: the engine's own, empty where there is none or it is computed.
        env: variable that sets it too. file: place in the engine's YAML file, dotted.
    """

    name: str = ""
    key: str
    takes: Literal["value", "switch", "maybe", "list"] = "value"
    aliases: tuple[str, ...] = ()
    default: str = ""
    env: str = ""
    file: str = ""


class BackendRow(Ranged):
    """An attention backend: what it reads from the cache, and where it runs.

    Attributes:
        dtypes: the option's words beside auto and 16 bits; the exact word counts, not the layout it means.
        capabilities: compute capabilities, "9" is all of 9.x; empty is any GPU. dtype_capabilities: where `dtypes`
            hold, if that is narrower.
        vendor: "nvidia", "amd", "cpu", "any".
        heads: head sizes; empty where a rule says it. heads_multiple_of, heads_from, heads_to: that rule; 0 is unbound.
        blocks, blocks_multiple_of: kernel block sizes in tokens.
        attention: "full" (K and V), "mla", "sparse_mla". sinks, windows, per_head_scales: whether it has them.
        sinks_capabilities: where sinks hold, if narrower.
        query: what the query becomes for an FP8 cache: "fp8" is arithmetic in FP8, "model" reads FP8 and computes in 16
            bits. Both convert inside the kernel (fused).
        native: it reads a 16-bit cache too. opt_in: never chosen by the engine itself.
    """

    name: str
    dtypes: tuple[str, ...] = ()
    vendor: str = "nvidia"
    capabilities: tuple[str, ...] = ()
    dtype_capabilities: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    heads_multiple_of: int = 0
    heads_from: int = 0
    heads_to: int = 0
    blocks: tuple[int, ...] = ()
    blocks_multiple_of: int = 0
    attention: str = "full"
    sinks: bool = False
    sinks_capabilities: tuple[str, ...] = ()
    windows: bool = True
    per_head_scales: bool = False
    query: Literal["fp8", "model", ""] = ""
    native: bool = True
    opt_in: bool = False
    note: str = ""


class SelectionRow(Ranged):
    """The order in which an engine tries its backends: the first that can serve a layer is taken.

    Attributes:
        models: model types, with * and ?, that the row is for; empty is any other. vendor: of the device.
    """

    attention: str
    capabilities: tuple[str, ...]
    order: tuple[str, ...]
    models: tuple[str, ...] = ()
    vendor: str = "nvidia"


class DefaultRow(Ranged):
    """A value that the engine takes where nothing is said."""

    name: str
    value: str
    note: str = ""


class TroubleRow(Ranged):
    """A combination that is known to go wrong. Each condition must be known to hold; an empty one says nothing.

    Attributes:
        id: of the finding. message, why, fix: one sentence each.
        dtypes: codec ids or words of the option, with * and ?; of K or V. k_dtypes, v_dtypes: of one side.
        backends: backend that is named. models: model names or types, with * and ?, in lower case.
        traits: "windows", "no_windows", "mla", "hybrid", "sinks", "moe", "kv_scheme", "no_scales".
        vendor, capabilities, architectures: of the device. heads: a head size that some layer has.
        flags: settings by key, value with * and ?, "" for not given. env: variables, likewise.
        context_from_tokens: the context asked for (or the model's own) is at least that.
    """

    id: str
    severity: Literal["error", "warning", "info"]
    message: str
    why: str
    fix: str
    dtypes: tuple[str, ...] = ()
    k_dtypes: tuple[str, ...] = ()
    v_dtypes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    vendor: str = ""
    capabilities: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    flags: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    context_from_tokens: int = 0


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
    """All rows of one engine.

    Attributes:
        known_since, known_until: versions that somebody has read about; one outside is unknown, not assumed.
        newest: the version that was read in full.
        underscores: "same" where the engine's parser takes `--a_b` for `--a-b`, else "unknown".
    """

    schema_: str = Field(alias="schema")
    engine: str
    package: str
    known_since: str = ""
    known_until: str = ""
    newest: str = ""
    underscores: Literal["same", "unknown"] = "unknown"
    dtype: tuple[DtypeRow, ...] = ()
    refused: tuple[RefusedRow, ...] = ()
    log: tuple[LogRow, ...] = ()
    epoch: tuple[EpochRow, ...] = ()
    layout: tuple[LayoutRow, ...] = ()
    platform: tuple[PlatformRow, ...] = ()
    forced_rotation: tuple[ForcedRotationRow, ...] = ()
    word: tuple[WordRow, ...] = ()
    flag: tuple[FlagRow, ...] = ()
    backend: tuple[BackendRow, ...] = ()
    selection: tuple[SelectionRow, ...] = ()
    default: tuple[DefaultRow, ...] = ()
    trouble: tuple[TroubleRow, ...] = ()

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
