"""Servers that run already and are not what they seem: other tokenizers, other contexts, busy, replaced meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attached_kit import servers
from test_secrets_kept_out import stored_text

from kvgate.campaign.check import Outcome, check
from kvgate.campaign.progress import Silent
from kvgate.campaign.spec import CheckSpec
from kvgate.core.errors import UserError
from kvgate.store.open import open_store

#: Generations that come before the cases: the template's digest, before and in the run, and on the base its lanes.
IN_THE_MIDDLE = {"base": 16, "candidate": 5}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Check a candidate's script against a base's, with golden only."""

    def go(base: dict[str, Any], candidate: dict[str, Any], **more: Any) -> Outcome:
        with servers(base, candidate) as ((base_url, base_key), (url, key)):
            monkeypatch.setenv("KVGATE_BASE_API_KEY", base_key)
            monkeypatch.setenv("KVGATE_API_KEY", key)
            given: dict[str, Any] = {"kv": ("q8_0",), "policy": "smoke", "suites": ("golden",)}
            store = str(tmp_path / "k.db")
            outcome = check(CheckSpec(model=url, against=base_url, store=store, **(given | more)), Silent())
            texts = [stored_text(tmp_path / "k.db"), *(p.read_text() for p in outcome.files.values())]
            assert all(k not in text for text in [*texts, repr(outcome.view)] for k in (base_key, key))
            return outcome

    return go


def invalid(outcome: Outcome) -> str:
    """Why the run is INVALID."""
    assert outcome.exit_code == 4
    return " ".join(f.message for f in outcome.view.verdicts[0].findings if f.status.value == "invalid")


@pytest.mark.parametrize(
    ("candidate", "field"), [({"tokenizer_shift": 3}, "tokenizer_digest"), ({"template_tokens": 5}, "template_digest")]
)
def test_one_name_and_two_tokenizers_are_not_compared(run: Any, candidate: dict[str, Any], field: str) -> None:
    """Both list the same model; what they do to a fixed text and a fixed chat says that they are two."""
    assert field in invalid(run({}, candidate))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fingerprint": "fp-1", "fingerprint_after": 0}, "system_fingerprint was 'fp-1' and is now"),
        ({"answers_as": "fake-model-b", "answers_as_after": 0}, "model was 'fake-model' and is now"),
    ],
)
@pytest.mark.parametrize("who", ["base", "candidate"])
def test_a_server_that_is_replaced_under_the_run_is_invalid(
    run: Any, changes: dict[str, Any], said: str, who: str
) -> None:
    """Its answers are of two deployments, so no number is made of them, whichever arm it was."""
    changes = {name: IN_THE_MIDDLE[who] if name.endswith("_after") else word for name, word in changes.items()}
    outcome = run(*((changes, {}) if who == "base" else ({}, changes)))
    why = invalid(outcome)

    assert said in why and "not the deployment it was" in why
    assert not outcome.view.evidence["q8_0"].summaries


def test_a_stable_fingerprint_is_kept_and_may_differ_between_arms(run: Any) -> None:
    """The word for build and settings covers the recipe: it is noted, and nothing is refused for it."""
    outcome = run({"fingerprint": "bf16"}, {"fingerprint": "fp8"})
    notes = {a.name: a.deployments["serving"].note.fingerprint for a in outcome.view.arms}

    assert notes == {"base": "bf16", "again": "bf16", "q8_0": "fp8"}
    assert outcome.exit_code == 3, "nobody saw what is stored; nothing else is wrong"


def test_a_shorter_context_than_asked_is_untested_and_the_rest_is_run(run: Any) -> None:
    """What does not fit is named with the reason; golden's own prompts that fit are compared."""
    outcome = run({}, {"context_tokens": 1024, "hide_context": True}, context_tokens=4096)
    verdict = outcome.view.verdicts[0]

    assert outcome.view.context_tokens == 1024
    said = (
        "contexts over 1024 tokens: candidate holds 1024 where --context asks for 4096: start it with a longer context"
    )
    assert said in verdict.untested
    assert outcome.view.evidence["q8_0"].summaries and not outcome.view.evidence["q8_0"].errors


def test_waits_for_a_busy_server_are_recorded_and_cost_no_answer(run: Any, tmp_path: Path) -> None:
    """Three refusals in the middle: the run is the one that it would have been, and says that it waited."""
    calm = run({}, {}, seed=1)
    outcome = run(
        {}, {"busy_first": 3, "busy_after": IN_THE_MIDDLE["candidate"], "retry_after": "0", "busy_status": 429}, seed=1
    )
    with open_store(str(tmp_path / "k.db")) as store:
        (row,) = store.evidence(outcome.view.run_id, "http")

    assert row.arm == "q8_0" and len(row.body["notes"]) == 3
    assert re.match(r"/v1/\S+: HTTP 429, asked again after 0\.00 s: the fake engine is busy", row.body["notes"][0])
    assert not outcome.view.evidence["q8_0"].errors
    digests = [o.view.verdicts[0].records_digest for o in (calm, outcome)]
    assert digests[0] == digests[1]


def test_another_name_is_taken_on_the_persons_word(run: Any) -> None:
    """A gateway that answers with its backend's name is refused before anything starts, or allowed by --same-model."""
    with pytest.raises(UserError, match=r"answered by 'llama-3'.*--same-model"):
        run({}, {"answers_as": "llama-3"})

    assert run({}, {"answers_as": "llama-3"}, same_model=True).exit_code == 3
