"""What a running engine does: how its kernels read a quantized cache, what changed its numbers, its metrics' names.

`serving/<engine>.toml`, one row a fact, with its source and the versions in which it holds. No logic of any engine.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgate.core.errors import UserError
from kvgate.enginefacts.facts import Ranged


class KernelRow(Ranged):
    """How a kernel reads a quantized cache.

    Attributes:
        backends: the engine's names; "any" is all that read these types. dtypes: the option's words.
        phase: "prefill", "decode" or "both".
        fused: "yes" reads the stored codes inside the attention kernel; "no" writes 16 bits to a workspace first;
            "" is not known.
        arithmetic: in which Q K is multiplied; "" is not known. accumulation: how products are added up; "" likewise.
    """

    backends: tuple[str, ...]
    dtypes: tuple[str, ...]
    phase: Literal["prefill", "decode", "both"] = "both"
    fused: Literal["yes", "no", ""] = ""
    arithmetic: str = ""
    accumulation: str = ""
    note: str = ""


class ChangeRow(Ranged):
    """A release that changed numbers, capacity or words, beside the epochs over which nothing is compared."""

    what: str


class MetricRow(Ranged):
    """A name on the metrics page. `counts`: what it is, in one or a few words; the same word for all engines."""

    name: str
    counts: str
    note: str = ""


class ServingFacts(BaseModel):
    """All rows of one engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema")
    engine: str
    kernel: tuple[KernelRow, ...] = ()
    change: tuple[ChangeRow, ...] = ()
    metric: tuple[MetricRow, ...] = ()


@cache
def load(engine: str) -> ServingFacts:
    """Rows of an engine.

    Raises:
        UserError: there is no file for this engine.
    """
    folder = Path(__file__).parent / "serving"
    known = sorted(p.stem for p in folder.glob("*.toml"))
    if engine not in known:
        raise UserError(f"no facts about a running {engine!r}", allowed=known)
    with (folder / f"{engine}.toml").open("rb") as f:
        return ServingFacts.model_validate(tomllib.load(f))
