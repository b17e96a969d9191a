"""What others have published on each candidate, to stand beside its verdict; decides nothing."""

from __future__ import annotations

from kvgate.campaign.arms import BASE, Role
from kvgate.campaign.measured import Measured
from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.evidence.family import subject_of
from kvgate.evidence.quote import quotes_for
from kvgate.report.model import PublishedView


def published(run: Measured) -> dict[str, tuple[PublishedView, ...]]:
    """Per candidate, at most three quotes; empty where nobody we know of has published on it."""
    subject = subject_of(run.facts.model.name, run.facts.model.geometry)
    return {
        arm.name: tuple(
            PublishedView(q.id, q.statement, q.carries, q.caveats, q.source)
            for q in quotes_for(subject, recipe, run.facts.engine, _version(run))
        )
        for arm in run.of_role(Role.CANDIDATE)
        if (recipe := _recipe(arm.effective, arm.recipe)) is not None
    }


def _recipe(*texts: str) -> str | None:
    """The first that is a recipe: a server that already ran may be described in words."""
    for text in texts:
        try:
            return str(parse(text))
        except UserError:
            continue
    return None


def _version(run: Measured) -> str:
    base = next((r.deployment for (a, _), r in run.seen.items() if a == BASE and r.deployment), None)
    return base.identity.version or "" if base is not None else ""
