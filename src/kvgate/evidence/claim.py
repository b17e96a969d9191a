"""One published claim, as a TOML table of `claims/` holds it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvgate.core import recipe
from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.evidence.caveat import Caveat

_Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
_Sentence = Annotated[str, Field(min_length=8, max_length=400)]
_Count = Annotated[int, Field(gt=0)]


class Topic(StrEnum):
    """What a claim is about. Only the first two say whether answers stay the same."""

    ACCURACY = "accuracy"
    DIVERGENCE = "divergence"
    SPEED = "speed"
    CAPACITY = "capacity"
    BUG = "bug"
    BEHAVIOUR = "behaviour"


#: Topics that test answers; speed or capacity alone never makes a recipe "tested".
QUALITY = (Topic.ACCURACY, Topic.DIVERGENCE)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceRow(_Table):
    """As `core.source.Source`."""

    kind: Annotated[str, Field(pattern=r"^(file|log|spec|arithmetic|assumed)$")]
    ref: Annotated[str, Field(min_length=4)]
    version: str = ""

    def as_source(self) -> Source:
        return Source(self.kind, self.ref, self.version)


class Number(_Table):
    """A pair of numbers as published.

    Attributes:
        task: what was run. metric: what was counted. unit: of both numbers ("" is a share from 0 to 1).
        baseline: the native cache's; None where only the candidate's, or a ratio, was told.
        candidate: the quantized cache's. candidate_to: the other end, where a range was told. below: only a bound was
            told, and the number lies under `candidate`.
        n: items or positions. repeats: runs an item.
    """

    task: Annotated[str, Field(min_length=2)]
    metric: Annotated[str, Field(min_length=2)]
    unit: str = ""
    baseline: float | None = None
    candidate: float
    candidate_to: float | None = None
    below: bool = False
    n: _Count | None = None
    repeats: _Count | None = None


class Correction(_Table):
    """Where engines have moved on from what an article says.

    Attributes:
        article: its title. says: the article's claim in our words. now: what holds today.
        since: version or date from which; says so where nobody knows.
    """

    article: _Sentence
    says: _Sentence
    now: _Sentence
    since: Annotated[str, Field(min_length=3)]


class Claim(_Table):
    """One claim.

    Attributes:
        statement: in our own words. effect: its size in words, where `numbers` alone would mislead or there are none.
        model: as published; empty where it holds for no model in particular. also: other names of the same model.
        family: id of `families.toml`; empty too where the model was not named. traits: kinds of attention that it
            speaks of, beside its family's.
        from_version, to_version: engine versions it was seen with, both inside; empty is unknown or unbounded.
        recipe: in kvgate's grammar; empty where it is about no recipe.
        context_tokens: lengths that were measured; empty where none was told.
        contradicted_by, contradicts: ids; each must name the other.
        correction: makes it a row of docs/corrections.md.
    """

    id: _Id
    statement: _Sentence
    topic: Topic
    model: str = ""
    also: tuple[str, ...] = ()
    family: str = ""
    traits: tuple[str, ...] = ()
    engine: str = ""
    from_version: str = ""
    to_version: str = ""
    recipe: str = ""
    device: str = ""
    context_tokens: tuple[_Count, ...] = ()
    numbers: tuple[Number, ...] = ()
    effect: str = ""
    scope: str = ""
    caveats: tuple[Caveat, ...] = ()
    contradicted_by: tuple[_Id, ...] = ()
    contradicts: tuple[_Id, ...] = ()
    correction: Correction | None = None
    source: SourceRow

    @field_validator("recipe")
    @classmethod
    def _canonical(cls, text: str) -> str:
        if text:
            try:
                canonical = str(recipe.parse(text))
            except UserError as e:
                raise ValueError(str(e)) from e
            if canonical != text:
                raise ValueError(f"{text!r} is written {canonical!r}")
        return text

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len(set(self.caveats)) < len(self.caveats):
            raise ValueError("a caveat stands twice")
        if (Caveat.CONTRADICTED in self.caveats) != bool(self.contradicted_by):
            raise ValueError("the caveat contradicted and contradicted_by are given together or not at all")
        if not (self.numbers or self.effect or self.correction or self.topic in (Topic.BUG, Topic.BEHAVIOUR)):
            raise ValueError("a measured claim needs numbers or effect")
        return self
