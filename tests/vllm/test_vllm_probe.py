"""`kvgate probe` on a live vLLM on the CPU: SmolLM2 in FP8, by its pages, by its log, and by another server's log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvgate.campaign.probing import Probe, document, probe
from kvgate.core.deployment import Deployment, Engaged, Engagement
from kvgate.core.engine import Attach, Available, Lane, Launch, Request, Settings
from kvgate.core.recipe import parse
from kvgate.engines._vllm_serving import VllmSession, serve
from kvgate.engines.openai import DRIVER as ATTACH
from kvgate.engines.vllm import DRIVER
from kvgate.models.model_folder import model_folder

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

#: Of another start, on the same build: bfloat16.
OTHER_LOG = Path(__file__).parents[1] / "plan" / "logs" / "vllm_0.32.0_cpu_auto.log"
KEY = "KVGATE_TEST_PROBE_KEY"


@dataclass(frozen=True)
class Seen:
    """What was asked of one server, which is gone by now."""

    launch: Launch
    by_pages: Probe
    by_log: Probe
    by_other: Probe
    attached: Engaged


@pytest.fixture(scope="module")
def seen(smollm2_folder: Path, vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One start in FP8, probed in three ways."""
    settings = Settings(context_tokens=1024, threads=2)
    recipe = parse("fp8_e4m3")
    launch = DRIVER.resolve(Request(model_folder(smollm2_folder), recipe, settings, "fp8_e4m3", Path(vllm_python)))
    log = tmp_path_factory.mktemp("probe") / "start.log"

    async def ask(session: VllmSession) -> Seen:
        url, key = session._http.url, session._http._key
        log.write_text("\n".join(session.load_log()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(KEY, key or "")
            by_pages, by_log, by_other = [
                await asyncio.to_thread(probe, url, key_variable=KEY, lanes=lanes, log=given)
                for lanes, given in ((True, None), (False, log), (False, OTHER_LOG))
            ]
        async with ATTACH.open(Attach(url, "fp8_e4m3", api_key=key)) as attached:
            observed = await attached.deployment()
        return Seen(launch, by_pages, by_log, by_other, ATTACH.engaged(launch.expected, observed))

    async def run() -> Seen:
        async with serve(launch) as session:
            return await ask(session)

    return asyncio.run(run())


def test_the_gauge_confirms_the_type(seen: Seen) -> None:
    """Without any log: engine, version, type and room are the engine's own labels'."""
    got = document(seen.by_pages)

    assert (got["observed"]["engine"], got["observed"]["version"]) == ("vllm", "0.32.0")
    assert (got["observed"]["k"], got["observed"]["kv_how"]) == ("fp8_e4m3", "metrics")
    assert got["observed"]["tokens"] == seen.launch.expected.parts_mib[0][1]
    assert got["contradictions"] == []
    assert Deployment.model_validate({name: got[name] for name in Deployment.model_fields})
    assert seen.attached.level is Engagement.CONFIRMED, seen.attached.reason


def test_lanes_are_tried(seen: Seen) -> None:
    """What vLLM serves is available with its limits, and a panel is missing with the reason."""
    assert seen.by_pages.lanes is not None
    assert isinstance(seen.by_pages.lanes[Lane.COMPLETE], Available)
    assert isinstance(seen.by_pages.lanes[Lane.PREFILL_TOPK], Available)
    assert not isinstance(seen.by_pages.lanes[Lane.PANEL], Available)


def test_its_own_log_agrees_and_says_more(seen: Seen) -> None:
    """The log prints the type and the settings; what it does not print stays unknown with the reason."""
    got = document(seen.by_log)

    assert (got["observed"]["kv_how"], got["requested"]["kv_dtype"]) == ("printed", "fp8_e4m3")
    assert (got["observed"]["chunked_prefill"], got["observed"]["speculation"]) == (True, "none")
    assert got["observed"]["tensor_parallel"] == 1
    assert (got["contradictions"], got["log"]["used"]) == ([], True)
    assert {"accumulation", "probability_dtype"} <= {u["field"] for u in got["unknowns"]}


def test_the_log_of_another_start_is_no_evidence(seen: Seen) -> None:
    """The same build with another model's name: named, exit 4, and its numbers do not count."""
    got = document(seen.by_other)

    assert seen.by_other.exit_code == 4
    assert "log-of-another-model" in {c["id"] for c in got["contradictions"]}
    assert (got["log"]["used"], got["observed"]["k"]) == (False, "fp8_e4m3")
