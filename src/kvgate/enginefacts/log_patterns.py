"""Lines of engines' start logs as data: `log_lines/<engine>.toml`, one row a line, with what it means and since when.

A row is looked for only where its literal `has` stands in a line, and its pattern sees a window of bounded width around
that place, so that the cost of any line is linear in its length whatever it holds. Groups are named after the facts in
`FACTS`; a suffix gives the unit of the number (`available_gib` becomes the fact `available_bytes`).
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
from kvgate.enginefacts.facts import Ranged, version_key

#: Characters that a pattern sees before and behind the literal it is found by.
BEFORE_CHARS, AFTER_CHARS = 160, 1024

#: Colours; where a page has swallowed the escape character, their rest ("[0m", "[1;36m") is still there.
_COLOURS = re.compile(r"\x1b\[[0-9;:?]{0,32}[A-Za-z]|\[[0-9;]{1,12}m")

#: Facts that a line may give: name -> "int", "float", "bytes" (an int, printed in a unit) or "word".
FACTS: dict[str, str] = {
    # What runs.
    "version": "word",
    "build": "int",
    "core": "word",  # generation of the engine inside ("V0", "V1")
    "device": "word",
    "tp": "int",
    "pp": "int",
    "dp": "int",
    "dcp": "int",
    "prefix_cache": "word",
    "quantization": "word",
    # What was asked for.
    "requested_dtype": "word",
    "requested_k": "word",
    "requested_v": "word",
    "requested_backend": "word",
    "requested_context_tokens": "int",
    # What was chosen.
    "config_dtype": "word",  # the engine's own configuration, before layers change it
    "model_dtype": "word",
    "dtype": "word",  # the engine says that it stores this
    "backend": "word",
    "backend_from": "word",
    "fallback": "word",  # what the engine gave up, in one word
    "kernel": "word",
    "flash_attention": "word",
    "unified": "word",
    "scales": "word",  # "unit", "file", "per-token-head", "not-loaded", "doubtful"
    "query_scale": "word",
    "query_dtype_prefill": "word",
    "query_dtype_decode": "word",
    "decode_kernel": "word",
    "rotation_off": "word",
    # Memory.
    "total": "bytes",
    "free": "bytes",
    "usable": "bytes",
    "weights": "bytes",
    "consumed": "bytes",  # weights and what lies outside the allocator, where the engine does not tell them apart
    "activation": "bytes",
    "non_torch": "bytes",
    "graphs": "bytes",
    "peak": "bytes",
    "temporary_kv": "bytes",
    "available": "bytes",
    "allocated": "bytes",
    "suggested": "bytes",
    "host_pool": "bytes",
    "compute_buffer": "bytes",
    "weights_buffer": "bytes",
    "kv_buffer": "bytes",
    "device_cache": "bytes",  # the cache on one device, where no line gives the whole
    "state": "bytes",
    "bytes_per_token": "int",
    "memory_fraction": "float",
    "effective_fraction": "float",
    # Room.
    "tokens": "int",
    "window_tokens": "int",
    "pool_window_tokens": "int",  # what layers of this pool see
    "blocks": "int",
    "blocks_asked": "int",
    "block_tokens": "int",
    "concurrency": "float",
    "concurrency_context_tokens": "int",
    "context_tokens": "int",
    "total_context_tokens": "int",
    "batched_tokens": "int",
    "ubatch_tokens": "int",
    "slots": "int",
    "padding_layers": "int",
    "waste_percent": "float",
    "fits_tokens": "int",
    # One cache of several (a row with `cache = true`).
    "kind": "word",
    "rotation_side": "word",
    "rotation": "int",
    "cells": "int",
    "layers": "int",
    "streams": "int",
    "k_type": "word",
    "v_type": "word",
    "k": "bytes",
    "v": "bytes",
    "cache": "bytes",
}
#: Unit suffix of a group -> bytes.
UNITS = {"_gib": 2**30, "_mib": 2**20, "_bytes": 1}


class LineRow(Ranged):
    """One line of a log.

    Attributes:
        id: name of the line; the same in rows of other version ranges.
        has: literal that stands in every such line. also: a second literal of the same line.
        pattern: regular expression around `has`; groups are facts.
        means: what it says, for a person.
        set_: facts that the line's mere presence gives.
        identifies: only this engine writes it. start: a new start of the engine begins here.
        cache: its groups describe one cache of several. context: a new context (another set of caches) begins here.
        lasting: it holds for later starts in the same log too (a server that loads several models).
    """

    id: str
    has: str = Field(min_length=4)
    also: str = ""
    pattern: str
    means: str
    set_: dict[str, str] = Field(default_factory=dict, alias="set")
    identifies: bool = False
    start: bool = False
    cache: bool = False
    context: bool = False
    lasting: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            groups = re.compile(self.pattern, re.ASCII).groupindex
        except re.error as e:
            raise ValueError(f"line {self.id!r}: {e}") from None
        for name in (*groups, *self.set_):
            if fact_name(name)[0] not in FACTS:
                raise ValueError(f"line {self.id!r}: {name!r} is not a fact")
        return self


class LogLines(BaseModel):
    """All rows of one engine.

    Attributes:
        dtypes: the engine's words for a KV type -> codec id; "" is a word that names no layout ("auto").
        decimals: digits behind the point that a size is rounded to, where trailing zeros are not printed.
        known_until: the first version that nobody has read; a log from it on is read with the newest rows, and says so.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema")
    engine: str
    title: str
    how_to_log: str
    known_since: str
    known_until: str
    decimals: int = 0
    dtypes: dict[str, str]
    line: tuple[LineRow, ...]

    def codec_of(self, word: str) -> str | None:
        """Codec id behind a word; None for `auto` and for a word that is not known."""
        return self.dtypes.get(word.lower().removeprefix("torch.")) or None

    def knows(self, version: str) -> bool:
        """Whether somebody has read the lines of this version."""
        key = version_key(version)
        return version_key(self.known_since) <= key < version_key(self.known_until)


def without_colours(line: str) -> str:
    """A line as it reads on a terminal: what rows are looked for in."""
    return _COLOURS.sub("", line) if "[" in line else line


def fact_name(group: str) -> tuple[str, int]:
    """Fact and unit of a group's name: "available_gib" -> ("available", 2**30)."""
    for suffix, unit in UNITS.items():
        if group.endswith(suffix):
            return group.removesuffix(suffix), unit
    return group, 1


@cache
def load(engine: str) -> LogLines:
    """Rows of an engine's log.

    Raises:
        UserError: there is no file for this engine.
    """
    known = engines()
    if engine not in known:
        raise UserError(f"no log lines of engine {engine!r} are known", allowed=known)
    with (_folder() / f"{engine}.toml").open("rb") as f:
        return LogLines.model_validate(tomllib.load(f))


@cache
def engines() -> tuple[str, ...]:
    """Engines whose logs can be read."""
    return tuple(sorted(p.stem for p in _folder().glob("*.toml")))


def _folder() -> Path:
    return Path(__file__).parent / "log_lines"
