"""What a gate rule is. Pure over `CandidateEvidence`; knows no suite by name.

A rule is one file in `rules/`, exported as RULE: an object with a name, a pydantic Params (the rule's own keys in the
policy TOML), `judge`, and examples at its boundaries that the conformance test runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, model_validator

from kvgate.core.estimate import Estimate, Measure, Test
from kvgate.core.metric import parse_metric
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence, Finding, Status


def alternatives(name: str) -> tuple[str, ...]:
    """ "a.b|c.d" -> ("a.b", "c.d"): the first that was measured counts."""
    return tuple(name.split("|"))


class RuleParams(BaseModel):
    """Base of every rule's Params: unknown keys and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MetricParams(RuleParams):
    """Params of a rule that reads metrics: `metric = "a.b"` or `metrics = ["a.b", "a.c"]`.

    "a.b|c.d" reads the first of them that was measured.
    """

    metrics: tuple[str, ...]

    @model_validator(mode="before")
    @classmethod
    def _one_or_many(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "metric" in data:
            if "metrics" in data:
                raise ValueError("give metric or metrics, not both")
            rest = {k: v for k, v in data.items() if k != "metric"}
            return {**rest, "metrics": (data["metric"],)}
        return data

    @model_validator(mode="after")
    def _well_formed(self) -> MetricParams:
        if not self.metrics:
            raise ValueError("metrics is empty")
        for metric in self.metrics:
            for one in alternatives(metric):
                parse_metric(one)
        return self


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """One `[[rule]]` of a policy, with its Params checked."""

    id: str
    use: str
    role: str
    params: Any
    suite: str | None = None

    def finding(self, status: Status, message: str, **more: Any) -> Finding:
        """A finding of this rule."""
        return Finding(self.id, self.use, self.role, status, message, **more)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a rule may know of the policy: alpha, and the detect family's adjusted p values, by `RuleSpec.id:metric`."""

    alpha: float = 0.05
    adjusted: Mapping[str, float] = field(default_factory=dict)


class Example(NamedTuple):
    """A boundary of a rule: with these params and this evidence it finds exactly these statuses."""

    what: str
    params: Mapping[str, Any]
    evidence: CandidateEvidence
    statuses: tuple[Status, ...]


class Rule(Protocol):
    """One file in `gate/rules/`.

    Attributes:
        quality: whether a pass says something about the candidate's answers. A policy whose only passes come from
            rules without it (engaged, coverage) cannot PASS.
        reads: optional; `reads(spec)` gives the metrics without which the rule is untested.
    """

    name: str
    Params: type[BaseModel]
    quality: bool
    examples: tuple[Example, ...]

    def tests(self, spec: RuleSpec, evidence: CandidateEvidence) -> Mapping[str, float]:
        """p values that join the corrected family of the candidate, by `RuleSpec.id:metric`; {} for most rules."""
        ...

    def judge(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> tuple[Finding, ...]:
        """One finding a metric or place; never raises on missing evidence."""
        ...


class BaseRule:
    """Defaults for rules in this package."""

    quality: ClassVar[bool] = True

    def tests(self, spec: RuleSpec, evidence: CandidateEvidence) -> Mapping[str, float]:
        return {}

    def reads(self, spec: RuleSpec) -> tuple[str, ...]:
        """Metrics ("a.b|c.d": one of them) without which the rule is untested."""
        return tuple(getattr(spec.params, "metrics", ()))


#: What would decide where tops of distributions cover too little of the base's mass.
LONGER_TOPS = "longer tops would decide, or a panel, which sees the whole vocabulary"


class Found(NamedTuple):
    """A metric, the suite that measured it, and its name: of alternatives, the one that was found."""

    suite: str
    summary: Summary
    measure: Measure
    metric: str


def find(spec: RuleSpec, evidence: CandidateEvidence, metric: str, *, excess: bool = False) -> Found | None:
    """The metric in the summaries, restricted to `spec.suite` where the policy names one."""
    for one in alternatives(metric):
        for suite, summary in _summaries(spec, evidence):
            held: Mapping[str, Measure] = summary.excess if excess else summary.metrics
            if one in held:
                return Found(suite, summary, held[one], one)
    return None


def untested(spec: RuleSpec, evidence: CandidateEvidence, metric: str, why: str = "") -> Finding:
    """The finding for a metric that is not there, with the reason the campaign gave."""
    reasons = [why] if why else []
    for one in alternatives(metric):
        lane = one.partition(".")[0]
        for place in dict.fromkeys((spec.suite or lane, lane, *_lanes_of(lane))):
            if place in evidence.untested:
                reasons.append(f"{place}: {evidence.untested[place]}")
            elif place in evidence.summaries:
                reasons += (of_suite(place, text) for text in evidence.summaries[place].untested)
    metric = alternatives(metric)[0]
    message = f"{metric} was not measured" + (f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else "")
    return spec.finding(Status.UNTESTED, message, metric=metric)


def of_suite(suite: str, text: str) -> str:
    """A suite's own words, which often begin with its name."""
    return text if text.startswith(f"{suite}:") else f"{suite}: {text}"


def blind_spot(spec: RuleSpec, summary: Summary) -> str:
    """What a guard cannot see at these sizes, in the suite's words; "" for a deciding rule."""
    return "; ".join(summary.blind_spots) if spec.role == "guard" else ""


def expect_estimate(spec: RuleSpec, metric: str, measure: Measure) -> Estimate | Finding:
    """The estimate, or the finding that says why there is none to judge."""
    if isinstance(measure, Test):
        return spec.finding(
            Status.UNTESTED, f"{metric} is a test, not an estimate; judge it with use = 'detect'", metric=metric
        )
    if measure.value is None:
        return spec.finding(Status.UNTESTED, f"{metric} is not known: {measure.why}", metric=metric, observed=measure)
    return measure


def _summaries(spec: RuleSpec, evidence: CandidateEvidence) -> Iterator[tuple[str, Summary]]:
    for suite, summary in evidence.summaries.items():
        if spec.suite is None or suite == spec.suite:
            yield suite, summary


def _lanes_of(lane: str) -> tuple[str, ...]:
    # Metrics of positions are named by how these were computed: prefill and decode are fidelity's, topk_* are topk's.
    return ("fidelity", "panel") if lane in ("prefill", "decode") else (lane.partition("_")[0],)
