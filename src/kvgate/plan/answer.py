"""One question to the planner and its whole answer: prices, budgets, ideal and reserved capacity of each recipe.

Composes the parts; holds no rule of its own. What cannot be known (no device, no weights, an engine without a rule, a
model that the engine does not serve) is None with the reason beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe, parse
from kvgate.core.source import Source
from kvgate.plan.advice import Condition, First, conditions, first_recipe
from kvgate.plan.budget import GIVEN, less, plain_budget, shortfall_text
from kvgate.plan.concurrency import Ideal, check_context, cost, ideal
from kvgate.plan.lengths import Lengths
from kvgate.plan.parallel import RankGeometry, split
from kvgate.plan.price import native_codec, price, sequence_bytes
from kvgate.plan.replicas import Rollback, rollback
from kvgate.plan.slope import Prior, Speed, prior, speed
from kvgate.plan.storable import check_storable
from kvgate.plan.terms import Budget, EngineRule, Price, Rank, Reserved, Serving, Term

NATIVE = parse("native")
MAX_RECIPES = 32
_SHARE = Source(
    "assumed", "an equal share of the weights a GPU; norms, embeddings and replicated heads are not told apart"
)


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


@dataclass(frozen=True, slots=True)
class RecipeAnswer:
    """One recipe.

    Attributes:
        price: of the whole model; rank_prices: of each rank that has a cache, in order.
        sequence_bytes: of one sequence at the context, whole model, with the draft's cache.
        budgets: of the ranks; None with `budget_why`.
        ideal: None with `budget_why`. reserved: None with `reserved_why`.
        ratio: how many times fewer bytes a sequence takes than with the native cache (2.0 is half the bytes).
        token_ratio: the same for a token inside all windows.
        rollback: None where there is no budget. prior: None where no bandwidth is known.
        same_as_native: exactly the native cache is stored.
    """

    recipe: Recipe
    price: Price
    rank_prices: tuple[Price, ...]
    sequence_bytes: int
    ratio: float
    token_ratio: float
    budgets: tuple[Budget, ...] | None
    budget_why: str
    ideal: Ideal | None
    reserved: Reserved | None
    reserved_why: str
    rollback: Rollback | None
    prior: Prior | None
    speed: Speed
    same_as_native: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that a plan says.

    Attributes:
        native: codec id of the native cache. recipes: in the order asked. base: the native recipe, for comparison.
        ranks: one a pipeline stage. notes: what the reader must know.
    """

    question: Question
    native: str
    ranks: tuple[RankGeometry, ...]
    base: RecipeAnswer
    recipes: tuple[RecipeAnswer, ...]
    conditions: tuple[Condition, ...]
    first: First
    notes: tuple[str, ...] = field(default=())


def answer(question: Question) -> Answer:
    """Answer a question.

    Raises:
        UserError: no recipe or one twice, a context, prefix or parallel size that cannot be, a recipe that does not fit
            the model.
    """
    _check(question)
    geometry, serving = question.geometry, question.serving
    ranks = split(
        geometry, tp=serving.tp, pp=serving.pp, dp=serving.dp, dcp=serving.dcp, engine=serving.engine or "vllm"
    )
    base = _recipe_answer(question, ranks, NATIVE, None)
    known = conditions(
        geometry,
        context_tokens=serving.context_tokens,
        lengths=question.lengths,
        architecture=question.device.architecture if question.device else "",
    )
    return Answer(
        question,
        native_codec(geometry, serving.engine),
        ranks,
        base,
        tuple(_recipe_answer(question, ranks, recipe, base) for recipe in question.recipes),
        known,
        first_recipe(geometry, serving.engine, known),
        _notes(question, ranks),
    )


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Whole sequences at one context, per recipe in the order asked: ideal, and as the engine reserves."""

    context_tokens: int
    ideal: tuple[int | None, ...]
    reserved: tuple[int | None, ...]


def curve(question: Question, contexts: Sequence[int]) -> tuple[CurvePoint, ...]:
    """Concurrency against context, all sequences of full length and without a shared prefix."""
    points = []
    for context in contexts:
        serving = replace(question.serving, context_tokens=context)
        found = answer(replace(question, serving=serving, lengths=None, prefix_tokens=0))
        points.append(
            CurvePoint(
                context,
                tuple(None if r.ideal is None else r.ideal.sequences for r in found.recipes),
                tuple(None if r.reserved is None else r.reserved.sequences for r in found.recipes),
            )
        )
    return tuple(points)


def curve_contexts(question: Question) -> tuple[int, ...]:
    """Powers of two from 1,024 to the larger of the model's context and the one asked for, that one included."""
    asked = question.serving.context_tokens
    top = max(asked, min(question.geometry.context_tokens, 1 << 20), 4096)
    return tuple(sorted({asked, *(1 << n for n in range(10, top.bit_length()) if 1 << n <= top)}))


def engine_rule(engine: str) -> EngineRule | None:
    """The rule of an engine, if there is one."""
    return cast("EngineRule | None", registry.discover("engine_rule").get(engine))


def _check(question: Question) -> None:
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


def _recipe_answer(
    question: Question, ranks: tuple[RankGeometry, ...], recipe: Recipe, base: RecipeAnswer | None
) -> RecipeAnswer:
    serving, engine = question.serving, question.serving.engine
    native = native_codec(question.geometry, engine)
    whole = price(question.geometry, recipe, engine=engine, native=native, mtp=serving.mtp)
    # A stage without attention has no cache and does not limit anything.
    held = [(r, price(r.geometry, recipe, engine=engine, native=native, mtp=serving.mtp)) for r in ranks if _caches(r)]
    drafted = () if question.draft is None else _draft_prices(question, recipe)
    budgets, why = _budgets(question, held)
    costs = [cost(r.name, (p, *drafted), question.prefix_tokens, dcp=serving.dcp) for r, p in held]
    room = (
        None
        if budgets is None
        else ideal(
            costs,
            budgets,
            context_tokens=serving.context_tokens,
            replicas=serving.dp,
            lengths=question.lengths,
        )
    )
    reserved, reserved_why = _reserve(question, recipe, held, budgets, why)
    reserved = _bounded(reserved, room)
    total = sequence_bytes(whole, serving.context_tokens)
    total += sum(sequence_bytes(p, serving.context_tokens) for p in drafted)
    same = base is None or whole.layers == base.price.layers
    back = None
    if room is not None and base is not None and base.ideal is not None:
        back = rollback(room.sequences, base.ideal.sequences, question.replicas)
    growth = max((p.growth_bytes_per_token for _, p in held), default=whole.growth_bytes_per_token)
    return RecipeAnswer(
        recipe=recipe,
        price=whole,
        rank_prices=tuple(p for _, p in held),
        sequence_bytes=total,
        ratio=_over(base.sequence_bytes if base else total, total),
        token_ratio=_over(
            float(base.price.bytes_per_token) if base else float(whole.bytes_per_token), float(whole.bytes_per_token)
        ),
        budgets=budgets,
        budget_why=why,
        ideal=room,
        reserved=reserved,
        reserved_why=reserved_why,
        rollback=back,
        prior=None
        if question.device is None or question.device.bytes_per_s is None
        else prior(
            question.geometry,
            recipe,
            growth,
            bytes_per_s=question.device.bytes_per_s,
            engine=engine,
            native=native,
        ),
        speed=_speed(recipe, engine, same=same),
        same_as_native=same,
    )


def _speed(recipe: Recipe, engine: str, *, same: bool) -> Speed:
    """Published ratios; 1 where exactly the native cache is stored."""
    if same:
        return Speed(1.0, 1.0, "the native cache itself", (), Source("arithmetic", "equal to native"))
    return speed(recipe, engine)


def _caches(rank: RankGeometry) -> bool:
    return bool(rank.geometry.layers)


def _over(a: float, b: float) -> float:
    return a / b if b else 1.0


def _draft_prices(question: Question, recipe: Recipe) -> tuple[Price, ...]:
    """The draft's cache in the same recipe, without what `keep=` names: its layers are not the model's."""
    draft = question.draft
    if draft is None or draft.geometry is None:
        return ()
    return (price(draft.geometry, replace(recipe, keep=()), engine=question.serving.engine),)


def _rank_weights(question: Question) -> int | None:
    if question.weights_bytes is None:
        return None
    return -(-question.weights_bytes // (question.serving.tp * question.serving.pp))


def _budgets(question: Question, held: list[tuple[RankGeometry, Price]]) -> tuple[tuple[Budget, ...] | None, str]:
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


def _reserve(
    question: Question,
    recipe: Recipe,
    held: list[tuple[RankGeometry, Price]],
    budgets: tuple[Budget, ...] | None,
    why: str,
) -> tuple[Reserved | None, str]:
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


def _bounded(reserved: Reserved | None, room: Ideal | None) -> Reserved | None:
    """No engine holds more whole sequences than their bytes allow; a rule that says so leaves something out."""
    if reserved is None or room is None or reserved.sequences is None or reserved.sequences <= room.sequences:
        return reserved
    note = (
        f"the rule gives {reserved.sequences:,} sequences and does not count states, cross attention or index rows of "
        "this model; the bytes allow the number shown"
    )
    return replace(reserved, sequences=room.sequences, notes=(*reserved.notes, note))


def _notes(question: Question, ranks: tuple[RankGeometry, ...]) -> tuple[str, ...]:
    serving, geometry = question.serving, question.geometry
    notes = [*geometry.notes, *dict.fromkeys(note for rank in ranks for note in rank.notes)]
    windows: Mapping[int, None] = dict.fromkeys(
        layer.window_tokens for layer in geometry.layers if layer.window_tokens is not None
    )
    long = [w for w in windows if w > serving.context_tokens]
    if long:
        notes.append(f"a window of {long[0]:,} tokens is longer than the context: those layers hold whole sequences")
    if 0 < geometry.context_tokens < serving.context_tokens:
        notes.append(f"the model was trained for {geometry.context_tokens:,} tokens; more needs rope scaling")
    if serving.tp * serving.pp > 1 and question.weights_bytes is not None:
        notes.append(f"weights: {_SHARE.ref}")
    states = [p for layer in geometry.layers for p in layer.state if not p.dtype_source]
    if states:
        notes.append("the dtype of recurrent states is assumed: the model's files do not say it")
    if question.draft is not None and question.draft.geometry is not None:
        notes.append(f"the draft model {question.draft.name} caches every token too, in the same recipe")
    return tuple(dict.fromkeys(notes))
