"""What a run measured, as the judgement sees it: of a run in flight, or of a stored one without engine and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from kvgate.campaign.arms import BASE, PANEL, SERVING, Role
from kvgate.core import registry
from kvgate.core.deployment import FieldDelta, Sameness
from kvgate.core.engine import Lane
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelFiles
from kvgate.core.suite import Suite
from kvgate.report.model import CapacityRow
from kvgate.store.open import Store
from kvgate.store.rows import ArmRow

#: Fields that engines of one process and one device have no word for; unknown on both sides says nothing.
OFTEN_UNKNOWN = ("tensor_parallel", "pipeline_parallel", "chunked_prefill", "speculation", "epoch")
#: Kind of the evidence row that holds the facts of a run.
FACTS = "facts"


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """One arm. `lossless`: its codecs hold all that the base's can, so a KL of exactly 0 is what it should give."""

    name: str
    role: Role
    places: tuple[str, ...]
    recipe: str
    effective: str
    perturb: tuple[str, ...]
    lossless: bool


class Facts(BaseModel):
    """All that judgement and report need beside the answers; stored when a run is judged.

    Attributes:
        asked: MODEL as the person typed it. model: what it was. arms: base first.
        broken: (arm, place, reason) of what could not be used. untested: suite -> reason.
        suites: those that took part; one that a better lane replaced is not among them.
        options: the person's own options that a next command must give again.
        longest_case_tokens: 0 where no case states its tokens.
        duration_s: of all legs of the run; of one that was killed, what its answers took. written: ISO time, UTC.
        policy_digest: of the policy that the check was given; "" in facts of an earlier kvgate. policy: its
            name or file, as it was given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    asked: str
    model: ModelFiles
    engine: str
    context_tokens: int
    preset: str
    seed: int
    arms: tuple[ArmFacts, ...]
    broken: tuple[tuple[str, str, str], ...]
    untested: Mapping[str, str]
    suites: tuple[str, ...]
    options: tuple[str, ...]
    longest_case_tokens: int
    capacity: tuple[CapacityRow, ...]
    duration_s: float
    written: str
    policy_digest: str = ""
    policy: str = ""


_ADAPTER = TypeAdapter(Facts)


@dataclass(frozen=True)
class Measured:
    """Facts, what was seen of each (arm, place), the suites, and the store with the answers."""

    store: Store
    run_id: str
    facts: Facts
    seen: Mapping[tuple[str, str], ArmRow]
    suites: Mapping[str, Suite]

    @property
    def broken(self) -> dict[tuple[str, str], str]:
        return {(arm, place): reason for arm, place, reason in self.facts.broken}

    def usable(self, arm: str, place: str) -> bool:
        return (arm, place) not in self.broken and (BASE, place) not in self.broken

    def of_role(self, role: Role, place: str | None = None) -> tuple[ArmFacts, ...]:
        return tuple(a for a in self.facts.arms if a.role is role and (place is None or place in a.places))

    def floors(self, place: str) -> tuple[str, ...]:
        return tuple(a.name for a in self.of_role(Role.FLOOR, place))

    def candidates(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.of_role(Role.CANDIDATE))

    def rows_of(self, arm: str) -> dict[str, ArmRow]:
        """What was seen of an arm, by place."""
        return {place: self.seen[(arm, place)] for place in (SERVING, PANEL) if (arm, place) in self.seen}


def place_of(suite: Suite) -> str:
    """Where a suite runs."""
    return PANEL if Lane.PANEL in suite.needs else SERVING


def undeclared(
    seen: Mapping[tuple[str, str], ArmRow], arm: str, perturb: Sequence[str], place: str
) -> tuple[FieldDelta, ...]:
    """Identity fields that differ from the base of the same place, or are unknown, beyond what the arm declares."""
    base, own = seen.get((BASE, place)), seen.get((arm, place))
    if base is None or base.deployment is None or own is None or own.deployment is None:
        return ()
    return tuple(
        d
        for d in base.deployment.delta(own.deployment)
        if d.field not in perturb
        and (d.status is Sameness.DIFFERS or (d.status is Sameness.UNKNOWN and d.field not in OFTEN_UNKNOWN))
    )


def keep_facts(measured: Measured) -> None:
    """Store the facts, so that the run can be judged, scored and reported again."""
    body = _ADAPTER.dump_python(measured.facts, mode="json")
    measured.store.add_evidence(measured.run_id, FACTS, "", body)


def stored_facts(store: Store, run_id: str) -> Facts | None:
    """The newest facts of a run; None if it was never judged.

    Raises:
        UserError: they were written by another kvgate in a form that this one cannot read.
    """
    rows = [r.body for r in store.evidence(run_id, FACTS)]
    if not rows:
        return None
    try:
        # Each leg adds to the duration, by a clock that never goes back; the one that people set may.
        return max((_ADAPTER.validate_python(body) for body in rows), key=lambda f: (f.duration_s, f.written))
    except ValidationError as e:
        raise UserError(
            f"run {run_id} was recorded by another kvgate, in a form that this one cannot read", fix="run it again"
        ) from e


def measured_of(store: Store, run_id: str) -> Measured:
    """A stored run, ready to be judged again.

    Raises:
        UserError: it was not judged yet, or by an earlier kvgate, or its suites are not those of this one.
    """
    facts = stored_facts(store, run_id)
    if facts is None:
        if store.verdicts(run_id):
            raise UserError(
                f"run {run_id} was recorded by an earlier kvgate, which did not keep what judging again needs",
                fix="kvgate show has its verdicts; for others run the check again",
            )
        raise UserError(f"run {run_id} has not come to a judgement yet", fix="run the same kvgate check again")
    listed = store.find_run(run_id).manifest.get("suites", {})
    wanted = {name: details for name, details in listed.items() if name in facts.suites}
    known = registry.discover("suite")
    for name, details in wanted.items():
        if name not in known:
            raise UserError(f"run {run_id} used suite {name!r}, which is not here", allowed=known)
        if details.get("version") != known[name].version:
            raise UserError(
                f"run {run_id} used {name} version {details.get('version')}; this kvgate has {known[name].version}",
                fix="run it again",
            )
    seen = {(row.arm, row.place): row for row in store.arms(run_id)}
    return Measured(store, run_id, facts, seen, {n: known[n] for n in known if n in wanted})
