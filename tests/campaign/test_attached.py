"""Two servers that already run: real processes of the fake engine, attached to by address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attached_kit import answering, servers

from kvgate.campaign.attached import _codec
from kvgate.campaign.check import Outcome, check
from kvgate.campaign.progress import Silent
from kvgate.campaign.spec import CheckSpec
from kvgate.core.errors import UserError
from kvgate.core.verdict import Decision


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


def test_two_nearly_equal_servers_cannot_be_confirmed(run: Any) -> None:
    """Little differs, but nobody saw what they store: INCONCLUSIVE, with the reason."""
    outcome = run({}, {"top_sd": 0.01, "noise_seed": 1})
    verdict = outcome.view.verdicts[0]
    said = " ".join(f.message for f in verdict.findings)

    assert verdict.decision is Decision.INCONCLUSIVE and outcome.exit_code == 3
    assert "unobserved" in said
    summaries = outcome.view.evidence["q8_0"].summaries
    assert summaries["golden"].floor.keys() == summaries["topk"].floor.keys() == {"again"}
    assert 0.0 < summaries["topk"].metrics["topk_decode.kl_mean"].value < 0.001


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
        ({"against": "http://127.0.0.1:10", "kv": ("nonsense",)}, "no engine stores a KV cache in 'nonsense'"),
        ({"against": "http://127.0.0.1:10", "base": "nonsense"}, "no engine stores a KV cache in 'nonsense'"),
    ],
)
def test_wrong_addresses_are_one_line(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    """What is missing, or what makes no sense for a server that already runs."""
    given: dict[str, Any] = {"model": "http://127.0.0.1:9", "kv": ("q8_0",), "store": str(tmp_path / "k.db")}
    with pytest.raises(UserError) as e:
        check(CheckSpec(**(given | changed)), Silent())

    assert said in str(e.value) and "\n" not in str(e.value)
    assert not (tmp_path / "k.db").exists()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"{}", "HTTP 401: {}; set KVGATE_API_KEY to its key"),
        (503, b'{"error": {"message": "Loading model"}}', "Loading model; wait until it is ready"),
        (429, b"slow down", "HTTP 429: slow down; wait"),
        (200, b"<html>welcome</html>", "200 with a body that is not JSON: <html>welcome</html>; wait"),
    ],
)
def test_a_server_that_refuses_is_not_taken_for_one_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, said: str
) -> None:
    """A key that is missing on both sides would else make two unnamed servers equal: one line, and nothing started."""
    monkeypatch.setenv("KVGATE_API_KEY", "s3cret-key")
    with answering(status, body) as one, answering(status, body) as two, pytest.raises(UserError) as e:
        check(CheckSpec(model=one, against=two, kv=("q8_0",), store=str(tmp_path / "k.db")), Silent())

    assert said in str(e.value) and "\n" not in str(e.value) and "s3cret" not in str(e.value)
    assert not (tmp_path / "k.db").exists()


def test_an_engines_word_is_held_against_its_log() -> None:
    """vLLM logs fp8_e4m3 for what a person calls fp8; nvfp4 is two layouts and stays as it was written."""
    assert [_codec(w) for w in ("fp8", "q8_0", "float16", "nvfp4", "kivi")] == [
        "fp8_e4m3",
        "q8_0",
        "f16",
        "nvfp4",
        "kivi",
    ]


def test_a_next_command_repeats_what_was_said_of_the_servers(run: Any) -> None:
    """Without these words the same servers would be refused or judged otherwise."""
    outcome = run({}, {"break_rate": 1.0}, kv=("q4_0",), suites=("golden",), assume_engaged=True, same_model=True)
    command = outcome.view.verdicts[0].next.command

    assert "--assume-engaged" in command and "--same-model" in command and "--against" in command


def test_options_of_running_servers_need_one(tmp_path: Path) -> None:
    """--log without a server that runs is a mistake."""
    spec = CheckSpec(model="smollm2", kv=("q8_0",), log=tmp_path / "x.log", store=str(tmp_path / "k.db"))
    with pytest.raises(UserError, match="are for servers that already run"):
        check(spec, Silent())
