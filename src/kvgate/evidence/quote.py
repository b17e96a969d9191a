"""At most three claims to stand beside a verdict: same family, same codecs, apart from what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.recipe import parse
from kvgate.evidence.claim import QUALITY, Topic
from kvgate.evidence.family import Subject
from kvgate.evidence.load import claims
from kvgate.evidence.match import Asked, Stored, matches

MOST_QUOTES = 3


@dataclass(frozen=True, slots=True)
class Quote:
    """One claim in the words of a report.

    Attributes:
        carries: what is equal and what is not between the claim and the run. caveats: ids.
    """

    id: str
    statement: str
    carries: tuple[str, ...]
    caveats: tuple[str, ...]
    source: str


def quotes_for(subject: Subject, recipe: str, engine: str = "", version: str = "") -> tuple[Quote, ...]:
    """The nearest claims about answers or faults; empty where nobody we know of has published on this family.

    Args:
        recipe: as it ran, in kvgate's grammar. engine: id. version: of the engine's package.

    Raises:
        UserError: `recipe` is not a recipe.
    """
    wanted = parse(recipe)
    if wanted.is_native or not subject.family:
        return ()
    found = matches(Asked(subject, wanted, engine, version), claims().values())
    told = [m for m in found if m.near and m.stored <= Stored.CODECS and m.claim.topic in (*QUALITY, Topic.BUG)]
    return tuple(
        Quote(
            m.claim.id,
            m.claim.statement,
            m.carries,
            tuple(c.value for c in m.claim.caveats),
            str(m.claim.source.as_source()),
        )
        for m in told[:MOST_QUOTES]
    )
