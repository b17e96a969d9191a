"""A request over any engine's stand-in, for the contract suite; importable from every folder of tests."""

from __future__ import annotations

import sys
from pathlib import Path

from kvgate.core.engine import Request

sys.path.insert(0, str(Path(__file__).parent))

from family_kit import make_environment, request


def stand_in_request(engine: str, folder: Path) -> Request:
    """FP8 on a model that is only numbers, with an interpreter that has the stand-in."""
    model = folder / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    return request(engine, make_environment(folder / "env", engine), model, "fp8_e4m3", context_tokens=512)
