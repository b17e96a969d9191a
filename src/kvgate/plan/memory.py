"""KV memory of each rank and what the engine reserves in it: the engine's own rule where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.plan.budget import GIVEN, less, plain_budget, shortfall_text
from kvgate.plan.concurrency import Ideal
from kvgate.plan.parallel import RankGeometry
from kvgate.plan.price import native_codec
from kvgate.plan.question import Question
from kvgate.plan.storable import check_storable
from kvgate.plan.terms import Budget, EngineRule, Price, Rank, Reserved, Term

#: Ranks that have a cache, each with its price.
Held = Sequence[tuple[RankGeometry, Price]]


def engine_rule(engine: str) -> EngineRule | None:
    """The rule of an engine, if there is one."""
    return cast("EngineRule | None", registry.discover("engine_rule").get(engine))


def _rank_weights(question: Question) -> int | None:
    if question.weights_bytes is None:
        return None
    return -(-question.weights_bytes // (question.serving.tp * question.serving.pp))


def budgets_of(question: Question, held: Held) -> tuple[tuple[Budget, ...] | None, str]:
    """Budgets in the ranks' order, or None with the reason; the reason also where nothing is left."""
    if question.kv_budget is not None:
        return tuple(Budget(rank.name, (question.kv_budget,)) for rank, _ in held), ""
    if question.device is None:
        return None, "no device: give --device or --device-memory"
    if question.weights_bytes is None:
        return None, f"{question.weights_how or 'the size of the weights is not known'}: give --weights 65.52GB"
    made = []
    for rank, priced in held:
        share = Rank(rank.name, priced, _rank_weights(question))
        rule = engine_rule(question.serving.engine)
        if rule is None:
            found = plain_budget(
                share,
                device_bytes=question.device.bytes,
                device_source=question.device.source,
                fraction=question.serving.memory_fraction,
                overhead_bytes=question.overhead_bytes,
            )
        else:
            found = rule.budget(
                share, question.serving, device_bytes=question.device.bytes, overhead_bytes=question.overhead_bytes
            )
        found = _with_sources(found, question)
        if question.draft is not None:
            how = f"{question.draft.name}, whole on every GPU"
            found = less(found, Term("draft model", -question.draft.weights_bytes, how, GIVEN))
        made.append(found)
    return tuple(made), next((text for text in map(shortfall_text, made) if text), "")


def weights_source(question: Question) -> Source:
    """Where the weights' size is from, as far as their words say."""
    given = question.weights_how == GIVEN.ref
    return Source(GIVEN.kind if given else "file", question.weights_how)


def _with_sources(budget: Budget, question: Question) -> Budget:
    """An engine's rule knows neither the device's source nor the weights': the person's question does."""
    device, how = question.device, question.weights_how
    terms = []
    for term in budget.terms:
        if device is not None and term.name == "device memory" and term.bytes == device.bytes:
            term = replace(term, source=device.source)
        if term.name == "weights" and how:
            term = replace(term, source=weights_source(question))
        terms.append(term)
    return replace(budget, terms=tuple(terms))


def reserve_of(
    question: Question, recipe: Recipe, held: Held, budgets: tuple[Budget, ...] | None, why: str
) -> tuple[Reserved | None, str]:
    """What the engine reserves and prints, or None with the reason; `why` is that of missing budgets."""
    engine = question.serving.engine
    rule = engine_rule(engine)
    if rule is None:
        return None, f"kvgate has no reservation rule for {engine or 'no engine'}"
    if budgets is None:
        return None, why
    if question.draft is not None and question.draft.geometry is not None:
        return None, "the engine's own pool for a draft model is not known"
    ranks = tuple(Rank(r.name, p, _rank_weights(question)) for r, p in held)
    try:
        check_storable(recipe, engine, native_codec(question.geometry, engine))
        return rule.reserve(question.geometry, recipe, ranks, question.serving, budgets), ""
    except UserError as e:
        # The ideal column stands on its own: an engine that cannot serve this says so in its own column.
        return None, str(e)


def bounded(reserved: Reserved | None, room: Ideal | None) -> Reserved | None:
    """No engine holds more whole sequences than their bytes allow; a rule that says so leaves something out."""
    if reserved is None or room is None or reserved.sequences is None or reserved.sequences <= room.sequences:
        return reserved
    note = (
        f"the rule gives {reserved.sequences:,} sequences and does not count states, cross attention or index rows of "
        "this model; the bytes allow the number shown"
    )
    return replace(reserved, sequences=room.sequences, notes=(*reserved.notes, note))
