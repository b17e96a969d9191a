"""Which claims speak to a model and a recipe, in order of how far they carry. Claims are ranked, never averaged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from kvgate.core.recipe import Recipe, Side, parse
from kvgate.core.source import NOT_TESTED as NOT_TESTED
from kvgate.evidence.claim import QUALITY, Claim
from kvgate.evidence.family import Subject, families, plain_name, size_of
from kvgate.evidence.load import Published


class Model(IntEnum):
    """How near the claim's model is; a smaller number is nearer."""

    SAME = 0
    SAME_SIZE = 1
    FAMILY = 2
    LAYERS = 3
    ANY = 4


class Stored(IntEnum):
    """How near the claim's recipe is."""

    SAME = 0
    CODECS = 1
    ONE_SIDE = 2
    OTHER = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked about. Empty or None is "whatever".

    Attributes:
        version: of the engine. context_tokens: the longest sequence that will be served.
    """

    subject: Subject
    recipe: Recipe | None = None
    engine: str = ""
    version: str = ""
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A claim with its distance: `carries` says in words what is equal and what is not."""

    published: Published
    model: Model
    stored: Stored
    carries: tuple[str, ...]

    @property
    def claim(self) -> Claim:
        return self.published.claim

    @property
    def near(self) -> bool:
        """Whether the claim is about this family at all."""
        return self.model <= Model.FAMILY


def matches(asked: Asked, claims: Iterable[Published]) -> tuple[Match, ...]:
    """Claims that say anything about what is asked, nearest first."""
    found = []
    for published in claims:
        claim = published.claim
        model, stored = _model(asked.subject, claim), _stored(asked.recipe, claim)
        if not _says_something(asked, claim, model, stored):
            continue
        found.append(Match(published, model, stored, _carries(asked, claim, model, stored)))
    return tuple(sorted(found, key=lambda m: _rank(asked, m)))


def is_tested(found: Iterable[Match]) -> bool:
    """Whether somebody published a test of answers on this very model with these codecs."""
    return any(
        m.model is Model.SAME and m.stored <= Stored.CODECS and m.claim.topic in QUALITY and m.claim.recipe
        for m in found
    )


def _says_something(asked: Asked, claim: Claim, model: Model, stored: Stored) -> bool:
    if asked.engine and claim.engine not in ("", asked.engine) and not claim.model:
        return False  # a word about another engine's own behaviour
    if asked.recipe is None:
        return model <= Model.LAYERS
    if stored is Stored.OTHER:
        return model <= Model.SAME_SIZE and bool(claim.recipe)
    return model <= Model.LAYERS or stored <= Stored.CODECS


def _rank(asked: Asked, m: Match) -> tuple[int, int, bool, bool, int, int, str]:
    other_engine = bool(asked.engine) and m.claim.engine not in ("", asked.engine)
    return (
        max(m.model, Model.SAME_SIZE) if m.stored is Stored.OTHER else m.model,
        m.stored,
        other_engine,
        m.claim.topic not in QUALITY,
        len(m.claim.contradicted_by),
        len(m.claim.caveats),
        m.claim.id,
    )


def _model(subject: Subject, claim: Claim) -> Model:
    names = {plain_name(n) for n in (claim.model, *claim.also) if n}
    if plain_name(subject.name) in names:
        return Model.SAME
    if claim.family and claim.family == subject.family:
        sizes = {size_of(n) for n in names} - {""}
        return Model.SAME_SIZE if subject.size and subject.size in sizes else Model.FAMILY
    traits = {*claim.traits, *(families()[claim.family].traits if claim.family else ())} - {"moe"}
    return Model.LAYERS if traits & set(subject.traits) else Model.ANY


def _stored(asked: Recipe | None, claim: Claim) -> Stored:
    if asked is None:
        return Stored.SAME
    if not claim.recipe:
        return Stored.OTHER
    theirs = parse(claim.recipe)
    if _same(asked, theirs):
        return Stored.SAME
    if _codecs(asked) == _codecs(theirs):
        return Stored.CODECS
    pairs = zip(_codecs(asked), _codecs(theirs), strict=False)
    return Stored.ONE_SIDE if any(a == b for a, b in pairs) else Stored.OTHER


def _codecs(r: Recipe) -> tuple[str, ...]:
    return tuple(side.codec for _, side in r.sides())


def _same(a: Recipe, b: Recipe) -> bool:
    """Equal in all that both say; an origin or a transform that one of them leaves open is no difference."""
    if _codecs(a) != _codecs(b) or a.keep != b.keep:
        return False
    if (a.residual_tokens, a.sink_tokens) != (b.residual_tokens, b.sink_tokens):
        return False
    return all(
        _open(x.origin, y.origin) and _open(x.transforms, y.transforms) and _open(x.params, y.params)
        for (_, x), (_, y) in zip(a.sides(), b.sides(), strict=True)
    )


def _open(a: object, b: object) -> bool:
    return not a or not b or a == b


def _carries(asked: Asked, claim: Claim, model: Model, stored: Stored) -> tuple[str, ...]:
    said = [_model_words(asked.subject, claim, model)]
    if asked.recipe is not None:
        said.append(_recipe_words(asked.recipe, claim, stored))
    if asked.engine and claim.engine and claim.engine != asked.engine:
        said.append(f"other engine: {claim.engine}")
    elif asked.version and claim.engine == asked.engine:
        said.append(_version_words(asked.version, claim))
    if asked.context_tokens and claim.context_tokens and asked.context_tokens > max(claim.context_tokens):
        said.append(f"other context lengths: up to {max(claim.context_tokens):,}, not {asked.context_tokens:,} tokens")
    return tuple(s for s in said if s)


def _model_words(subject: Subject, claim: Claim, model: Model) -> str:
    if model is Model.SAME:
        return "same model"
    if model is Model.SAME_SIZE:
        return f"same family and size, other training: {claim.model}"
    if model is Model.FAMILY:
        size = size_of(claim.model)
        if size and subject.size:
            return f"same family, other size: {size.upper()}, not {subject.size.upper()}"
        return f"same family: {claim.model}" if claim.model else "same family"
    theirs = {*claim.traits, *(families()[claim.family].traits if claim.family else ())}
    shared = [t for t in subject.traits if t in theirs and t != "moe"]
    if shared:
        return f"other family, same kind of layers ({', '.join(shared)}): {claim.model or 'no model in particular'}"
    return f"other family: {claim.model}" if claim.model else "no model in particular"


def _recipe_words(asked: Recipe, claim: Claim, stored: Stored) -> str:
    if stored is Stored.SAME:
        return "same recipe" if str(asked) == claim.recipe else f"same recipe as far as told: {claim.recipe}"
    if stored is Stored.OTHER:
        return f"other recipe: {claim.recipe}" if claim.recipe else ""
    theirs = parse(claim.recipe)
    if stored is Stored.ONE_SIDE:
        return f"K or V alone in the same codec: {claim.recipe}"
    said = []
    for word, of in (("scales", _origins), ("rotation", _transforms)):
        a, b = of(asked), of(theirs)
        if a != b:
            said.append(f"other {word}: {b or 'none told'}, not {a or 'none told'}")
    if asked.keep != theirs.keep:
        kept = ",".join(theirs.keep) or "no layers"
        said.append(f"with {kept} kept native, not {','.join(asked.keep) or 'none'}")
    return "; ".join(said) or f"other options: {claim.recipe}"


def _origins(r: Recipe) -> str:
    return _each(r, lambda side: side.origin or "")


def _transforms(r: Recipe) -> str:
    return _each(r, lambda side: "+".join(side.transforms))


def _each(r: Recipe, of: Callable[[Side], str]) -> str:
    words = [of(side) for _, side in r.sides()]
    return words[0] if len(set(words)) == 1 else ",".join(words)


def _version_words(version: str, claim: Claim) -> str:
    low, high = claim.from_version, claim.to_version
    if not low and not high:
        return "engine version not told"
    mine, first, last = (_numbers(v) for v in (version, low, high))
    if mine is None or (low and first is None) or (high and last is None):
        return ""
    below = first is not None and mine < first
    above = last is not None and mine > last
    span = low if low == high else f"{low or 'start'} to {high or 'now'}"
    return f"other engine version: {span}, not {version}" if below or above else ""


def _numbers(version: str) -> tuple[int, ...] | None:
    """(0, 19, 1) of "0.19.1", (11549,) of "b11549" and of the package "2026.10.11549" that holds it."""
    found = [int(x) for x in re.findall(r"\d+", version)[:3]]
    if not found:
        return None
    is_package = len(found) == 3 and found[0] > 2000
    return (found[2],) if is_package else tuple(found)
