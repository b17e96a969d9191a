"""The suite protocol: makes cases, runs them, scores, compares with the base, summarises. Stores nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from kvgate.core.engine import ArmId, Lane, Panel, Session, Tokens
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.metric import MetricId
from kvgate.core.observation import Case, PairedRecords, PairScore, PositionBlock, Raw, Records, Score, Work


@dataclass(frozen=True, slots=True)
class SuiteContext:
    """All that cases may depend on.

    Attributes:
        params: an instance of the suite's Params.
        tokenize: the model's tokenizer (blocking). tokenize_document: the same with the model's own beginning (BOS).
        context_tokens: context of one sequence in this run.
        files: the user's own inputs by name ("corpus", "golden"), if given.
        window_tokens: largest sliding window of the model; 0 where every layer sees all. Suites go past it, if the
            context has room: what lies outside the window takes another path through the cache.
    """

    params: Any
    seed: int
    tokenize: Callable[[str], Tokens]
    context_tokens: int
    files: Mapping[str, Path] = field(default_factory=dict)
    tokenize_document: Callable[[str], Tokens] | None = None
    window_tokens: int = 0

    def document(self, text: str) -> Tokens:
        """Ids of a whole document."""
        return (self.tokenize_document or self.tokenize)(text)


@dataclass(frozen=True, slots=True)
class Cost:
    """Work before anything runs: cases, and tokens that one arm computes."""

    cases: int
    prefill_tokens: int
    decode_tokens: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What the fake engine does that this suite must catch, as a script for `engines/fake.py`.

    Attributes:
        script: fake-engine settings for the candidate arm, e.g. {"break_rate": 0.25}.
        metric: the metric that must show it. clean: settings of an A/A pair that must pass.
    """

    script: Mapping[str, Any]
    metric: MetricId
    clean: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """One candidate's results of one suite.

    Attributes:
        metrics: statistic of candidate against base.
        excess: the same statistic minus the largest over the floor arms, inside each resample; same keys where it
            makes sense.
        floor: per floor arm, the statistic of that arm against base.
        untested: reasons why something here says nothing ("baseline is at its floor").
        blind_spots: what these sizes cannot see, in words.
    """

    metrics: Mapping[MetricId, Measure] = field(default_factory=dict)
    excess: Mapping[MetricId, Estimate] = field(default_factory=dict)
    floor: Mapping[ArmId, Mapping[MetricId, Measure]] = field(default_factory=dict)
    untested: Sequence[str] = ()
    blind_spots: Sequence[str] = ()


class Suite(Protocol):
    """One file in `suites/`, exported as SUITE."""

    name: str
    version: int
    scorer_version: int
    needs: frozenset[Lane]
    Params: type[BaseModel]

    def presets(self) -> Mapping[str, BaseModel]:
        """Parameters per preset name ("smoke", "default")."""
        ...

    def cases(self, ctx: SuiteContext) -> Iterator[Case]:
        """Deterministic in (params, seed, tokenizer).

        Raises:
            UserError: the user's file is wrong (file and line), or nothing is left to run.
        """
        ...

    def cost(self, cases: Sequence[Case], params: Any) -> Cost: ...

    async def run(self, session: Session, case: Case, repeat: int, seed: int) -> Raw:
        """Serving suites. Never scores. Engine failures are raised, not returned."""
        ...

    def run_panel(self, panel: Panel, case: Case, base: ArmId, arms: Sequence[ArmId]) -> Sequence[PositionBlock]:
        """Panel suites (needs PANEL)."""
        ...

    def score(self, case: Case, raw: Raw) -> Score:
        """Pure."""
        ...

    def compare(self, case: Case, ref: Sequence[Raw], arm: Sequence[Raw]) -> PairScore:
        """Pure: break class relative to the base."""
        ...

    def next_work(self, records: Records) -> Sequence[Work]:
        """Confirmation reruns and repeats; [] ends. Deterministic in `records`."""
        ...

    def summarise(self, paired: PairedRecords) -> Summary:
        """Pure; rng seeded from the records' digest."""
        ...

    def planted_defect(self) -> Fault: ...
