"""What a report is made of. The campaign fills a `RunView`; everything in `report/` reads it and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgate.core.deployment import CachePart, Deployment, Engaged
from kvgate.core.geometry import ModelFiles
from kvgate.core.observation import Records
from kvgate.core.verdict import CandidateEvidence, Verdict


@dataclass(frozen=True)
class CapacityRow:
    """Bytes of one recipe: predicted from the codecs' sizes, and what the engine's own log says.

    Attributes:
        recipe, effective: as requested, and as this engine runs it.
        bytes_per_token: KV bytes of one token over all layers.
        ratio: tokens that fit in the same memory, as a multiple of the base's.
        predicted: (kind, cells, K MiB, V MiB) of each cache of the engine.
        reported: the same caches in the engine's words; empty if it did not say.
        agrees: predicted equals reported to the log's precision; None if nothing was reported.
        source: where the prediction or the log line comes from.
    """

    recipe: str
    effective: str
    bytes_per_token: int
    ratio: float
    predicted: tuple[tuple[str, int, float, float], ...]
    reported: tuple[CachePart, ...]
    agrees: bool | None
    source: str


@dataclass(frozen=True)
class ArmView:
    """One arm. `deployments` and `engaged` are keyed by place ("serving", "panel").

    Attributes:
        role: "base", "floor" or "candidate".
        perturb: what a floor arm declares to do differently, e.g. ("restart",) or ("ubatch_tokens=32",).
    """

    name: str
    role: str
    recipe: str
    effective: str
    perturb: tuple[str, ...]
    deployments: Mapping[str, Deployment]
    engaged: Mapping[str, Engaged]


@dataclass(frozen=True, slots=True)
class PublishedView:
    """A claim of others about the same family and codecs: quoted, measured neither here nor by us.

    Attributes:
        carries: what is equal and what is not between the claim and this run. caveats: ids.
    """

    id: str
    statement: str
    carries: tuple[str, ...]
    caveats: tuple[str, ...]
    source: str

    @property
    def distance(self) -> str:
        """What stands behind the statement: how far it carries, and what to mind."""
        return "; ".join((*self.carries, *(["caveats: " + ", ".join(self.caveats)] if self.caveats else [])))


@dataclass(frozen=True)
class RunView:
    """A whole run, as the reports see it.

    Attributes:
        created: ISO time, UTC. duration_s: wall time of the measurement.
        arms: base first, then floors and candidates.
        evidence: by candidate. verdicts: in the order the candidates were asked for.
        records: by suite name; the golden and needle sections read raw answers and scores from here.
        manifest: JSON value with everything that made the run: versions, digests, settings, environment.
        published: by candidate, what others say; empty is "nobody we know of", no entry is "was not looked up".
    """

    run_id: str
    key: str
    created: str
    duration_s: float
    model: ModelFiles
    engine: str
    policy: str
    preset: str
    seed: int
    context_tokens: int
    arms: Sequence[ArmView]
    capacity: Sequence[CapacityRow]
    evidence: Mapping[str, CandidateEvidence]
    verdicts: Sequence[Verdict]
    records: Mapping[str, Records]
    manifest: Mapping[str, Any]
    caveats: Sequence[str] = ()
    published: Mapping[str, Sequence[PublishedView]] = field(default_factory=dict)

    def role(self, name: str) -> tuple[ArmView, ...]:
        """Arms of one role, in order."""
        return tuple(a for a in self.arms if a.role == name)

    def arm(self, name: str) -> ArmView | None:
        """The arm of that name, if it is in the run."""
        return next((a for a in self.arms if a.name == name), None)

    @property
    def base(self) -> ArmView | None:
        return next(iter(self.role("base")), None)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Candidate names, verdict order."""
        return tuple(v.candidate for v in self.verdicts)
