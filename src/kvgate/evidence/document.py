"""The `kvgate.evidence/1` document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvgate.evidence.caveat import WORDS
from kvgate.evidence.family import families
from kvgate.evidence.load import Published
from kvgate.evidence.match import NOT_TESTED, Asked, Match, is_tested

SCHEMA = "kvgate.evidence/1"


def document(asked: Asked, found: Iterable[Match]) -> dict[str, Any]:
    """What is asked, whether anybody tested it, and every claim with its distance, nearest first.

    `tested` is null where no recipe was given: then nothing in particular was asked.
    """
    listed, subject = list(found), asked.subject
    tested = is_tested(listed) if asked.recipe is not None else None
    return {
        "schema": SCHEMA,
        "model": {
            "name": subject.name,
            "family": subject.family or None,
            "family_title": families()[subject.family].title if subject.family else None,
            "size": subject.size or None,
            "layers": list(subject.traits),
            "layers_read": subject.traits_read,
        },
        "recipe": str(asked.recipe) if asked.recipe is not None else None,
        "engine": asked.engine or None,
        "engine_version": asked.version or None,
        "context_tokens": asked.context_tokens,
        "tested": tested,
        "why": NOT_TESTED if tested is False else None,
        "claims": [_match(m) for m in listed],
    }


def list_document(found: Iterable[Published]) -> dict[str, Any]:
    """Every claim, without a question."""
    return {"schema": SCHEMA, "claims": [claim_json(p) for p in found]}


def claim_json(published: Published) -> dict[str, Any]:
    """One claim; unknown is null."""
    c = published.claim
    return {
        "id": c.id,
        "publication": published.title,
        "statement": c.statement,
        "topic": c.topic.value,
        "model": c.model or None,
        "family": c.family or None,
        "engine": c.engine or None,
        "from_version": c.from_version or None,
        "to_version": c.to_version or None,
        "recipe": c.recipe or None,
        "device": c.device or None,
        "context_tokens": list(c.context_tokens),
        "numbers": [n.model_dump(mode="json") for n in c.numbers],
        "effect": c.effect or None,
        "scope": c.scope or None,
        "caveats": [{"id": x.value, "meaning": WORDS[x]} for x in c.caveats],
        "contradicted_by": list(c.contradicted_by),
        "contradicts": list(c.contradicts),
        "correction": c.correction.model_dump(mode="json") if c.correction is not None else None,
        "source": c.source.model_dump(mode="json"),
    }


def _match(m: Match) -> dict[str, Any]:
    near = {"model": m.model.name.casefold(), "recipe": m.stored.name.casefold(), "carries": list(m.carries)}
    return {**claim_json(m.published), "match": near}
