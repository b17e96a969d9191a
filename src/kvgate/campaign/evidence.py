"""From records to what the gate may look at: engagement, deltas, summaries, holes, and what nobody tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.campaign.arms import BASE, PANEL, SERVING, Role
from kvgate.campaign.context import RunContext
from kvgate.campaign.measured import ArmFacts, Facts, Measured, place_of, undeclared
from kvgate.campaign.spec import CheckSpec
from kvgate.campaign.windows import past_window
from kvgate.core.deployment import Loud
from kvgate.core.estimate import Estimate
from kvgate.core.observation import Records, content_digest
from kvgate.core.private import public_env, public_words
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence
from kvgate.store.rows import ArmRow

#: Below this the distributions of the demo kind of model say little about a big one (evaluation facts, llama.cpp PR
#: 21038: Qwen3-0.6B went from unusable to nearly baseline by rotation, an 8B model barely moved).
SMALL_MODEL_BYTES = 2 * 10**9


def gather(run: Measured, records: Mapping[str, Records]) -> dict[str, CandidateEvidence]:
    """Evidence per candidate, in the order they were asked for."""
    digest = content_digest({name: r.digest for name, r in records.items()})
    return {a.name: _of_candidate(run, a, records, digest) for a in run.of_role(Role.CANDIDATE)}


def _of_candidate(run: Measured, arm: ArmFacts, records: Mapping[str, Records], digest: str) -> CandidateEvidence:
    rows = run.rows_of(arm.name)
    summaries: dict[str, Summary] = {}
    untested = dict(run.facts.untested)
    errors: dict[str, list[str]] = {}
    for name, suite in run.suites.items():
        place = place_of(suite)
        if name in untested:
            continue
        if not run.usable(arm.name, place):
            untested[name] = run.broken.get((arm.name, place)) or f"base: {run.broken[(BASE, place)]}"
            continue
        if not records[name].raws:
            untested[name] = run.broken.get((BASE, SERVING), "nothing of it was run")
            continue
        holes = _holes(run, records[name], arm.name)
        if holes:
            errors[name] = holes
        summaries[name] = suite.summarise(records[name].pair_with(arm.name))
    return CandidateEvidence(
        candidate=arm.name,
        recipe=arm.recipe,
        effective=arm.effective,
        engaged={place: row.engaged for place, row in rows.items() if row.engaged is not None},
        deltas={p: d for p in rows if (d := undeclared(run.seen, arm.name, arm.perturb, p))},
        loud=_loud(run, rows),
        summaries=summaries,
        errors=errors,
        untested=untested | _lengths(run.facts),
        invalid=(*_invalid(run, arm, records), *_unchanged(arm, summaries, records)),
        model=run.facts.asked,
        engine=run.facts.engine,
        caveats=caveats(run),
        records_digest=digest,
        options=run.facts.options,
        served=_served(run),
    )


def _served(run: Measured) -> str:
    base = run.seen.get((BASE, SERVING))
    return base.deployment.identity.engine if base is not None and base.deployment is not None else ""


def _holes(run: Measured, records: Records, arm: str) -> list[str]:
    """Each arm whose work has holes, in words: base: 3 of 24 answers: EngineTimeout."""
    failed = run.store.errors(run.run_id, records.suite)
    counts = Counter(a.work.arm for a in run.store.answered(run.run_id, records.suite))
    said = [
        f"{who}: {len(texts)} of {counts[who] + len(texts)} answers: {texts[0]}"
        for who in (BASE, arm, "*")
        if (texts := failed.get(who, ()))
    ]
    if records.positions:
        # A panel case is one piece of work for all arms; an arm that was left out of it has a hole there.
        held = {b.case_id for b in records.positions if b.arm == arm}
        every = {b.case_id for b in records.positions}
        if held != every:
            said.append(f"{arm}: {len(every - held)} of {len(every)} answers: the arm took no part")
    return said


def _loud(run: Measured, rows: Mapping[str, ArmRow]) -> tuple[str, ...]:
    said = []
    for place, row in rows.items():
        base = run.seen.get((BASE, place))
        if base is None or base.deployment is None or row.deployment is None:
            continue
        for field in Loud.model_fields:
            a, b = getattr(base.deployment.loud, field), getattr(row.deployment.loud, field)
            # A type that only one log tells is unknown on the other side, not changed.
            if a != b and (field in ("backend", "kernel") or None not in (a, b)):
                said.append(f"{place}: {field} changed with the recipe: {a} -> {b}")
    return tuple(said)


def _invalid(run: Measured, arm: ArmFacts, records: Mapping[str, Records]) -> tuple[str, ...]:
    """Reasons that void the comparison: an arm that could not be used, or a lossy codec that changed nothing."""
    reasons = []
    for place in (SERVING, PANEL):
        for who in (BASE, arm.name):
            reason = run.broken.get((who, place))
            if reason is not None:
                reasons.append(f"{who} ({place}): {reason}")
    for name, r in records.items():
        reasons += _silent(run, r, arm.name)
        reasons += _degenerate(run, r, arm.name)
        blocks = [b for b in r.positions if b.arm == arm.name]
        if blocks and not arm.lossless and not any(b.data["kl"].any() for b in blocks):
            n = sum(len(b.data) for b in blocks)
            reasons.append(
                f"{name}: KL is exactly 0 at all {n} positions, although {arm.effective} stores fewer bits than "
                "the base: the recipe is not in force"
            )
    return tuple(reasons)


def _unchanged(arm: ArmFacts, summaries: Mapping[str, Summary], records: Mapping[str, Records]) -> Iterator[str]:
    """The same of suites that keep answers, not positions (tops of distributions): a mean divergence of exactly 0."""
    if arm.lossless:
        return
    for name, summary in summaries.items():
        means = {m: e for m, e in summary.metrics.items() if m.endswith(".kl_mean") and isinstance(e, Estimate)}
        if means and not records[name].positions and all(e.value == 0 for e in means.values()):
            n = sum(e.n or 0 for e in means.values())
            yield (
                f"{name}: {' and '.join(means)} exactly 0 at all {n} positions, although {arm.effective} stores fewer "
                "bits than the base: the recipe is not in force"
            )


def _silent(run: Measured, records: Records, arm: str) -> list[str]:
    """An arm that failed on more than half of what the base answered has not been measured, whatever the rest says."""
    asked = {case for who, case in records.raws if who == BASE}
    lost = asked - {case for who, case in records.raws if who == arm}
    failed = run.store.errors(run.run_id, records.suite).get(arm, ())
    if not failed or len(lost) * 2 <= len(asked):
        return []
    return [f"{records.suite}: no answer to {len(lost)} of {len(asked)} that the base answered: {failed[0]}"]


def _degenerate(run: Measured, records: Records, arm: str) -> list[str]:
    """A panel case that gave every other arm positions and this one none: its logits were NaN or infinite."""
    if not records.positions or (arm, PANEL) not in run.seen or not run.usable(arm, PANEL):
        return []
    every = {(b.case_id, b.lane) for b in records.positions}
    lost = every - {(b.case_id, b.lane) for b in records.positions if b.arm == arm}
    if not lost:
        return []
    return [f"{records.suite}: no usable logits in {len(lost)} of {len(every)} lanes of documents (NaN or infinite)"]


def _lengths(facts: Facts) -> dict[str, str]:
    trained, longest = facts.model.geometry.context_tokens, facts.longest_case_tokens
    if facts.context_tokens >= trained:
        return {}
    seen = f"; the longest case had {longest}" if longest else ""
    return {
        "long contexts": f"nothing beyond {facts.context_tokens} tokens was run{seen}; the model takes {trained}: "
        f"use --context {trained}"
    }


def caveats(run: Measured) -> tuple[str, ...]:
    """What a reader must not conclude."""
    base = next((r.deployment for (a, _), r in run.seen.items() if a == BASE and r.deployment), None)
    build = (base.identity.build or base.identity.version or "unknown build") if base else "unknown build"
    said = [f"holds for {run.facts.model.name} on {run.facts.engine} {build} only; retest after every engine upgrade"]
    said += past_window(run)
    for arm in run.of_role(Role.FLOOR):
        if "build" in arm.perturb:
            said.append(
                f"floor {arm.name} is another interpreter's engine, by your own word: what it shows is the change of "
                "build, and it is subtracted from every candidate's loss like any floor"
            )
    if 0 < run.facts.model.size_bytes < SMALL_MODEL_BYTES:
        said.append(
            f"{run.facts.model.name} is a small model ({run.facts.model.size_bytes / 1e6:.0f} MB of weights): small "
            "models are hurt most by KV quantization, and its result does not carry to another model"
        )
    return tuple(said)


def manifest(run: RunContext) -> dict[str, Any]:
    """What makes this run this run; stored with it and shown in the report. No secrets, no prompts."""
    return {
        "kvgate": _version(),
        "spec": _spec(run.spec),
        "model": {"name": run.model.name, "digest": run.model.digest, "weights": run.model.weights_dtype},
        "context_tokens": run.context_tokens,
        "suites": {
            n: {
                "version": s.version,
                "scorer_version": s.scorer_version,
                "params": run.params[n].model_dump(mode="json"),
            }
            for n, s in run.suites.items()
        },
        "arms": {
            a.name: {
                "role": a.role.value,
                "recipe": str(a.recipe),
                "effective": str(a.launch.effective),
                "perturb": list(a.perturb),
            }
            for a in run.arms
        },
    }


def _spec(spec: CheckSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude={"store", "out"}) | {
        "env": public_env(spec.env),
        "arms": [public_words(arm) for arm in spec.arms],
        "engine_arguments": [public_words(word) for word in spec.engine_arguments],
    }


def _version() -> str:
    from kvgate import __version__

    return __version__
