"""Specs of checks over the fake engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
