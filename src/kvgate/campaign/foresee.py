"""What a policy cannot be shown in this check, said before anything is measured: hours would end in INCONCLUSIVE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvgate.campaign.arms import BASE, SERVING, Role
from kvgate.campaign.context import RunContext, kept_options
from kvgate.campaign.meeting import Lanes
from kvgate.core import registry
from kvgate.core.deployment import Engagement
from kvgate.core.engine import Lane, Missing
from kvgate.gate.ladder import own_start
from kvgate.gate.policy import Policy
from kvgate.gate.rule import alternatives

_ABSENT = Missing("not offered by this engine")


def foreseen(run: RunContext, policy: Policy, lanes: Mapping[str, Lanes]) -> Iterator[str]:
    """Lines for the person; none where every deciding rule can be shown what it reads.

    Args:
        lanes: of the base, and of every candidate whose server has been looked at.
    """
    gaps, shown = _gaps(run, lanes)
    blind = {rule: why for rule, metrics in _read(policy) if (why := [w for m in metrics for w in _unseen(m, gaps)])}
    attached = run.spec.against is not None
    if blind:
        said = "; ".join(dict.fromkeys(reason for reasons in blind.values() for reason in reasons))
        where = "on these servers" if attached else "in this check"
        verb = "decides" if len(blind) == 1 else "decide"
        yield f"policy {policy.name} cannot end in PASS {where}: {_listed(blind)} {verb} on what is not shown ({said})"
        if shown:
            yield f"what is shown can still FAIL a candidate: {_listed(shown)}"
    if not attached:
        return
    candidate = next(a for a in run.arms if a.role is Role.CANDIDATE)
    if blind:
        seen = run.seen.get((BASE, SERVING))
        engine = seen.deployment.identity.engine if seen is not None and seen.deployment is not None else ""
        command = own_start(engine, str(candidate.recipe), run.spec.policy, kept_options(run.spec, run.driver.name))
        yield f"to decide it, let kvgate start the engine on the model's own files: {command}"
    row = run.seen.get((candidate.name, SERVING))
    engaged = any(r.use == "engaged" and r.role == "decide" for r in policy.rules)
    if engaged and row is not None and row.engaged is not None and row.engaged.level is Engagement.UNOBSERVED:
        yield (
            f"nobody sees what {candidate.name}'s server stores, which keeps the verdict from PASS: give its start log "
            "by --log FILE, or your own word by --assume-engaged"
        )


def _read(policy: Policy) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Deciding rules, and the metrics that each of them needs."""
    for spec in policy.rules:
        reads = getattr(registry.get("rule", spec.use), "reads", None)
        if spec.role == "decide" and reads is not None:
            yield spec.id, tuple(reads(spec))
    if policy.floor.max:
        yield "floor", tuple(policy.floor.max)


def _unseen(metric: str, gaps: Mapping[str, str]) -> list[str]:
    """Why none of the alternatives will be there; [] where one may be."""
    reasons = [gaps.get(one.partition(".")[0]) for one in alternatives(metric)]
    return [r for r in reasons if r is not None] if None not in reasons else []


def _gaps(run: RunContext, lanes: Mapping[str, Lanes]) -> tuple[dict[str, str], list[str]]:
    """Prefixes of metrics that cannot be there, with the reason, and those that will."""
    gaps: dict[str, str] = {}
    shown: list[str] = []
    for name, suite in registry.discover("suite").items():
        for prefix, lane in _shows(name, suite).items():
            if name not in run.suites:
                gaps[prefix] = f"{name} is not part of this check"
            elif name in run.untested:
                gaps[prefix] = f"{name}: {run.untested[name]}"
            elif lane is not None and (why := _lacking(lanes, lane)):
                gaps[prefix] = f"{name}: {why}"
            else:
                shown.append(prefix)
    return gaps, shown


def _shows(name: str, suite: Any) -> Mapping[str, Lane | None]:
    """Prefixes of a suite's metrics, and the lane that each needs; a suite that says nothing has its own name."""
    shows: Mapping[str, Lane | None] = getattr(suite, "shows", {name: None})
    return shows


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _lacking(lanes: Mapping[str, Lanes], lane: Lane) -> str:
    for arm, served in lanes.items():
        found = served.get(lane, _ABSENT)
        if isinstance(found, Missing):
            return found.reason if arm == BASE else f"{arm}: {found.reason}"
    return ""
