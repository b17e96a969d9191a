"""The next thing to try, from the evidence and the engine's possibilities. Pure; starts nothing.

The ladder after a FAIL: uncalibrated -> calibrated -> sensitive layers native -> K and V apart -> larger -> native.
What an engine can do stands in `ladders.toml`.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvgate.core.errors import UserError
from kvgate.core.estimate import Estimate
from kvgate.core.recipe import Recipe, Side, parse
from kvgate.core.verdict import CandidateEvidence, Decision, Finding, NextStep, Status
from kvgate.gate.policy import Policy
from kvgate.gate.rule import LONGER_TOPS

NATIVE = "native"

#: From here on answers break in their form rather than lose accuracy. An eighth of golden prompts breaking is far over
#: any accuracy loss that a KV type of the same engine showed; 92 of 100 were seen with a broken kernel.
STRUCTURAL_RATE = 0.125
#: The answers that are still whole are nearly as right as before. Seen with that kernel: 0.92 to 0.98.
SOUND_RATIO = 0.90


class EngineLadder(BaseModel):
    """What one engine can try; see `ladders.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calibration: tuple[str, ...]
    skip_layers: bool
    asymmetric: bool
    k_first: tuple[str, ...]
    larger: Mapping[str, str]

    def steps_to_native(self, codec: str) -> int:
        """Length of the `larger` chain from a codec; unknown codecs count as the end of it."""
        steps, seen = 0, set()
        while codec != NATIVE and codec not in seen:
            seen.add(codec)
            codec = self.larger.get(codec, NATIVE)
            steps += 1
        return steps


class Symptom(NamedTuple):
    """Answers that break in form while those that are whole stay right."""

    break_rate: float
    valid_accuracy_ratio: float


@cache
def ladders() -> Mapping[str, EngineLadder]:
    """All tables of `ladders.toml`."""
    data = tomllib.loads((resources.files("kvgate.gate") / "ladders.toml").read_text("utf-8"))
    return {name: EngineLadder.model_validate(table) for name, table in data.items()}


def next_step(evidence: CandidateEvidence, findings: Sequence[Finding], decision: Decision, policy: Policy) -> NextStep:
    """What to do after this verdict."""
    if decision is Decision.INVALID:
        return _after_invalid(findings)
    if decision is Decision.PASS:
        return _after_pass(evidence, policy)
    if decision is Decision.INCONCLUSIVE:
        return _after_inconclusive(evidence, findings, policy)
    symptom = structural_symptom(evidence, findings)
    if symptom is not None:
        return NextStep(
            "try another attention backend or engine build, or report the break to the engine's project",
            f"at least {symptom.break_rate:.0%} of the answers break in form, while the whole ones are "
            f"{symptom.valid_accuracy_ratio:.0%} as right as the base's: a kernel is suspected, not precision. "
            "Calibration will not fix it",
        )
    return _climb(evidence, policy)


def structural_symptom(evidence: CandidateEvidence, findings: Sequence[Finding] = ()) -> Symptom | None:
    """Whether answers break in form while their content stays right.

    Reads the largest of `*.break_rate` and `*.invalid_rate` (the rise over the base) by the lower end of its interval,
    so that two broken prompts of twelve blame no kernel, and the smallest of `*.valid_accuracy_ratio`. Where no suite
    has that, `*.accuracy_ratio` stands in for it, unless a divergence rule failed: then lost precision explains the
    breaks well enough. Unknown gives None: no diagnosis.
    """
    rates = [e.lo for e in _estimates(evidence, ("break_rate", "invalid_rate")) if e.lo is not None]
    ratios = _values(evidence, ("valid_accuracy_ratio",))
    diverged = any(f.status is Status.FAIL and f.metric.startswith(("prefill.", "decode.")) for f in findings)
    if not ratios and not diverged:
        ratios = _values(evidence, ("accuracy_ratio",))
    if not rates or not ratios or max(rates) < STRUCTURAL_RATE or min(ratios) < SOUND_RATIO:
        return None
    return Symptom(max(rates), min(ratios))


def _estimates(evidence: CandidateEvidence, endings: tuple[str, ...]) -> list[Estimate]:
    return [
        m
        for summary in evidence.summaries.values()
        for name, m in summary.metrics.items()
        if name.partition(".")[2] in endings and isinstance(m, Estimate)
    ]


def _values(evidence: CandidateEvidence, endings: tuple[str, ...]) -> list[float]:
    return [e.value for e in _estimates(evidence, endings) if e.value is not None]


#: Options that only mean something for servers that already run, and how many words follow each.
_OF_SERVERS = {"--against": 1, "--log": 1, "--base-log": 1, "--assume-engaged": 0, "--same-model": 0}
#: What kvgate starts an engine on, and how it is called there; llama.cpp is the default.
_STARTED = {"llama_cpp": "MODEL.gguf", "vllm": "MODEL_DIR --engine vllm", "sglang": "MODEL_DIR --engine sglang"}
_STARTED |= {"trtllm": "MODEL_DIR --engine trtllm"}
#: Driver of servers that somebody else runs.
_ATTACHED = "openai"


def own_start(engine: str, recipe: str, policy: str, options: Sequence[str]) -> str:
    """The check of a server's model by an engine that kvgate starts, where all can be seen that can be at all.

    Args:
        engine: what runs behind the address. options: the person's own, as for a next command.
    """
    kept, words = [], iter(options)
    for word in words:
        if word in _OF_SERVERS:
            for _ in range(_OF_SERVERS[word]):
                next(words, None)
        else:
            kept.append(shlex.quote(word))
    start = f"kvgate check {_STARTED.get(engine, 'MODEL')} --kv {shlex.quote(recipe)} --policy {shlex.quote(policy)}"
    return " ".join([start, *kept])


def _command(evidence: CandidateEvidence, recipe: str, policy: str) -> str:
    model = shlex.quote(evidence.model) if evidence.model else "MODEL"
    kept = "".join(f" {shlex.quote(word)}" for word in evidence.options)
    return f"kvgate check {model} --kv {shlex.quote(recipe)} --policy {shlex.quote(policy)}{kept}"


def _after_invalid(findings: Sequence[Finding]) -> NextStep:
    first = next(f for f in findings if f.status is Status.INVALID)
    actions = {
        "engaged": "make the engine take the KV types that were asked for, then check again",
        "identity": "start both arms with the same settings, or declare the difference, then check again",
    }
    cause = first.use if first.use in actions else first.rule
    return NextStep(actions.get(cause, "remove the cause, then check again"), first.message)


def _after_pass(evidence: CandidateEvidence, policy: Policy) -> NextStep:
    if policy.name == "smoke":
        return NextStep(
            "run the default preset before shipping",
            "smoke is small: it can find a disaster, not exclude a loss",
            evidence.recipe,
            _command(evidence, evidence.recipe, "default"),
        )
    return NextStep(
        "ship it behind a canary, and check again after every engine upgrade",
        f"every deciding rule of policy {policy.name} passed; what was not tested is listed",
        evidence.recipe,
    )


def _after_inconclusive(evidence: CandidateEvidence, findings: Sequence[Finding], policy: Policy) -> NextStep:
    open_ = [f for f in findings if f.role == "decide" and f.status in (Status.INCONCLUSIVE, Status.UNTESTED)]
    if evidence.engine == _ATTACHED:
        unseen = next((f for f in open_ if _not_over_http(f, evidence)), None)
        if unseen is not None:
            return NextStep(
                "let kvgate start the engine on the model's own files: these addresses do not show what decides",
                f"{unseen.rule}: {unseen.message}; more of the same would not show it",
                evidence.recipe,
                own_start(evidence.served, evidence.recipe, policy.name, evidence.options),
            )
    for f in open_:
        if f.use == "engaged":
            return NextStep("give the engine's own load log, or let kvgate start the engine", f.message)
    for f in open_:
        if f.rule == "floor" and f.status is Status.INCONCLUSIVE:
            return NextStep(
                "make the base quieter: one slot, a fixed batch, deterministic mode; then check again", f.message
            )
    for f in open_:
        if f.use == "coverage" and f.status is Status.INCONCLUSIVE:
            return NextStep("find out why the engine fails; the same command repeats only the failed runs", f.message)
    larger = "default" if policy.name == "smoke" else None
    numbers = [f for f in open_ if f.decide_n is not None]
    if numbers:
        most = max(numbers, key=lambda f: f.decide_n or 0)
        return NextStep(
            f"run more prompts or documents: about {most.decide_n:,}",
            f"{most.rule}: {most.message}; {most.decide_n:,} would decide it {most.decide_why}",
            evidence.recipe,
            _command(evidence, evidence.recipe, larger) if larger else None,
        )
    first = open_[0] if open_ else None
    why = f"{first.rule}: {first.message}" + (f"; {first.decide_why}" if first.decide_why else "") if first else ""
    if larger:
        return NextStep("run the default preset", why, evidence.recipe, _command(evidence, evidence.recipe, larger))
    if first is not None and first.decide_why.startswith("none would"):
        return NextStep("decide by need: accept the estimate as it is, or stay native", why, NATIVE)
    return NextStep("run what was not tested, with more documents or prompts", why, evidence.recipe)


def _not_over_http(f: Finding, evidence: CandidateEvidence) -> bool:
    """A divergence that the server gave no distributions for, or tops that are too short.

    One that was measured and lacks its floor is none: a repeat can show that.
    """
    measured = any(m in s.metrics for s in evidence.summaries.values() for m in (f.metric, f"topk_{f.metric}"))
    if measured and f.status is Status.UNTESTED:
        return False
    lane = f.metric.partition(".")[0].removeprefix("topk_")
    return lane in ("prefill", "decode") and (f.status is Status.UNTESTED or f.decide_why == LONGER_TOPS)


def _climb(evidence: CandidateEvidence, policy: Policy) -> NextStep:
    """One rung up from the failed recipe."""
    engine = ladders().get(evidence.engine, ladders()["*"])
    try:
        recipe = parse(evidence.recipe)
    except UserError:
        recipe = Recipe()
    if recipe.k is None or recipe.v is None:
        return _stay("there is no larger type on this engine")
    k, v = recipe.k, recipe.v
    if "none" in k.transforms + v.transforms:
        up = recipe.with_sides(_without_none(k), _without_none(v))
        return _try(evidence, policy, up, "the engine rotates K and V before it quantizes them; leave that on")
    if {k.codec, v.codec} <= set(engine.calibration) and {k.origin, v.origin} <= {None, "unit"}:
        return NextStep(
            f"calibrate K and V scales on your own text into the checkpoint, then check {k.codec}@checkpoint",
            "scales of 1 waste the range or clip; measured ones are the cheapest repair",
        )
    if engine.calibration and engine.larger.get(k.codec) in engine.calibration and k.codec not in engine.calibration:
        # FP8 E5M2 takes no measured scales where E4M3 does, and has one bit less to begin with.
        return _larger(evidence, policy, engine, recipe, k, v)
    if engine.skip_layers and not recipe.keep:
        return NextStep(
            "measure which layers are sensitive and keep those native (/keep=L0-1,... in the recipe)",
            "a few layers often carry most of the loss",
        )
    if engine.asymmetric:
        up_sides = _asymmetric(engine, k, v)
        if up_sides is not None:
            return _try(evidence, policy, recipe.with_sides(*up_sides), "K carries most of the damage, V little")
    return _larger(evidence, policy, engine, recipe, k, v)


def _asymmetric(engine: EngineLadder, k: Side, v: Side) -> tuple[Side, Side] | None:
    """K larger while V stays as it failed; None once K is already the larger one."""
    k_steps, v_steps = engine.steps_to_native(k.codec), engine.steps_to_native(v.codec)
    if k_steps > v_steps:
        return replace(v, transforms=k.transforms), v
    if k_steps < v_steps:
        return None
    for codec in engine.k_first:
        if codec in engine.larger and engine.steps_to_native(codec) < k_steps:
            return Side(codec, transforms=k.transforms if codec != "f16" else ()), v
    return None


def _larger(
    evidence: CandidateEvidence, policy: Policy, engine: EngineLadder, recipe: Recipe, k: Side, v: Side
) -> NextStep:
    """The next larger type for V if K is already larger, else for both."""
    codec = engine.larger.get(v.codec, NATIVE)
    if codec == NATIVE or (codec == "f16" and k.codec == "f16"):
        return _stay(f"{v.codec} is the largest quantized type on this engine, and it failed")
    up = replace(v, codec=codec, params=(), origin=None)
    apart = engine.steps_to_native(k.codec) < engine.steps_to_native(v.codec)
    both = recipe.with_sides(k if apart else replace(k, codec=codec, params=(), origin=None), up)
    return _try(evidence, policy, both, f"{codec} is the next larger type on this engine")


def _try(evidence: CandidateEvidence, policy: Policy, recipe: Recipe, why: str) -> NextStep:
    text = str(recipe)
    return NextStep(f"try {text}", why, text, _command(evidence, text, policy.name))


def _stay(why: str) -> NextStep:
    return NextStep("stay native", why, NATIVE)


def _without_none(side: Side) -> Side:
    return replace(side, transforms=tuple(t for t in side.transforms if t != "none"))
