"""A whole check over the fake engine: what is planted is found, what is sound passes, holes are not answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgate.campaign.check import Outcome
from kvgate.core.errors import UserError
from kvgate.core.verdict import Decision, Status

Check = Callable[..., Outcome]


def decision(outcome: Outcome, candidate: str = "q8_0") -> Decision:
    return next(v.decision for v in outcome.view.verdicts if v.candidate == candidate)


def messages(outcome: Outcome) -> str:
    return " | ".join(f"{f.status}: {f.rule}: {f.message}" for v in outcome.view.verdicts for f in v.findings)


class Notes:
    """Keeps what a run says."""

    stood_still_s = 0.0

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, text: str) -> None: ...

    def update(self, done: float, total: float, remaining_s: float | None) -> None:
        assert 0 <= done <= total + 1e-6
        assert remaining_s is None or remaining_s >= 0


def test_a_sound_candidate_passes_and_a_bad_one_fails(fake_check: Check) -> None:
    """Small noise passes, large noise fails, in one run; the exit code is the worst."""
    outcome = fake_check(kv=("q8_0", "q4_0"))

    assert decision(outcome, "q8_0") is Decision.PASS, messages(outcome)
    assert decision(outcome, "q4_0") is Decision.FAIL, messages(outcome)
    assert outcome.exit_code == 1
    assert outcome.view.verdicts[0].headline() == "PASS (smoke: not a ship decision)"
    document = json.loads(outcome.files["check.json"].read_text())
    assert document["schema"] == "kvgate.check/1"
    assert document["exit_code"] == 1


def test_the_floor_is_shown_and_not_zero(fake_check: Check) -> None:
    """The perturbed floor arm moves the distribution, and the excess is smaller than the distance."""
    summary = fake_check().view.evidence["q8_0"].summaries["fidelity"]

    assert summary.floor["twin"]["prefill.kl_mean"].value == 0
    floor = summary.floor["ubatch32"]["prefill.kl_mean"].value
    assert floor > 0
    assert summary.excess["prefill.kl_mean"].value == pytest.approx(summary.metrics["prefill.kl_mean"].value - floor)


def test_a_dtype_that_did_not_engage_is_invalid(fake_check: Check) -> None:
    """A log that names another codec voids the candidate, whatever it scored."""
    outcome = fake_check(script={"per_recipe": {"q8_0": {"wrong_dtype": "f16"}}})

    assert decision(outcome) is Decision.INVALID
    assert outcome.exit_code == 4
    assert "f16" in messages(outcome)


def test_an_engine_that_dies_on_load_voids_only_its_candidate(fake_check: Check) -> None:
    """The other candidate keeps its verdict; the dead one says why it has none."""
    script = {"per_recipe": {"q4_0": {"die_on_load": True}}}
    outcome = fake_check(script=script, kv=("q8_0", "q4_0"))

    assert decision(outcome, "q4_0") is Decision.INVALID
    assert decision(outcome, "q8_0") is Decision.PASS, messages(outcome)


def test_a_base_that_dies_on_load_voids_all(fake_check: Check) -> None:
    """Without a base there is nothing to compare with; there is still a report that says so."""
    outcome = fake_check(script={"die_on_load": True})

    assert decision(outcome) is Decision.INVALID
    assert outcome.files["report.html"].is_file()
    assert "status 3" in messages(outcome) or "load" in messages(outcome)
    assert "ran" not in [f.message.split()[-1] for v in outcome.view.verdicts for f in v.findings]


def test_an_engine_that_dies_in_the_middle_is_started_again(fake_check: Check) -> None:
    """A death costs attempts, not answers: the case in flight is repeated."""
    notes = Notes()
    outcome = fake_check(script={"die_after": 18}, progress=notes)  # the lanes are probed with about ten

    assert any("EngineDied" in n and "again" in n for n in notes.notes)
    raws = outcome.view.records["golden"].raws
    assert all(len(raws[(arm, case)]) == 1 for arm, case in raws if arm == "base")
    assert decision(outcome) is Decision.PASS, messages(outcome)


def test_errors_are_holes_never_answers(fake_check: Check) -> None:
    """Requests that always fail leave the coverage rule a hole; they do not become breaks or passes."""
    notes = Notes()
    outcome = fake_check(script={"per_recipe": {"q8_0": {"http_500_rate": 1.0}}}, progress=notes)

    evidence = outcome.view.evidence["q8_0"]
    assert ("q8_0", next(iter(outcome.view.records["golden"].cases))) not in outcome.view.records["golden"].raws
    assert evidence.errors["golden"]
    assert any("given up" in n for n in notes.notes)
    assert decision(outcome) is Decision.INVALID
    assert "no answer to" in messages(outcome)


def test_a_lossy_codec_that_changes_nothing_is_invalid(fake_check: Check) -> None:
    """KL of exactly 0 at every position means that the recipe is not in force, whatever the log says."""
    outcome = fake_check(script={"per_recipe": {"q8_0": {"logit_sd": 0.0}}})

    assert decision(outcome) is Decision.INVALID
    assert "exactly 0" in messages(outcome)


def test_planted_breaks_are_confirmed_and_counted(fake_check: Check) -> None:
    """A candidate that breaks half of its JSON answers is caught, after reruns."""
    outcome = fake_check(script={"per_recipe": {"q8_0": {"break_rate": 1.0}}})

    breaks = outcome.view.evidence["q8_0"].summaries["golden"].metrics["golden.confirmed_breaks"]
    assert breaks.value >= 3
    finding = next(f for f in outcome.view.verdicts[0].findings if f.rule == "golden-breaks")
    assert finding.status in (Status.FAIL, Status.INCONCLUSIVE)
    reruns = [len(r) for (arm, _), r in outcome.view.records["golden"].raws.items() if arm == "q8_0"]
    assert max(reruns) == 2  # bit-equal, so two runs decide


def test_a_finished_key_starts_a_new_run(fake_check: Check) -> None:
    """Asking again measures again; the numbers are the same because everything is seeded."""
    first, second = fake_check(), fake_check()

    assert first.view.run_id != second.view.run_id
    assert first.view.key == second.view.key
    assert first.view.verdicts[0].records_digest == second.view.verdicts[0].records_digest


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"kv": ()}, "candidate"),
        ({"kv": ("q8_0", "k=q8_0,v=q8_0")}, "twice"),
        ({"kv": ("q9_9",)}, "q9_9"),
        ({"engine": "vlm"}, "llama_cpp"),
        ({"policy": "smok"}, "smoke"),
        ({"preset": "huge"}, "default"),
        ({"suites": ("needles",)}, "needle"),
        ({"model": "/no/such/model.gguf"}, "model.gguf"),
        ({"corpus": Path("/no/such/corpus")}, "corpus"),
        ({"golden": Path("/no/such/golden.jsonl")}, "golden"),
    ],
)
def test_wrong_input_starts_nothing(fake_check: Check, tmp_path: Path, changed: dict[str, object], word: str) -> None:
    """One line with the allowed values or the fix, before a store or an engine exists."""
    with pytest.raises(UserError, match=word) as e:
        fake_check(**changed)

    assert "\n" not in str(e.value)
    assert not (tmp_path / "kvgate.db").exists()


def test_nan_logits_of_one_candidate_void_only_that_one(fake_check: Check) -> None:
    """The other candidate keeps its verdict, and the report says whose logits were no numbers."""
    outcome = fake_check(script={"per_recipe": {"q4_0": {"logit_nan_at": 40}}}, kv=("q8_0", "q4_0"))

    assert decision(outcome, "q4_0") is Decision.INVALID
    assert decision(outcome, "q8_0") is Decision.PASS, messages(outcome)
    assert "NaN" in messages(outcome)


def test_a_wrong_golden_line_is_found_before_anything_starts(fake_check: Check, tmp_path: Path) -> None:
    """File and line, and no store."""
    golden = tmp_path / "mine.jsonl"
    golden.write_text('{"id": "a", "messages": [{"role": "user", "content": "x"}]}\nnot json\n')

    with pytest.raises(UserError, match=r"mine\.jsonl:2"):
        fake_check(golden=golden)

    assert not (tmp_path / "kvgate.db").exists()


def test_a_floor_on_another_build_is_left_out(fake_check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A floor arm that is not the base's deployment is no noise of the base."""
    from kvgate.engines import fake

    real = fake._deployment

    def other_build(launch, *args):
        seen = real(launch, *args)
        floor = launch.request.settings.ubatch_tokens == 32
        changed = {"identity": seen.identity.model_copy(update={"version": "2"})} if floor else {}
        return seen.model_copy(update=changed)

    monkeypatch.setattr(fake, "_deployment", other_build)
    notes = Notes()
    outcome = fake_check(progress=notes)

    assert any("ubatch32" in n and "version 1 -> 2" in n for n in notes.notes)
    assert "ubatch32" not in outcome.view.evidence["q8_0"].summaries["fidelity"].floor


def test_failed_work_gets_its_tries_again_after_a_kill(fake_check: Check) -> None:
    """A run with holes stays open; the same command repeats just those and then passes."""
    script = {"per_recipe": {"q8_0": {"http_500_rate": 1.0}}}
    first = fake_check(script=script, suites=("needle", "fidelity"))
    assert decision(first) is Decision.INVALID

    second = fake_check(script=script, suites=("needle", "fidelity"))

    assert second.view.run_id == first.view.run_id


def test_the_default_policy_decides_with_all_suites(fake_check: Check) -> None:
    """The full sets can pass a sound candidate and fail one that loses needles, through their own rules."""
    lossy = {"per_recipe": {"q5_1": {"needle_decay_tokens": 300, "needle_decay_rate": 0.5}}}
    outcome = fake_check(script=lossy, kv=("q8_0", "q5_1"), policy="default", context_tokens=1280)

    assert decision(outcome, "q8_0") is Decision.PASS, messages(outcome)
    assert outcome.view.verdicts[0].headline() == "PASS"
    assert decision(outcome, "q5_1") is Decision.FAIL, messages(outcome)
    failed = {f.rule for v in outcome.view.verdicts for f in v.findings if f.status is Status.FAIL}
    assert "needle" in failed
