"""coverage: the required suites ran, with no more than a stated share of engine failures.

An engine failure is a hole, never an answer. Reads the lines of `CandidateEvidence.errors`, "3 of 24 answers: ...";
a line without these numbers leaves the share unknown, which does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from kvgate.core.estimate import Estimate
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence, Finding, Status
from kvgate.gate.rule import BaseRule, Example, RuleParams, RuleSpec, Setting, alternatives

_LINE = re.compile(r"\b(\d+) of (\d+) answers\b")
#: Lines quoted in a finding.
_QUOTED = 3


class Params(RuleParams):
    """`suites` that must have run ("a|b": one of them); `max_error_share` of their answers may be engine failures."""

    suites: tuple[str, ...] = Field(min_length=1)
    max_error_share: float = Field(default=0.0, ge=0.0, lt=1.0)


def error_share(lines: Sequence[str]) -> float | None:
    """Failed share of the answers, summed over the lines; None where a line cannot be read."""
    total = 0.0
    for line in lines:
        m = _LINE.search(line)
        if m is None or int(m[2]) == 0:
            return None
        total += int(m[1]) / int(m[2])
    return min(1.0, total)


def _quote(lines: Sequence[str]) -> str:
    more = f" (and {len(lines) - _QUOTED} more)" if len(lines) > _QUOTED else ""
    return "; ".join(lines[:_QUOTED]) + more


def _example(
    what: str, errors: list[str], status: Status, *, ran: bool = True, share: float = 0.1, measured: bool = True
) -> Example:
    summary = Summary({"s.kl": Estimate(0.0, 0.0, 0.0, 0.9, 1, 1, "nat", "example")} if measured else {})
    evidence = CandidateEvidence("c", "q8_0", "q8_0", {}, summaries={"s": summary} if ran else {}, errors={"s": errors})
    return Example(what, {"suites": ["s"], "max_error_share": share}, evidence, (status,))


class Coverage(BaseRule):
    """One finding a suite: too many failures INCONCLUSIVE, missing or without any metric UNTESTED, else PASS."""

    name = "coverage"
    Params = Params
    quality: ClassVar[bool] = False
    examples = (
        _example("no failure", [], Status.PASS, share=0.0),
        _example("failures at the share", ["2 of 20 answers: EngineTimeout"], Status.PASS),
        _example("failures over the share", ["3 of 20 answers: EngineTimeout"], Status.INCONCLUSIVE),
        _example(
            "failures add up", ["2 of 20 answers: EngineTimeout", "1 of 20 answers: BadAnswer"], Status.INCONCLUSIVE
        ),
        _example("a line that cannot be read", ["some answers are missing"], Status.INCONCLUSIVE),
        _example("the suite did not run", [], Status.UNTESTED, ran=False),
        _example("the suite ran and measured nothing", [], Status.UNTESTED, measured=False),
        _example("it measured nothing, since all failed", ["20 of 20 answers: x"], Status.INCONCLUSIVE, measured=False),
    )

    def judge(self, spec: RuleSpec, evidence: CandidateEvidence, setting: Setting) -> tuple[Finding, ...]:
        return tuple(self._one(spec, evidence, suite) for suite in spec.params.suites)

    def _one(self, spec: RuleSpec, evidence: CandidateEvidence, suite: str) -> Finding:
        ran = [s for s in alternatives(suite) if s in evidence.summaries]
        if not ran:
            suite = alternatives(suite)[0]
            reason = evidence.untested.get(suite, "no result")
            return spec.finding(Status.UNTESTED, f"{suite} did not run: {reason}")
        suite = ran[0]
        lines = evidence.errors.get(suite, ())
        share, allowed = error_share(lines), spec.params.max_error_share
        if share is None:
            return spec.finding(Status.INCONCLUSIVE, f"{suite}: engine failures of unknown share: {_quote(lines)}")
        if share > allowed:
            return spec.finding(
                Status.INCONCLUSIVE,
                f"{suite}: {share:.1%} of the answers are engine failures, {allowed:.1%} allowed: {_quote(lines)}",
                threshold=allowed,
            )
        summary = evidence.summaries[suite]
        if not summary.metrics:
            why = "; ".join(summary.untested) or "no result"
            return spec.finding(Status.UNTESTED, f"{suite} ran and measured nothing: {why}")
        holes = f", {share:.1%} engine failures" if share else ""
        return spec.finding(Status.PASS, f"{suite} ran{holes}", threshold=allowed)


RULE = Coverage()
