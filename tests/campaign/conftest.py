"""A check over the fake engine: real processes, real HTTP, a real store; only the model is scripted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_runs import spec_of

from kvgate.campaign.check import Outcome, check
from kvgate.campaign.progress import Silent


@pytest.fixture
def fake_check(smollm2: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Run one check; keyword `script` is the fake engine's, the rest are fields of CheckSpec."""

    def run(script: dict[str, Any] | None = None, progress: Any = None, **changed: Any) -> Outcome:
        return check(spec_of(smollm2, tmp_path, script, **changed), progress or Silent())

    return run
