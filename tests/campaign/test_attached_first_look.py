"""Servers that run are looked at before either is measured: what cannot be compared or decided is said first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attached_kit import servers

from kvgate.campaign.attached import attach
from kvgate.campaign.check import Outcome, check
from kvgate.campaign.foresee import foreseen
from kvgate.campaign.progress import Silent
from kvgate.campaign.spec import CheckSpec
from kvgate.core import registry
from kvgate.core.engine import Available, Lane, Missing
from kvgate.core.errors import UserError
from kvgate.gate.policy import load_policy
from kvgate.store.open import open_store

Q8_LOG = "llama_kv_cache: size = 11.95 MiB (1024 cells, 30 layers, 1/1 seqs), K (q8_0): 5.98 MiB, V (q8_0): 5.98 MiB\n"


class Told(Silent):
    """Notes and stages in their order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def stage(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Something done with the spec of two live servers."""

    def go(done: Any, base: dict[str, Any], candidate: dict[str, Any], **more: Any) -> Any:
        with servers(base, candidate) as ((base_url, base_key), (url, key)):
            monkeypatch.setenv("KVGATE_BASE_API_KEY", base_key)
            monkeypatch.setenv("KVGATE_API_KEY", key)
            given: dict[str, Any] = {"kv": ("q8_0",), "policy": "smoke", "suites": ("golden",)}
            return done(CheckSpec(model=url, against=base_url, store=str(tmp_path / "k.db"), **(given | more)))

    return go


@pytest.mark.parametrize("why", ["another tokenizer", "another type"])
def test_what_cannot_be_compared_is_refused_before_anything_is_measured(two: Any, tmp_path: Path, why: str) -> None:
    """Both were looked at and differ, or the candidate's log contradicts --kv: INVALID, and nobody was asked a case."""
    log = tmp_path / "server.log"
    log.write_text(Q8_LOG)
    other = {"another tokenizer": {"tokenizer_shift": 3}}.get(why, {})
    more: dict[str, Any] = {} if other else {"log": log, "kv": ("q4_0",)}
    told = Told()

    outcome: Outcome = two(lambda spec: check(spec, told), {}, other, **more)

    assert outcome.exit_code == 4
    said = " ".join(f.message for f in outcome.view.verdicts[0].findings)
    assert ("tokenizer_digest" if other else "asked for q4_0, the log says q8_0") in said
    with open_store(str(tmp_path / "k.db")) as store:
        assert not store.answered(outcome.view.run_id, "golden")
    assert not any("golden" in line for line in told.lines)


def test_a_recipe_that_nobody_says_is_asked_for_before_anything_starts(two: Any, tmp_path: Path) -> None:
    """No --kv, no log, no page that names it: one line with the three ways out, and no store."""
    with pytest.raises(UserError) as e:
        two(lambda spec: check(spec, Silent()), {}, {}, kv=(), assume_engaged=True)

    assert "nobody says what candidate http" in str(e.value) and "\n" not in str(e.value)
    assert all(word in str(e.value) for word in ("--kv RECIPE", "--log FILE", "--assume-engaged"))
    assert not (tmp_path / "k.db").exists()


def test_a_recipe_that_was_seen_need_not_be_given(two: Any, tmp_path: Path) -> None:
    """The candidate is what its own log says."""
    log = tmp_path / "server.log"
    log.write_text(Q8_LOG)

    pair = two(attach, {}, {}, kv=(), log=log)

    assert pair.arms[-1].name == "q8_0" and pair.arms[-1].launch.expected.k_codec == "q8_0"


def test_what_will_not_decide_is_said_first_and_next_names_what_would(two: Any) -> None:
    """Notes before the first case, and after the verdict the same command: an engine that kvgate starts itself."""
    told = Told()
    outcome: Outcome = two(lambda spec: check(spec, told), {}, {})
    verdict = outcome.view.verdicts[0]
    first = next(i for i, line in enumerate(told.lines) if "golden 1/" in line)
    before = told.lines[:first]
    command = "kvgate check MODEL --kv q8_0 --policy smoke"

    assert any("policy smoke cannot end in PASS on these servers" in line for line in before)
    assert any(line.endswith(command) for line in before)
    assert any("give its start log by --log FILE" in line for line in before)
    assert verdict.next.command == command and "let kvgate start the engine" in verdict.next.action


def test_of_a_base_that_finds_no_needle_no_other_arm_is_asked(two: Any, tmp_path: Path) -> None:
    """Nothing could be lost: untested with the reason; one needle found, and all arms are asked."""
    asked = {}
    for name, base in (("none", {"needle_decay_tokens": 1}), ("some", {})):
        outcome: Outcome = two(lambda spec: check(spec, Silent()), base, {}, suites=("needle",), fresh=True)
        with open_store(str(tmp_path / "k.db")) as store:
            asked[name] = {a.work.arm for a in store.answered(outcome.view.run_id, "needle")}
        said = [f.message for f in outcome.view.verdicts[0].findings if f.rule == "needle-losses"]
        assert ("the base finds 0 of 4 needles: nothing to lose" in said[0]) is (name == "none")

    assert asked == {"none": {"base"}, "some": {"base", "again", "q8_0"}}


LLAMA = Missing("llama.cpp's server gives no logprobs of prompt tokens")
HAS = {Lane.FORCED_DECODE: Available(), Lane.PANEL: Missing("no panel over HTTP")}
ALL = tuple(registry.discover("suite"))


@pytest.mark.parametrize(
    ("policy", "suites", "base", "candidate", "expected"),
    [
        ("smoke", ALL, {Lane.PREFILL_TOPK: LLAMA}, {Lane.PREFILL_TOPK: LLAMA}, ("kl-mean and kl-tail", "llama.cpp's")),
        ("smoke", ALL, {Lane.PREFILL_TOPK: Available()}, {Lane.PREFILL_TOPK: Available()}, ()),
        ("smoke", ALL, {Lane.PREFILL_TOPK: Available()}, {Lane.PREFILL_TOPK: LLAMA}, ("topk: q8_0: llama.cpp's",)),
        ("default", ALL, {Lane.PREFILL_TOPK: LLAMA}, {}, ("kl-mean, kl-tail and confident-flips decide",)),
        ("default", ("topk", "golden"), {Lane.PREFILL_TOPK: Available()}, {Lane.PREFILL_TOPK: Available()},
         ("needle decides", "needle is not part of this check")),
    ],
)  # fmt: skip
def test_a_policy_is_held_against_what_the_lanes_show(
    policy: str, suites: tuple[str, ...], base: Any, candidate: Any, expected: tuple[str, ...]
) -> None:
    """Every deciding rule needs one of its alternatives, on both servers; where all have one, nothing is said."""
    known = registry.discover("suite")
    run: Any = SimpleNamespace(
        spec=SimpleNamespace(against=None), suites={n: known[n] for n in suites}, untested={}, seen={}, arms=()
    )
    lines = list(foreseen(run, load_policy(policy), {"base": HAS | base, "q8_0": HAS | candidate}))

    assert bool(lines) is bool(expected)
    assert all(word in lines[0] for word in expected), lines
