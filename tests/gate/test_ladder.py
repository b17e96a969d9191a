"""The next step after each verdict, and that the ladder always ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_cases import est, fidelity, golden, good, needle, with_suite

from kvgate.core.deployment import Engaged, Engagement
from kvgate.core.recipe import parse
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence
from kvgate.gate.ladder import ladders, structural_symptom
from kvgate.gate.policy import load_policy
from kvgate.gate.verdict import judge

SMOKE, DEFAULT = load_policy("smoke"), load_policy("default")


def failed(recipe: str, engine: str = "llama_cpp") -> CandidateEvidence:
    return with_suite(good(recipe=recipe, candidate=recipe, engine=engine), fidelity=fidelity(0.05, 0.01))


def climb(recipe: str, engine: str = "llama_cpp") -> list[str]:
    """Recipes in the order in which the ladder proposes them, each of them failing."""
    seen = [recipe]
    while True:
        step = judge(failed(seen[-1], engine), SMOKE).next
        if step.recipe is None or step.recipe == "native":
            return [*seen, step.recipe or step.action]
        assert step.recipe not in seen, f"the ladder goes in a circle: {seen} -> {step.recipe}"
        seen.append(step.recipe)


LLAMA = {
    "q4_0": ["k=q8_0,v=q4_0", "k=q8_0,v=q5_1", "q8_0", "k=f16,v=q8_0", "native"],
    "q8_0": ["k=f16,v=q8_0", "native"],
    "q5_1": ["k=q8_0,v=q5_1", "q8_0", "k=f16,v=q8_0", "native"],
    "k=q4_0,v=q8_0": ["q8_0", "k=f16,v=q8_0", "native"],
    "q4_0+none": ["q4_0", "k=q8_0,v=q4_0", "k=q8_0,v=q5_1", "q8_0", "k=f16,v=q8_0", "native"],
    "k=q8_0+none,v=q8_0": ["q8_0", "k=f16,v=q8_0", "native"],
    "iq4_nl": ["k=q8_0,v=iq4_nl", "k=q8_0,v=q5_1", "q8_0", "k=f16,v=q8_0", "native"],
    "f16": ["native"],
    "native": ["native"],
}


@pytest.mark.parametrize("recipe", LLAMA)
def test_llama_cpp_climbs_without_calibration(recipe: str) -> None:
    """K up first, then V type by type, rotation back on before anything else, native at the end."""
    assert climb(recipe) == [recipe, *LLAMA[recipe]]


def test_a_step_has_a_command_that_can_be_typed() -> None:
    """The command names the model, the recipe and the policy; blanks in a path are quoted."""
    step = judge(replace(failed("q4_0"), model="my models/a.gguf"), SMOKE).next

    assert step.command == "kvgate check 'my models/a.gguf' --kv k=q8_0,v=q4_0 --policy smoke"
    assert "K carries most of the damage" in step.why


def test_calibrating_engines_calibrate_then_keep_layers() -> None:
    """vLLM: scales of 1 -> calibrated -> sensitive layers native -> native; nothing is proposed that it cannot do."""
    assert "calibrate" in judge(failed("fp8_e4m3@unit", "vllm"), SMOKE).next.action
    assert "calibrate" in judge(failed("fp8_e4m3", "vllm"), SMOKE).next.action
    proposed = judge(failed("fp8_e4m3", "vllm"), SMOKE).next.action.rpartition(" ")[2]
    assert str(parse(proposed)) == "fp8_e4m3@checkpoint", "what is proposed can be typed"
    assert "sensitive" in judge(failed("fp8_e4m3@calibrated#0123abcd", "vllm"), SMOKE).next.action
    assert judge(failed("fp8_e4m3@calibrated#0123abcd/keep=L0-1", "vllm"), SMOKE).next.recipe == "native"
    larger = judge(failed("nvfp4@calibrated#0123abcd/keep=L0-1", "vllm"), SMOKE).next
    assert larger.recipe == "fp8_e4m3/keep=L0-1"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_e5m2_is_not_calibrated_where_engines_refuse_that(engine: str) -> None:
    """Engines take measured scales for E4M3 alone: E5M2 leads there first, and is never proposed with them."""
    assert judge(failed("fp8_e5m2", engine), SMOKE).next.recipe == "fp8_e4m3"
    assert "calibrate" not in judge(failed("fp8_e4m3", "trtllm"), SMOKE).next.action


@pytest.mark.parametrize("engine", [*ladders(), "unheard_of"])
@pytest.mark.parametrize("recipe", ["q4_0", "iq4_nl", "nvfp4@checkpoint/keep=L0", "kivi:bits=2@dynamic/keep=L0"])
def test_every_ladder_ends(engine: str, recipe: str) -> None:
    """On any engine and from any recipe the proposals end, and each of them is a recipe."""
    for step in climb(recipe, engine)[:-1]:
        assert str(parse(step)) == step


def test_breaks_with_sound_answers_point_at_a_kernel() -> None:
    """Golden prompts break, needles are found, divergence is small: calibration is not proposed."""
    evidence = with_suite(good(), golden=golden(breaks=8), needle=needle(0.99, 0.02))

    step = judge(evidence, DEFAULT).next

    assert "kernel is suspected" in step.why and step.recipe is None


def test_breaks_with_large_divergence_are_explained_by_it() -> None:
    """The same breaks beside a failed divergence rule climb the ladder instead."""
    evidence = with_suite(failed("q4_0"), golden=golden(breaks=8), needle=needle(0.99, 0.02))

    assert judge(evidence, DEFAULT).next.recipe == "k=q8_0,v=q4_0"


def test_a_few_broken_prompts_blame_no_kernel() -> None:
    """The lower end of the break rate counts: 3 of 24 is 12.5 % and may be 5 %."""
    evidence = with_suite(good(), golden=golden(breaks=3, critical=1), needle=needle(0.99, 0.02))

    assert structural_symptom(evidence) is None
    assert judge(evidence, DEFAULT).next.recipe == "k=f16,v=q8_0"


@pytest.mark.parametrize(
    ("rate", "ratio", "named"), [(0.125, 0.90, True), (0.12, 0.90, False), (0.125, 0.89, False), (0.9, 1.0, True)]
)
def test_symptom_at_its_boundaries(rate: float, ratio: float, named: bool) -> None:
    """An eighth of the answers broken and nine tenths of the accuracy left is where the diagnosis starts."""
    summary = Summary({"t.invalid_rate": est(rate), "t.valid_accuracy_ratio": est(ratio)})

    assert (structural_symptom(good(summaries={"t": summary})) is not None) is named


def test_inconclusive_asks_for_the_number_that_decides() -> None:
    """Smoke points at the default preset with the largest number; default names the number alone."""
    evidence = with_suite(good(), fidelity=fidelity(0.009, 0.006))

    smoke, default = judge(evidence, SMOKE).next, judge(evidence, DEFAULT).next

    assert smoke.command == "kvgate check smollm2 --kv q8_0 --policy default"
    assert "about" in smoke.action and "would decide it" in smoke.why
    assert default.command is None and "about" in default.action


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        (good(engaged={"serving": Engaged(Engagement.UNOBSERVED, "no log")}), "load log"),
        (with_suite(good(), fidelity=fidelity(floor=0.02)), "make the base quieter"),
        (good(errors={"fidelity": ["3 of 12 answers: EngineDied"]}), "why the engine fails"),
        (good(invalid=("engine died on load",)), "remove the cause"),
        (good(engaged={"panel": Engaged(Engagement.CONTRADICTED, "f16")}), "take the KV types"),
        (good(), "default preset before shipping"),
    ],
)
def test_each_cause_has_its_own_step(evidence: CandidateEvidence, says: str) -> None:
    """What blocks the verdict decides the step, not the recipe."""
    assert says in judge(evidence, SMOKE).next.action


def test_a_pass_of_default_ships_and_a_tie_is_decided_by_need() -> None:
    """After default there is no larger preset; an estimate at its threshold cannot be decided by more data."""
    at_threshold = with_suite(good(), needle=needle(0.95, 0.04))

    assert "canary" in judge(good(), DEFAULT).next.action
    assert "decide by need" in judge(at_threshold, DEFAULT).next.action
    assert "not tested" in judge(good(summaries={}), DEFAULT).next.action


@pytest.mark.parametrize(
    ("engine", "words"),
    [("llama_cpp", "MODEL.gguf"), ("vllm", "MODEL_DIR --engine vllm"), ("something", "MODEL")],
)
def test_a_server_that_shows_too_little_leads_to_an_engine_of_our_own(engine: str, words: str) -> None:
    """The next command starts the engine; what only meant the servers is dropped, the person's own inputs are kept."""
    options = ("--against", "http://a:1", "--log", "x.log", "--assume-engaged", "--golden", "my prompts.jsonl")
    evidence = good(engine="openai", served=engine, options=options, untested={"fidelity": "no panel"})
    evidence = replace(evidence, summaries={k: v for k, v in evidence.summaries.items() if k != "fidelity"})

    step = judge(evidence, load_policy("smoke")).next

    assert step.command == f"kvgate check {words} --kv q8_0 --policy smoke --golden 'my prompts.jsonl'"
    assert "more of the same would not show it" in step.why
