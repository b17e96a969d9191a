"""A model with a sliding window is looked at beyond it: Gemma-3-270M's 512 tokens."""

from __future__ import annotations

import pytest

from kvgate.campaign.overrides import read_overrides
from kvgate.campaign.windows import largest_window
from kvgate.core.engine import Tokens
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.core.suite import SuiteContext
from kvgate.suites.fidelity import SUITE as FIDELITY
from kvgate.suites.needle import SUITE as NEEDLE


def model(*windows: int | None) -> ModelGeometry:
    """One layer for each window; None sees all."""
    layers = tuple(
        LayerGeometry(i, "sliding_window" if w else "full_attention", 1, 256, 256, w) for i, w in enumerate(windows)
    )
    return ModelGeometry("tiny", "gemma3", layers, 32768, 262144, Source("file", "test"))


def context(suite: object, preset: str = "smoke", *, tokens: int = 1024, window: int = 0) -> SuiteContext:
    """A context whose tokenizer makes one token of four letters."""

    def tokenize(text: str) -> Tokens:
        return Tokens(tuple(range(1, len(text) // 4 + 1)))

    return SuiteContext(suite.presets()[preset], 0, tokenize, tokens, window_tokens=window)  # type: ignore[attr-defined]


def test_the_largest_window_is_the_models() -> None:
    """512 of Gemma; none where every layer sees all."""
    assert largest_window(model(512, 512, None, 512)) == 512
    assert largest_window(model(512, 4096)) == 4096
    assert largest_window(model(None, None)) == 0


def test_smoke_takes_one_document_past_the_window() -> None:
    """One whole document of at least 64 scored positions past it; the others, and all without a window, as ever."""
    plain = list(FIDELITY.cases(context(FIDELITY)))
    made = list(FIDELITY.cases(context(FIDELITY, window=512)))

    longer = [(a, b) for a, b in zip(plain, made, strict=True) if a.body["prefill"] != b.body["prefill"]]
    assert {c.body["prefill"] for c in plain} == {192}
    assert len(longer) == 1
    assert longer[0][1].body["prefill"] >= 512 + 64
    assert len(longer[0][1].body["ids"]) <= 1024


@pytest.mark.parametrize(
    ("preset", "tokens", "window", "lengths"),
    [
        ("smoke", 1024, 0, ["512"]),
        ("smoke", 1024, 512, ["1024", "512"]),
        ("smoke", 900, 512, ["512", "768"]),
        ("smoke", 700, 512, ["512"]),
        ("smoke", 1024, 511, ["512"]),
        ("smoke", 1024, 4096, ["512"]),
        ("default", 2048, 512, ["1024", "2048", "512"]),
    ],
)
def test_needles_lie_past_the_window(preset: str, tokens: int, window: int, lengths: list[str]) -> None:
    """As many again at twice the window, or just past it, where the context has room and no length goes past it."""
    made = list(NEEDLE.cases(context(NEEDLE, preset, tokens=tokens, window=window)))
    assert sorted({c.bucket for c in made}) == lengths


def test_a_document_stays_short_where_the_context_ends_at_the_window() -> None:
    """Nothing is asked for that does not fit."""
    made = list(FIDELITY.cases(context(FIDELITY, tokens=512, window=512)))
    assert {c.body["prefill"] for c in made} == {192}


def test_checkpoints_are_a_floor_of_the_server_alone() -> None:
    """A panel keeps none, so such an arm would be a second twin there; other counts run in both places."""
    arms = read_overrides(["ckpt32:checkpoints=32", "none:checkpoints=0", "small:ubatch=64"])
    assert {name: o.alone for name, o in arms.items()} == {"ckpt32": True, "none": False, "small": False}
    assert arms["ckpt32"].perturb == ("checkpoints",)
