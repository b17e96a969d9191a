"""What was asked of an engine and what it did. Every field belongs to one class:

identity      must be equal between arms, or the comparison is refused (unless the arm declares the perturbation)
subject       the recipe: the one thing that is meant to differ
loud          backend and kernel: a change is shouted, not refused
consequence   follows from the recipe; held against Expected, never compared between arms
note          host, port, pid, time: outside the digest
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvgate.core.private import public_env


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Identity(_Frozen):
    """Fields that make two arms comparable. None is unknown, which is neither same nor different."""

    engine: str
    version: str | None = None
    build: str | None = None
    epoch: str | None = None
    model_digest: str | None = None
    tokenizer_digest: str | None = None
    template_digest: str | None = None
    weights_dtype: str | None = None
    device: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context_tokens: int | None = None
    batch_tokens: int | None = None
    ubatch_tokens: int | None = None
    slots: int | None = None
    threads: int | None = None
    checkpoints: int | None = None
    prefix_cache: bool | None = None
    chunked_prefill: bool | None = None
    speculation: str | None = None
    sampling: str | None = None
    flash_attention: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("env")
    @classmethod
    def _without_secrets(cls, env: Mapping[str, str]) -> Mapping[str, str]:
        return public_env(env)


class Subject(_Frozen):
    """The recipe as the person wrote it, as parsed, and as this engine effectively runs it."""

    spelling: str
    requested: str
    effective: str


class Loud(_Frozen):
    """What may change with the recipe, but must be said when it does.

    Attributes:
        backend, kernel: the engine's own words, e.g. "FLASH_ATTN", "3".
        query_dtype: in which the attention multiplies Q; probability_dtype: P after the softmax (codec ids).
        accumulation: "two-level", "single" or the engine's own word. None is unknown: most logs do not tell.
    """

    backend: str | None = None
    kernel: str | None = None
    query_dtype: str | None = None
    probability_dtype: str | None = None
    accumulation: str | None = None


class CachePart(_Frozen):
    """One cache inside an engine (full attention, sliding window), as its log reports it."""

    kind: str
    cells: int
    layers: int
    k_codec: str
    v_codec: str
    k_mib: float
    v_mib: float
    k_rotation: int | None = None
    v_rotation: int | None = None


class ScaleSeen(_Frozen):
    """Scales of K or of V as the engine holds them.

    Attributes:
        origin: "unit", "checkpoint", "dynamic" or "calibrated", as in a recipe; None where the engine does not say.
        layers: how many layers were looked at; lowest, highest: over those layers. None is unknown.
    """

    origin: str | None = None
    layers: int | None = None
    lowest: float | None = None
    highest: float | None = None


class Consequence(_Frozen):
    """What follows from the recipe. Rotations are sizes of the Hadamard matrix; 0 is none."""

    k_codec: str | None = None
    v_codec: str | None = None
    k_rotation: int | None = None
    v_rotation: int | None = None
    kv_mib: float | None = None
    cells: int | None = None
    layers: int | None = None
    parts: tuple[CachePart, ...] = ()
    k_scale: ScaleSeen | None = None
    v_scale: ScaleSeen | None = None


class Note(_Frozen):
    """Outside the digest.

    `fingerprint` is the server's own word for its build and settings: it covers the recipe, so it is held against the
    same arm's earlier one only, never against another arm's.
    """

    place: str = ""
    host: str | None = None
    port: int | None = None
    pid: int | None = None
    started: str | None = None
    python: str | None = None
    fingerprint: str | None = None


class Deployment(_Frozen):
    """One running engine: requested and observed. `evidence` holds the log lines that say so."""

    identity: Identity
    subject: Subject
    loud: Loud = Loud()
    consequence: Consequence = Consequence()
    note: Note = Note()
    evidence: tuple[str, ...] = ()

    def digest(self) -> str:
        """sha256 over everything but `note` and `evidence`."""
        body = self.model_dump(mode="json", exclude={"note", "evidence"})
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def delta(self, other: Deployment) -> tuple[FieldDelta, ...]:
        """Each identity field against the other's: same, differs or unknown."""
        mine, theirs = self.identity.model_dump(), other.identity.model_dump()
        return tuple(FieldDelta(name, _sameness(a, theirs[name]), a, theirs[name]) for name, a in mine.items())


class Sameness(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class FieldDelta(NamedTuple):
    """One identity field of two deployments."""

    field: str
    status: Sameness
    a: Any
    b: Any


def _sameness(a: Any, b: Any) -> Sameness:
    if a is None or b is None:
        # Both unknown is unknown too: nobody has looked.
        return Sameness.UNKNOWN
    return Sameness.SAME if a == b else Sameness.DIFFERS


class Engagement(StrEnum):
    """How sure it is that the requested recipe is what the engine runs."""

    CONFIRMED = "confirmed"  # log, metrics label or attribute says so
    BEHAVIOURAL = "behavioural"  # distributions differ from the base by more than the floor
    ASSUMED = "assumed"  # the person's word (--assume-engaged)
    UNOBSERVED = "unobserved"  # an attached server without a log
    CONTRADICTED = "contradicted"  # the engine says something else: INVALID


class Engaged(NamedTuple):
    """Engagement with the lines that prove or contradict it."""

    level: Engagement
    reason: str
    lines: tuple[str, ...] = ()


#: Codec of an attached server of which nobody said what it stores.
NOT_SAID = "unknown"


class Expected(_Frozen):
    """What `resolve()` predicts for a recipe; observed consequences are held against it.

    Attributes:
        k_codec, v_codec: codec ids of the registry, or NOT_SAID.
        k_rotation, v_rotation: predicted Hadamard size, 0 for none, None if the engine's rule is not known.
        bytes_per_token: KV bytes of one token over all layers, inside all windows.
        parts_mib: predicted (kind, cells, k MiB, v MiB) of each cache the engine will report.
        parts_rotation: predicted (kind, k, v) rotation of each cache; the fields above hold the largest.
        lossless_against: codec ids; a KL of exactly 0 against a base in these is what the recipe should give.
    """

    k_codec: str
    v_codec: str
    k_rotation: int | None = None
    v_rotation: int | None = None
    bytes_per_token: int
    parts_mib: tuple[tuple[str, int, float, float], ...] = ()
    parts_rotation: tuple[tuple[str, int, int], ...] = ()
    lossless_against: tuple[str, ...] = ()
