"""Findings, the decision made of them, and the next step. Values only; rules live in `gate/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from kvgate.core.deployment import Engaged, FieldDelta
from kvgate.core.estimate import Measure, measure_from_json
from kvgate.core.suite import Summary


class Status(StrEnum):
    """Outcome of one rule."""

    PASS = "pass"  # noqa: S105 - a status, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    UNTESTED = "untested"
    WARN = "warn"


class Decision(StrEnum):
    """Outcome of one candidate. Exit code by the worst: INVALID 4 > FAIL 1 > INCONCLUSIVE 3 > PASS 0."""

    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> int:
        return {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3, "INVALID": 4}[self.value]


#: From best to worst.
SEVERITY: tuple[Decision, ...] = (Decision.PASS, Decision.INCONCLUSIVE, Decision.FAIL, Decision.INVALID)


def worst(decisions: Sequence[Decision]) -> Decision:
    """The decision that sets the exit code; no candidate at all is INVALID."""
    return max(decisions, key=SEVERITY.index, default=Decision.INVALID)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found.

    Attributes:
        rule: id in the policy. use: the rule's file. role: "decide" or "guard".
        message: one sentence with the numbers. blind_spot: what a guard cannot see.
        observed: the number judged. threshold: what it was held against.
        decide_n: independent units (documents, prompts) that would decide at 80 % power if the estimate is true;
            None with `decide_why` where none would.
    """

    rule: str
    use: str
    role: str
    status: Status
    message: str
    metric: str = ""
    observed: Measure | None = None
    threshold: float | None = None
    decide_n: int | None = None
    decide_why: str = ""
    blind_spot: str = ""

    def to_json(self) -> dict[str, Any]:
        d = asdict(self)
        d["observed"] = self.observed.to_json() if self.observed is not None else None
        d["status"] = self.status.value
        return d

    @classmethod
    def from_json(cls, d: Mapping[str, Any]) -> Finding:
        """A finding back from its JSON object, with defaults for what an earlier kvgate did not write."""
        known = {f.name: d[f.name] for f in fields(cls) if f.name in d}
        observed = d.get("observed")
        more = {"status": Status(d["status"]), "observed": measure_from_json(observed) if observed else None}
        return cls(**(known | more))


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next thing to try. `command` is None where there is none."""

    action: str
    why: str
    recipe: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one candidate."""

    candidate: str
    decision: Decision
    findings: tuple[Finding, ...]
    untested: tuple[str, ...]
    next: NextStep
    policy: str
    policy_digest: str
    records_digest: str
    caveats: tuple[str, ...] = ()

    def headline(self) -> str:
        """'PASS (smoke: not a ship decision)' or the bare decision."""
        if self.decision is Decision.PASS and self.policy == "smoke":
            return "PASS (smoke: not a ship decision)"
        return self.decision.value

    def to_json(self) -> dict[str, Any]:
        return {
            "candidate": self.candidate,
            "decision": self.decision.value,
            "headline": self.headline(),
            "findings": [f.to_json() for f in self.findings],
            "untested": list(self.untested),
            "next": asdict(self.next),
            "policy": self.policy,
            "policy_digest": self.policy_digest,
            "records_digest": self.records_digest,
            "caveats": list(self.caveats),
        }

    @classmethod
    def from_json(cls, d: Mapping[str, Any]) -> Verdict:
        """A verdict back from its JSON object, as a store keeps it."""
        return cls(
            candidate=d["candidate"],
            decision=Decision(d["decision"]),
            findings=tuple(Finding.from_json(f) for f in d["findings"]),
            untested=tuple(d.get("untested", ())),
            next=NextStep(**d["next"]),
            policy=d["policy"],
            policy_digest=d["policy_digest"],
            records_digest=d["records_digest"],
            caveats=tuple(d.get("caveats", ())),
        )


@dataclass(frozen=True, slots=True)
class CandidateEvidence:
    """All that the gate may look at for one candidate.

    Attributes:
        engaged: per place ("serving", "panel") how surely the recipe is in force.
        deltas: per place, identity fields that differ from the base or are unknown, not declared.
        loud: changed backend or kernel, in words.
        summaries: per suite. errors: per suite, engine failures that left holes ("3 of 24 answers: EngineTimeout").
        untested: suite or lane -> reason.
        served: of a server that somebody else runs, the engine behind its address; "" where it is not known.
        options: the person's own options that the next command must keep, e.g. ("--golden", "mine.jsonl").
        invalid: reasons that make the whole comparison void (engine died on load, lossy codec with KL exactly 0).
    """

    candidate: str
    recipe: str
    effective: str
    engaged: Mapping[str, Engaged]
    deltas: Mapping[str, Sequence[FieldDelta]] = field(default_factory=dict)
    loud: Sequence[str] = ()
    summaries: Mapping[str, Summary] = field(default_factory=dict)
    errors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    untested: Mapping[str, str] = field(default_factory=dict)
    invalid: Sequence[str] = ()
    model: str = ""
    engine: str = ""
    caveats: Sequence[str] = ()
    records_digest: str = ""
    options: Sequence[str] = ()
    served: str = ""
