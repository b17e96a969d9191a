"""What stands before the scored tokens is fed without rows, and changes nothing of what comes after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_kit import TEXT, launch

from kvgate.core.engine import Pass
from kvgate.engines._llama_panel import LlamaCppPanel, panel_of
from kvgate.models.resolve import model_files

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def panel(smollm2: Path) -> Iterator[LlamaCppPanel]:
    files = model_files(smollm2, name="smollm2")
    with panel_of({arm: launch(arm, files, context_tokens=256) for arm in ("native", "q4_0")}) as made:
        yield made


def test_rows_after_a_fed_prefix_are_the_same_bits(panel: LlamaCppPanel) -> None:
    """Stepping through a prefix, or feeding it: the next rows are equal, and they are those of the right position."""
    ids = list(panel.tokenize(TEXT).ids[:192])
    panel.begin(ids)
    first = {arm: x.copy() for arm, x in panel.step(64, Pass.PREFILL).items()}
    stepped = {arm: x.copy() for arm, x in panel.step(64, Pass.PREFILL).items()}

    panel.begin(ids)
    panel.feed(64)
    fed = {arm: x.copy() for arm, x in panel.step(64, Pass.PREFILL).items()}

    for arm in stepped:
        assert np.array_equal(fed[arm], stepped[arm])
        assert not np.array_equal(fed[arm], first[arm])


def test_feeding_is_counted(panel: LlamaCppPanel) -> None:
    """More than is left, or than a step takes, is refused as in a step."""
    panel.begin([1] * 70)
    panel.feed(64)

    with pytest.raises(ValueError, match="6 left"):
        panel.feed(7)
    with pytest.raises(ValueError, match="split it"):
        panel.feed(panel.max_rows + 1)
