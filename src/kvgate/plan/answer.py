"""One question to the planner and its whole answer: prices, budgets, ideal and reserved capacity of each recipe.

Composes the parts; holds no rule of its own. What cannot be known (no device, no weights, an engine without a rule, a
model that the engine does not serve) is None with the reason beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvgate.core.recipe import Recipe, parse
from kvgate.core.source import Source
from kvgate.plan.advice import Condition, First, conditions, first_recipe
from kvgate.plan.concurrency import Ideal, cost, ideal
from kvgate.plan.memory import bounded, budgets_of, engine_rule, reserve_of
from kvgate.plan.parallel import RankGeometry, split
from kvgate.plan.price import native_codec, price, sequence_bytes
from kvgate.plan.question import DeviceMemory, Draft, Question, check_question
from kvgate.plan.replicas import Rollback, rollback
from kvgate.plan.slope import Prior, Speed, prior, speed
from kvgate.plan.terms import Budget, Price, Reserved

__all__ = ["Answer", "DeviceMemory", "Draft", "Question", "RecipeAnswer", "answer", "engine_rule"]

NATIVE = parse("native")
_SHARE = Source(
    "assumed", "an equal share of the weights a GPU; norms, embeddings and replicated heads are not told apart"
)


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
    check_question(question)
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
        engine=serving.engine,
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


def _recipe_answer(
    question: Question, ranks: tuple[RankGeometry, ...], recipe: Recipe, base: RecipeAnswer | None
) -> RecipeAnswer:
    serving, engine = question.serving, question.serving.engine
    native = native_codec(question.geometry, engine)
    whole = price(question.geometry, recipe, engine=engine, native=native, mtp=serving.mtp)
    # A stage without attention has no cache and does not limit anything.
    held = [(r, price(r.geometry, recipe, engine=engine, native=native, mtp=serving.mtp)) for r in ranks if _caches(r)]
    drafted = () if question.draft is None else _draft_prices(question, recipe)
    budgets, why = budgets_of(question, held)
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
    reserved, reserved_why = reserve_of(question, recipe, held, budgets, why)
    reserved = bounded(reserved, room)
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
