"""A check over the fake engine: real processes, real HTTP, a real store; only the model is scripted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgate.campaign.check import Outcome, check
from kvgate.campaign.progress import Silent
from kvgate.campaign.spec import CheckSpec


def spec_of(gguf: Path, folder: Path, script: dict[str, Any] | None = None, **changed: Any) -> CheckSpec:
    """A smoke check of q8_0 on the fake engine with its store in `folder`."""
    given: dict[str, Any] = {
        "model": str(gguf),
        "kv": ("q8_0",),
        "engine": "fake",
        "policy": "smoke",
        "threads": 1,
        "store": str(folder / "kvgate.db"),
        "env": {"KVGATE_FAKE_SCRIPT": json.dumps(script)} if script else {},
    }
    return CheckSpec(**(given | changed))


@pytest.fixture
def fake_check(smollm2: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Run one check; keyword `script` is the fake engine's, the rest are fields of CheckSpec."""

    def run(script: dict[str, Any] | None = None, progress: Any = None, **changed: Any) -> Outcome:
        return check(spec_of(smollm2, tmp_path, script, **changed), progress or Silent())

    return run
