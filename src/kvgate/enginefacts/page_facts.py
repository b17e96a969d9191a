"""What engines' pages say, as data: `pages/<engine>.toml`, one row a key, label or line, with its source.

Three kinds of rows: `sign` (what only this engine's pages hold), `fact` (where a page says something) and `line` (what
a start log says beside `log_lines/`, which plans capacity). No logic of any engine.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import Ranged

Kind = Literal["word", "int", "float", "bool"]
#: What a page or a line may say -> kind of value.
FIELDS: dict[str, Kind] = {
    "version": "word",
    "build": "word",
    "model": "word",  # a name that the server answers to
    "metrics_model": "word",  # the name in the labels of its metrics
    "model_path": "word",
    "weights_dtype": "word",
    "compute_dtype": "word",
    "quantization": "word",
    "asked_dtype": "word",  # KV type as it was given
    "config_dtype": "word",  # KV type in the engine's configuration: the engine's own layers may still change it
    "skip_layers": "word",
    "scales_file": "word",
    "asked_backend": "word",
    "backend": "word",
    "query_dtype": "word",
    "block_tokens": "int",
    "blocks": "int",
    "tokens": "int",
    "window_tokens": "int",
    "kv_gib": "float",
    "kv_bytes": "int",  # as it was named; most servers measure instead
    "context_tokens": "int",
    "batch_tokens": "int",
    "slots": "int",
    "prefix_cache": "bool",
    "chunked_prefill": "bool",
    "speculation": "word",
    "tp": "int",
    "pp": "int",
    "dp": "int",
    "template": "word",
}


class SignRow(Ranged):
    """Something that only this engine's pages hold.

    Attributes:
        path: page. key: dotted path in its JSON ("data.0.owned_by"). equals: value of that key.
        sample: beginning of the names of its metrics.
        word: it is one word that anybody can write; two of these are no proof.
    """

    path: str
    key: str = ""
    equals: str = ""
    sample: str = ""
    word: bool = False
    says: str

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.key) == bool(self.sample):
            raise ValueError(f"sign {self.says!r}: give either a key or a sample")
        return self


class FactRow(Ranged):
    """Where a page says one thing.

    Attributes:
        field: a key of `FIELDS`.
        path: page. key: dotted path in its JSON. pattern: what of a text at that key; its group "value".
        sample: name of a metric; label: of it, else its value.
        map: the page's words -> ours; "*" is any other. A word that is not in a map without "*" stays as it is.
    """

    field: str
    path: str
    key: str = ""
    pattern: str = ""
    sample: str = ""
    label: str = ""
    map: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.field not in FIELDS:
            raise ValueError(f"{self.field!r} is no field")
        if bool(self.key) == bool(self.sample):
            raise ValueError(f"{self.field!r} of {self.path}: give either a key or a sample")
        _has_value(self.pattern, self.field)
        return self


class LineFact(Ranged):
    """What a line of the start log says; `has` stands in every such line, `pattern` has a group "value"."""

    field: str
    has: str = Field(min_length=4)
    pattern: str
    map: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.field not in FIELDS:
            raise ValueError(f"{self.field!r} is no field")
        _has_value(self.pattern, self.field)
        return self


def _has_value(pattern: str, field: str) -> None:
    if pattern and "value" not in re.compile(pattern, re.ASCII).groupindex:
        raise ValueError(f"the pattern of {field!r} has no group named value")


class PageFacts(BaseModel):
    """All rows of one engine.

    Attributes:
        metrics_paths: pages of Prometheus text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema")
    engine: str
    title: str
    metrics_paths: tuple[str, ...] = ("/metrics",)
    sign: tuple[SignRow, ...] = ()
    fact: tuple[FactRow, ...] = ()
    line: tuple[LineFact, ...] = ()


@cache
def load(engine: str) -> PageFacts:
    """Rows of an engine's pages.

    Raises:
        UserError: there is no file for this engine.
    """
    known = engines()
    if engine not in known:
        raise UserError(f"no pages of engine {engine!r} are known", allowed=known)
    with (_folder() / f"{engine}.toml").open("rb") as f:
        return PageFacts.model_validate(tomllib.load(f))


@cache
def engines() -> tuple[str, ...]:
    """Engines whose pages can be read."""
    return tuple(sorted(p.stem for p in _folder().glob("*.toml")))


def _folder() -> Path:
    return Path(__file__).parent / "pages"
