"""Two servers that already run: real processes of the fake engine, attached to by address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvgate.campaign.check import Outcome, check
from kvgate.campaign.progress import Silent
from kvgate.campaign.spec import CheckSpec
from kvgate.core.errors import UserError
from kvgate.core.verdict import Decision
from kvgate.engines.fake import DRIVER
from kvgate.testing.requests import fake_request


@contextmanager
def servers(*scripts: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """(address, key) of live servers, one a script."""
    ready, end, found = threading.Event(), threading.Event(), []

    async def live() -> None:
        async with AsyncExitStack() as stack:
            for script in scripts:
                launch = DRIVER.resolve(fake_request(script=script, context_tokens=4096))
                session = await stack.enter_async_context(DRIVER.open(launch))
                found.append((session._http.url, session._http._key))  # type: ignore[attr-defined]
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found
    finally:
        end.set()
        thread.join(60)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Check a candidate's script against a base's."""

    def go(base: dict[str, Any], candidate: dict[str, Any], **more: Any) -> Outcome:
        with servers(base, candidate) as ((base_url, base_key), (url, key)):
            monkeypatch.setenv("KVGATE_BASE_API_KEY", base_key)
            monkeypatch.setenv("KVGATE_API_KEY", key)
            given: dict[str, Any] = {"kv": ("q8_0",), "policy": "smoke", "suites": ("golden", "topk")}
            spec = CheckSpec(model=url, against=base_url, store=str(tmp_path / "k.db"), **(given | more))
            return check(spec, Silent())

    return go


def test_two_equal_servers_cannot_be_confirmed(run: Any) -> None:
    """Nothing differs, but nobody saw what they store: INCONCLUSIVE, with the reason."""
    outcome = run({}, {})
    verdict = outcome.view.verdicts[0]
    said = " ".join(f.message for f in verdict.findings)

    assert verdict.decision is Decision.INCONCLUSIVE and outcome.exit_code == 3
    assert "unobserved" in said
    summaries = outcome.view.evidence["q8_0"].summaries
    assert summaries["golden"].floor.keys() == summaries["topk"].floor.keys() == {"again"}
    assert summaries["topk"].metrics["topk_decode.kl_mean"].value == 0.0


def test_a_persons_word_is_recorded(run: Any) -> None:
    """--assume-engaged takes the recipe on trust, and the report says so."""
    outcome = run({}, {}, assume_engaged=True)
    engaged = outcome.view.evidence["q8_0"].engaged["serving"]

    assert engaged.level.value == "assumed" and "--assume-engaged" in engaged.reason
    assert any(f.status.value == "warn" and f.rule == "engaged" for f in outcome.view.verdicts[0].findings)


def test_a_broken_candidate_fails(run: Any) -> None:
    """What the answers show counts without any log."""
    outcome = run({}, {"break_rate": 1.0}, suites=("golden",))

    assert outcome.view.verdicts[0].decision is Decision.FAIL


def test_a_log_confirms_or_contradicts(run: Any, tmp_path: Path) -> None:
    """The candidate's load log is held against what --kv says it stores."""
    line = "llama_kv_cache: size = 11.95 MiB (1024 cells, 30 layers, 1/1 seqs), K (q8_0): 5.98 MiB, V (q8_0): 5.98 MiB"
    log = tmp_path / "server.log"
    log.write_text(line + "\n")
    confirmed = run({}, {}, log=log)
    contradicted = run({}, {}, log=log, kv=("q4_0",))

    assert confirmed.view.evidence["q8_0"].engaged["serving"].level.value == "confirmed"
    assert contradicted.exit_code == 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"against": None}, "--against BASE_URL"),
        ({"against": "smollm2"}, "is no address"),
        ({"against": "http://127.0.0.1:9/"}, "are the same server"),
        ({"against": "http://127.0.0.1:10"}, "start the server"),
        ({"against": "http://127.0.0.1:10", "kv": ("q8_0", "q4_0")}, "has one recipe"),
        ({"against": "http://127.0.0.1:10", "arms": ("x:batch=3",)}, "--arm is for engines that kvgate starts"),
        ({"against": "http://127.0.0.1:bad"}, "is no address"),
    ],
)
def test_wrong_addresses_are_one_line(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    """What is missing, or what makes no sense for a server that already runs."""
    given: dict[str, Any] = {"model": "http://127.0.0.1:9", "kv": ("q8_0",), "store": str(tmp_path / "k.db")}
    with pytest.raises(UserError) as e:
        check(CheckSpec(**(given | changed)), Silent())

    assert said in str(e.value) and "\n" not in str(e.value)
    assert not (tmp_path / "k.db").exists()


def test_options_of_running_servers_need_one(tmp_path: Path) -> None:
    """--log without a server that runs is a mistake."""
    spec = CheckSpec(model="smollm2", kv=("q8_0",), log=tmp_path / "x.log", store=str(tmp_path / "k.db"))
    with pytest.raises(UserError, match="are for servers that already run"):
        check(spec, Silent())
