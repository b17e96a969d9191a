"""What a person asks the planner: plain values, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.plan.concurrency import check_context
from kvgate.plan.lengths import Lengths
from kvgate.plan.terms import Serving, Term

MAX_RECIPES = 32


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The device of a plan.

    Attributes:
        name: as reports write it. bytes: of one device. source: which of its sizes that is, and where it was read.
        bytes_per_s: bandwidth, if known. architecture: "hopper", ...; "" is unknown.
        other: the device's other sizes, for the reader ("marketing 141.00 GB"). id: of the device; "" for a bare size.
    """

    name: str
    bytes: int
    source: Source
    bytes_per_s: int | None = None
    bandwidth_source: str = ""
    architecture: str = ""
    other: tuple[str, ...] = ()
    id: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model beside the model: fixed bytes, or a model whose cache grows with the same tokens."""

    name: str
    weights_bytes: int
    geometry: ModelGeometry | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What a person asks.

    Attributes:
        weights_bytes: of the whole model; None is unknown. weights_how: where that is from.
        recipes: at least one. replicas: copies of the whole deployment that run now.
        prefix_tokens: begin of all sequences, stored once. engine_named: the person named the engine.
        origin: where the model was found, in words.
        kv_budget: memory of the cache on each rank, known from elsewhere (an engine's log); replaces all arithmetic.
    """

    geometry: ModelGeometry
    recipes: tuple[Recipe, ...]
    serving: Serving
    name: str = ""
    weights_bytes: int | None = None
    weights_how: str = ""
    device: DeviceMemory | None = None
    overhead_bytes: int | None = None
    lengths: Lengths | None = None
    prefix_tokens: int = 0
    draft: Draft | None = None
    replicas: int = 1
    engine_named: bool = True
    origin: str = ""
    kv_budget: Term | None = None


def check_question(question: Question) -> None:
    """Refuse what cannot be asked.

    Raises:
        UserError: no recipe, one twice, a context, prefix or number of replicas that cannot be, lengths over the cap.
    """
    check_context(question.serving.context_tokens)
    if not 1 <= len(question.recipes) <= MAX_RECIPES:
        raise UserError(f"{len(question.recipes)} recipes cannot be compared", fix=f"give 1 to {MAX_RECIPES} with --kv")
    seen = set[str]()
    for recipe in question.recipes:
        if str(recipe) in seen:
            raise UserError(f"recipe {str(recipe)!r} is given twice", fix="give each --kv once")
        seen.add(str(recipe))
    if not 0 <= question.prefix_tokens <= question.serving.context_tokens:
        raise UserError(
            f"a shared prefix of {question.prefix_tokens} tokens is not part of a context of "
            f"{question.serving.context_tokens}",
            fix="give a prefix that is not longer than --context",
        )
    if question.lengths is not None and question.lengths.longest > question.serving.context_tokens:
        raise UserError(
            f"the longest sequence has {question.lengths.longest} tokens, over the context of "
            f"{question.serving.context_tokens}",
            fix=f"give --context {question.lengths.longest} or shorten the lengths",
        )
    if question.replicas < 1:
        raise UserError(f"{question.replicas} replicas cannot run", fix="give 1 or more")
