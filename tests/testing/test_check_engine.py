"""Every registered engine passes the contract suite: started, and attached to a server that already runs.

The registry is scanned, so a new driver is covered without an edit here: over `tests/engines/<engine>_stand_in.py` if
there is one, else really started, on a GGUF file or a Hugging Face folder as its `model_kind` says.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.toy_request import stand_in_request
from kvgate.core.deployment import Engagement
from kvgate.core.engine import Attach, Available, Lane, Request, Settings
from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.core.registry import discover
from kvgate.testing import EngineReport, check_attached, check_engine, fake_request

ENGINES = Path(__file__).parents[1] / "engines"
#: Engines that are only an address: there is nothing to start.
ATTACH_ONLY = ("openai",)
#: Started for real in tests/vllm, in an environment of its own.
ELSEWHERE = ("vllm",)


def startable() -> list[Any]:
    """One parameter per engine that is started here; the real ones start what the machine has."""
    return [
        pytest.param(name, marks=() if name == "fake" or has_stand_in(name) else pytest.mark.engine)
        for name in discover("engine")
        if name not in (*ATTACH_ONLY, *ELSEWHERE)
    ]


def has_stand_in(name: str) -> bool:
    return (ENGINES / f"{name}_stand_in.py").exists()


def request_for(name: str, folder: Path, pytest_request: pytest.FixtureRequest) -> Request:
    """A quantized request that the engine can start."""
    if name == "fake":
        return fake_request("q8_0", context_tokens=512)
    if has_stand_in(name):
        return stand_in_request(name, folder)
    settings = Settings(context_tokens=512, batch_tokens=512, ubatch_tokens=512, threads=1)
    if getattr(discover("engine")[name], "model_kind", "gguf") == "folder":
        from kvgate.models.model_folder import model_folder

        model = model_folder(pytest_request.getfixturevalue("smollm2_folder"))
        return Request(model, parse("fp8_e4m3"), settings, spelling="fp8_e4m3")
    from kvgate.models.resolve import model_files

    return Request(model_files(pytest_request.getfixturevalue("smollm2")), parse("q8_0"), settings, spelling="q8_0")


@pytest.mark.parametrize("name", startable())
def test_an_engine_that_is_started(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolve, refusals, observation, lanes, key, answers, rows, errors by class, nothing left behind."""
    # A stand-in's model is only numbers: nothing lies in its folder that could change.
    monkeypatch.setattr("kvgate.engines._family_child.has_changed", lambda model: "")
    driver = discover("engine")[name]

    report = asyncio.run(check_engine(driver, request_for(name, tmp_path, request)))

    assert getattr(driver, "takes_key", True) == ("the key is required" in report.checks)
    for promise in (
        "what cannot be stored is refused in one line",
        "nothing unobserved is confirmed",
        "a prompt over the context is refused",
        "a killed engine is EngineDied",
        "no process outlives its session",
        "no port outlives its session",
    ):
        assert promise in report.checks


def attached_to_fake(name: str) -> EngineReport:
    """A driver attached to a running fake server, which ends in the middle."""

    async def run() -> EngineReport:
        fake = discover("engine")["fake"]
        async with fake.open(fake.resolve(fake_request("q8_0", context_tokens=512))) as server:
            pid = (await server.deployment()).note.pid

            async def end() -> None:
                os.kill(pid, signal.SIGKILL)

            attach = Attach(server._http.url, spelling="q8_0", api_key=server._http._key)
            return await check_attached(discover("engine")[name], attach, end=end)

    return asyncio.run(run())


@pytest.mark.parametrize("name", sorted(discover("engine")))
def test_an_engine_that_is_attached_to(name: str) -> None:
    """Any driver takes an address: nothing is claimed that was not observed, lanes are probed, an end is named."""
    report = attached_to_fake(name)

    assert "a server that is gone is EngineDied" in report.checks
    assert "nothing unobserved is confirmed" in report.checks
    assert report.has(Lane.CHAT)


def test_sglang_attached_to_its_own_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page says is read, both lanes of scoring are there, and the key of the page stays on it."""
    monkeypatch.setattr("kvgate.engines._family_child.has_changed", lambda model: "")
    driver = discover("engine")["sglang"]

    async def run() -> EngineReport:
        async with driver.open(driver.resolve(stand_in_request("sglang", tmp_path))) as server:
            attach = Attach(server._http.url, spelling="fp8_e4m3", api_key=server._http._key)
            report = await check_attached(driver, attach)
            assert server._http._key not in report.deployment.model_dump_json()
            return report

    report = asyncio.run(run())

    assert report.deployment is not None
    assert (report.deployment.identity.version, report.deployment.identity.engine) == ("0.5.23", "sglang")
    assert isinstance(report.lanes[Lane.PREFILL_TOPK], Available)
    assert isinstance(report.lanes[Lane.FORCED_DECODE], Available)


@pytest.mark.parametrize("name", ATTACH_ONLY)
def test_an_engine_that_is_only_an_address(name: str) -> None:
    """It starts nothing, and says so in one line, for any request."""
    for request in (fake_request(), fake_request("q8_0")):
        with pytest.raises(UserError, match="only an address: kvgate cannot start it"):
            discover("engine")[name].resolve(request)


def test_an_address_that_is_none_is_caught() -> None:
    """A driver that takes any address does not pass."""

    class TakesAnything(type(discover("engine")["openai"])):  # type: ignore[misc]
        def open(self, launch: Any) -> Any:
            return None

    with pytest.raises(AssertionError, match=r"the address 'ftp://127\.0\.0\.1/' was taken"):
        asyncio.run(check_attached(TakesAnything(), Attach("http://127.0.0.1:1")))


def test_a_claim_of_an_attached_server_is_caught() -> None:
    """A driver that confirms what no log says does not pass."""
    driver = discover("engine")["openai"]

    class Sure(type(driver)):  # type: ignore[misc]
        def engaged(self, expected: Any, observed: Any) -> Any:
            return super().engaged(expected, observed)._replace(level=Engagement.CONFIRMED)

    async def run(settings: Mapping[str, Any]) -> None:
        fake = discover("engine")["fake"]
        async with fake.open(fake.resolve(fake_request("q8_0", **settings))) as server:
            await check_attached(Sure(), Attach(server._http.url, spelling="q8_0", api_key=server._http._key))

    with pytest.raises(AssertionError, match="confirms a type that no log and no page names"):
        asyncio.run(run({"context_tokens": 512}))
