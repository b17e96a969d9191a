"""Every registered engine that can be started passes the engine check."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvgate.core.engine import Request, Settings
from kvgate.core.recipe import parse
from kvgate.core.registry import discover
from kvgate.testing import check_engine, fake_request

#: Engines that are only an address: there is nothing to start, so their tests are their own.
ATTACH_ONLY = {"openai"}
#: Engines with an environment and a model of their own; checked in tests/vllm.
ELSEWHERE = {"vllm"}


def request_for(name: str, pytest_request: pytest.FixtureRequest) -> Request:
    """A q8_0 request that the engine can start: on the demo model, but for the fake one."""
    if name == "fake":
        return fake_request("q8_0", context_tokens=512)
    from kvgate.models.resolve import model_files

    path: Path = pytest_request.getfixturevalue("smollm2")
    settings = Settings(context_tokens=512, batch_tokens=512, ubatch_tokens=512, threads=1)
    return Request(model_files(path), parse("q8_0"), settings, spelling="q8_0")


def startable() -> list[Any]:
    """One parameter per engine; all but the fake one start a real engine."""
    names = [n for n in discover("engine") if n not in ATTACH_ONLY | ELSEWHERE]
    return [pytest.param(n, marks=() if n == "fake" else pytest.mark.engine) for n in names]


@pytest.mark.parametrize("name", startable())
def test_engine(name: str, request: pytest.FixtureRequest) -> None:
    """Pure resolve, observed deployment, probed lanes, key, determinism, errors by class, nothing left behind."""
    report = asyncio.run(check_engine(discover("engine")[name], request_for(name, request)))

    assert "the key is required" in report.checks
    assert "a killed engine is EngineDied" in report.checks
    assert "no process outlives its session" in report.checks


def checked(script: Mapping[str, Any]) -> None:
    """The check over a fake engine with a script."""
    asyncio.run(check_engine(discover("engine")["fake"], fake_request("q8_0", script=script, context_tokens=512)))


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ({"wrong_dtype": "f16"}, "contradicted"),
        ({"silent_log": True}, "observed no KV cache types"),
        ({"noise_rate": 1.0, "noise_tail": 0.1, "noise_seed": 3}, "temperature 0 gave two answers"),
    ],
)
def test_a_bad_engine_is_caught(script: Mapping[str, Any], word: str) -> None:
    """The check fails, and says which promise was not kept."""
    with pytest.raises(AssertionError, match=word):
        checked(script)
