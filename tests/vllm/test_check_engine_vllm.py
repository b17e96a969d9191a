"""The contract suite on real vLLM."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvgate.core.engine import Lane, Request, Settings
from kvgate.core.recipe import parse
from kvgate.core.registry import discover
from kvgate.models.model_folder import model_folder
from kvgate.testing import check_engine

pytestmark = pytest.mark.vllm


def test_vllm_keeps_the_contract(vllm_python: str, smollm2_folder: Path) -> None:
    """Started twice on the CPU: observation, lanes, key, answers, rows on both lanes, errors, nothing left behind."""
    settings = Settings(context_tokens=512, threads=1)
    request = Request(model_folder(smollm2_folder), parse("fp8_e4m3"), settings, "fp8_e4m3", Path(vllm_python))

    report = asyncio.run(check_engine(discover("engine")["vllm"], request))

    assert report.has(Lane.PREFILL_TOPK)
    assert report.has(Lane.FORCED_DECODE)
    for promise in ("the key is required", "a killed engine is EngineDied", "no process outlives its session"):
        assert promise in report.checks
