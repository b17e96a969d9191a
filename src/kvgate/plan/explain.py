"""Every step of an answer in words, with where its numbers are from: `kvgate plan --explain`, `--layers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, pairwise

from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.core.units import bytes_text, gb_text
from kvgate.plan.answer import Answer, RecipeAnswer
from kvgate.plan.memory import weights_source
from kvgate.plan.price import ENGINE_NATIVE
from kvgate.plan.terms import LayerPrice

_SUM = Source("arithmetic", "sums and products of the lines above")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of an explanation."""

    section: str
    text: str
    source: Source


def explain(answer: Answer) -> tuple[Step, ...]:
    """All steps, in the order in which they were taken."""
    return (*_model(answer), *(step for r in answer.recipes for step in _recipe(answer, r)))


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Layers that are alike: numbers, kind, shape, what is stored, bytes per token and fixed bytes of each."""

    layers: str
    kind: str
    shape: str
    window: str
    stored: str
    bytes_per_token: str
    fixed_bytes: str


def layer_rows(prices: Sequence[LayerPrice]) -> tuple[LayerRow, ...]:
    """Caches that are alike in one row, in order of their first layer."""
    alike: dict[LayerPrice, list[int]] = {}
    for p in prices:
        alike.setdefault(replace(p, layer=replace(p.layer, index=0)), []).append(p.layer.index)
    return tuple(_row(p, indices) for p, indices in alike.items())


def ranges(indices: Iterable[int]) -> str:
    """Layer numbers shortly: [0, 1, 2, 5] -> "0-2, 5"; evenly spaced ones as "0, 4, ... 60"."""
    numbers = sorted(indices)
    steps = {b - a for a, b in pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
    parts = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [n for _, n in run]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ", ".join(parts)


def fraction_text(value: Fraction) -> str:
    """Bytes per token: whole numbers with separators, parts of a byte with two decimals."""
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.2f}"


def both_units(n_bytes: int) -> str:
    """A size in GB and GiB, as the two camps read it."""
    return f"{gb_text(n_bytes)} = {bytes_text(n_bytes)}"


def _row(p: LayerPrice, indices: list[int]) -> LayerRow:
    layer = p.layer
    shape = f"{layer.kv_heads} x ({layer.k_dim} + {layer.v_dim})" if layer.kv_heads else "state only"
    if layer.kv_heads and not layer.v_dim:
        shape = f"one vector of {layer.k_dim}"
    if layer.tokens_per_row > 1:
        shape += f" per {layer.tokens_per_row} tokens"
    window = "all tokens" if layer.has_rows else ""
    if layer.fixed_tokens is not None:
        window = f"{layer.fixed_tokens:,} fixed"
    elif layer.window_tokens is not None:
        window = f"{'chunks of' if layer.chunked else 'last'} {layer.window_tokens:,}"
    stored = p.k if p.k == p.v or not p.v else f"k={p.k}, v={p.v}"
    if p.index_row_bytes:
        stored += f" + index key {p.index_row_bytes}"
    return LayerRow(
        ranges(indices),
        layer.kind,
        shape,
        window,
        stored or "state",
        f"{len(indices)} x {fraction_text(p.bytes_per_token)}",
        f"{len(indices)} x {p.state_bytes + p.fixed_bytes:,}" if p.state_bytes + p.fixed_bytes else "0",
    )


def _model(answer: Answer) -> Iterator[Step]:
    q = answer.question
    g = q.geometry
    yield Step("model", f"{q.name or g.name}: family {g.family or g.architecture}, {len(g.layers)} caches", g.source)
    yield Step("model", f"native cache: {answer.native}", _native_source(answer))
    if q.weights_bytes is not None:
        yield Step("model", f"weights {q.weights_bytes:,} bytes", weights_source(q))
    if q.device is not None:
        sizes = "".join(f"; {other}" for other in q.device.other)
        yield Step("device", f"{q.device.name}: {both_units(q.device.bytes)} used here{sizes}", q.device.source)
    for rank in answer.ranks:
        text = f"{rank.name}: layers {rank.first_layer} to {rank.last_layer - 1}, {rank.ranks} GPUs hold such a share"
        if len(answer.ranks) > 1 or rank.ranks > 1:
            yield Step("ranks", text, Source("spec", f"{q.serving.engine} layer and head split"))


def _native_source(answer: Answer) -> Source:
    engine, geometry = answer.question.serving.engine, answer.question.geometry
    if engine in ENGINE_NATIVE:
        return Source("spec", f"{engine}'s default cache type")
    if not geometry.native_dtype:
        return Source("assumed", f"the file names no dtype: {answer.native}")
    return geometry.source


def _recipe(answer: Answer, r: RecipeAnswer) -> Iterator[Step]:
    context = answer.question.serving.context_tokens
    name = str(r.recipe)
    for row in layer_rows(r.price.layers):
        text = f"layers {row.layers} ({row.kind}, {row.shape}): {row.stored}, {row.bytes_per_token} bytes a token"
        yield Step(name, text + (f", {row.fixed_bytes} fixed" if row.fixed_bytes != "0" else ""), _codecs(r.recipe))
    yield from _mapped(r)
    price = r.price
    yield Step(
        name,
        f"a token inside all windows {fraction_text(price.bytes_per_token)} bytes, past them "
        f"{fraction_text(price.growth_bytes_per_token)}; fixed {price.fixed_bytes_per_sequence:,} a sequence",
        _SUM,
    )
    yield Step(
        name, f"one sequence of {context:,} tokens: {r.sequence_bytes:,} bytes, {both_units(r.sequence_bytes)}", _SUM
    )
    for budget in r.budgets or ():
        for term in budget.terms:
            assumed = " (assumed)" if term.assumed else ""
            yield Step(name, f"{budget.rank}: {term.name} {term.bytes:+,} bytes: {term.how}{assumed}", term.source)
        yield Step(name, f"{budget.rank}: KV budget {budget.bytes:,} bytes, {both_units(budget.bytes)}", _SUM)
    if r.budget_why:
        yield Step(name, r.budget_why, _SUM)
    if r.ideal is not None:
        yield Step(
            name,
            f"ideal on {r.ideal.limiting_rank}: {r.ideal.sequence_bytes:,} bytes a sequence there, so "
            f"{r.ideal.sequences:,} sequences, {r.ideal.tokens:,} tokens",
            Source("arithmetic", "budget / bytes, rounded down, times data-parallel replicas"),
        )
    if r.reserved is not None:
        for text in r.reserved.steps:
            yield Step(name, f"{r.reserved.rule}: {text}", r.reserved.source)
        for line in r.reserved.prints.splitlines():
            yield Step(name, f"the engine's log: {line}", r.reserved.source)
    elif r.reserved_why:
        yield Step(name, f"engine: {r.reserved_why}", Source("spec", f"{answer.question.serving.engine} rule"))


def _codecs(recipe: Recipe) -> Source:
    words = ", ".join(dict.fromkeys(side.codec for _, side in recipe.sides())) or "the native dtype"
    return Source("spec", f"row sizes of {words}")


def _mapped(r: RecipeAnswer) -> Iterator[Step]:
    """Rows that an engine stores in another layout than the recipe's word."""
    asked = {str(side) for _, side in r.recipe.sides()}
    packed = {p.k for p in r.price.layers if "ds_mla" in p.k} - asked
    for word in sorted(packed):
        text = f"sparse MLA rows are packed: {', '.join(sorted(asked))} is stored as {word}"
        yield Step(str(r.recipe), text, Source("spec", "vLLM FLASHMLA_SPARSE; sgl-project/sglang pull 11309"))
