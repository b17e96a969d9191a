"""The campaign looks up what others have published for each candidate, as it really ran."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvgate.campaign.arms import Role
from kvgate.campaign.published import published
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.evidence.load import claims

GEOMETRY = ModelGeometry(
    "m", "qwen35", (LayerGeometry(0, "full_attention", 2, 64, 64),), 4096, 0, Source("assumed", "a test")
)


def run_of(name: str, *arms: tuple[str, str, str], version: str = "2026.10.11549") -> Any:
    """What `published` reads of a measured run: model, engine, arms (name, as asked, as run), the base's version."""
    facts = SimpleNamespace(model=SimpleNamespace(name=name, geometry=replace(GEOMETRY, name=name)), engine="llama_cpp")
    rows = [SimpleNamespace(name=n, recipe=asked, effective=ran) for n, asked, ran in arms]
    base = SimpleNamespace(deployment=SimpleNamespace(identity=SimpleNamespace(version=version)))
    return SimpleNamespace(
        facts=facts, seen={("base", "panel"): base}, of_role=lambda role: rows if role is Role.CANDIDATE else []
    )


def test_each_candidate_has_its_own_quotes() -> None:
    """The recipe as it ran decides: q8_0 has quotes of q8_0, and a codec that nobody tried has none."""
    found = published(run_of("Qwen3.6-27B", ("a", "q8_0", "q8_0+hadamard"), ("b", "iq4_nl", "iq4_nl+hadamard")))

    assert found["b"] == ()
    assert 1 <= len(found["a"]) <= 3
    for q in found["a"]:
        claim = claims()[q.id].claim
        assert (q.statement, claim.recipe.split("+")[0]) == (claim.statement, "q8_0")
        assert q.carries


def test_a_model_of_no_family_has_none() -> None:
    """The demo's model: nobody we know of."""
    assert published(run_of("smollm2", ("q8_0", "q8_0", "q8_0+hadamard"))) == {"q8_0": ()}


@pytest.mark.parametrize(
    ("asked", "ran", "kept"), [("q8_0", "what the server says", True), ("in words", "in other words", False)]
)
def test_a_server_described_in_words_is_looked_up_as_it_was_asked(asked: str, ran: str, kept: bool) -> None:
    """What is no recipe is passed over; without any recipe there is no entry, which is not the same as no claim."""
    assert ("a" in published(run_of("Qwen3.6-27B", ("a", asked, ran)))) == kept
