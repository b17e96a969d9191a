"""What every stage of one run shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvgate.campaign.arms import BASE, PANEL, SERVING, Arm, Role, of_role
from kvgate.campaign.progress import Meter, Progress
from kvgate.campaign.spec import CheckSpec
from kvgate.core.deployment import Deployment, Engaged, Engagement, FieldDelta, Sameness
from kvgate.core.engine import Driver, Lane
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelFiles
from kvgate.core.observation import Case
from kvgate.core.suite import Suite
from kvgate.store.open import Store
from kvgate.store.rows import ArmRow

#: A decoded token costs more than a prefilled one; seen on llama.cpp CPU: 8.5 to 13 ms against 4.5 ms.
DECODE_WEIGHT = 2.5


#: Fields that engines of one process and one device have no word for; unknown on both sides says nothing.
OFTEN_UNKNOWN = ("tensor_parallel", "pipeline_parallel", "chunked_prefill", "speculation", "epoch")


@dataclass
class RunContext:
    """One run in flight. `broken` holds the reason for each (arm, place) that cannot be used."""

    spec: CheckSpec
    store: Store
    run_id: str
    driver: Driver
    model: ModelFiles
    arms: Sequence[Arm]
    suites: Mapping[str, Suite]
    params: Mapping[str, Any]
    files: Mapping[str, Path]
    progress: Progress
    meter: Meter
    context_tokens: int
    cases: dict[str, dict[str, Case]] = field(default_factory=dict)
    seen: dict[tuple[str, str], ArmRow] = field(default_factory=dict)
    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)
    seen_before: bool = False
    panel_failed: bool = False
    lost: Counter[str] = field(default_factory=Counter)

    def place_of(self, suite: Suite) -> str:
        return PANEL if Lane.PANEL in suite.needs else SERVING

    def suites_of(self, place: str) -> list[Suite]:
        """Suites of a place that have cases and are not ruled out."""
        return [s for n, s in self.suites.items() if self.place_of(s) == place and n not in self.untested]

    def weight(self, suite: Suite, case: Case) -> float:
        """Tokens of one case on one arm, decoded ones weighed."""
        cost = suite.cost([case], self.params[suite.name])
        return cost.prefill_tokens + DECODE_WEIGHT * cost.decode_tokens

    def arm(self, name: str) -> Arm:
        return next(a for a in self.arms if a.name == name)

    def floors(self, place: str) -> tuple[str, ...]:
        return tuple(a.name for a in of_role(self.arms, Role.FLOOR, place))

    def candidates(self) -> tuple[str, ...]:
        return tuple(a.name for a in of_role(self.arms, Role.CANDIDATE))

    def usable(self, arm: str, place: str) -> bool:
        return (arm, place) not in self.broken and (BASE, place) not in self.broken

    def record_arm(self, arm: Arm, place: str, deployment: Deployment) -> Engaged:
        """Keep what was observed of an arm; refuse to go on with a run whose deployment has changed.

        Raises:
            UserError: this arm ran before in this run under another identity.
        """
        before = self.seen.get((arm.name, place))
        if before is not None and before.deployment is not None:
            changed = [d for d in before.deployment.delta(deployment) if d.status is Sameness.DIFFERS]
            if changed:
                what = ", ".join(f"{d.field} {d.a} -> {d.b}" for d in changed)
                raise UserError(
                    f"run {self.run_id} cannot go on: {arm.name} is not the deployment it was ({what})",
                    fix="undo the change, or start anew with --fresh",
                )
        engaged = self.driver.engaged(arm.launch.expected, deployment)
        row = ArmRow(
            arm=arm.name,
            place=place,
            role=arm.role.value,
            recipe=str(arm.recipe),
            perturb=arm.perturb,
            deployment=deployment,
            engaged=engaged,
        )
        self.store.save_arm(self.run_id, row)
        if deployment.evidence:
            self.store.add_evidence(self.run_id, "log", arm.name, {"place": place, "lines": list(deployment.evidence)})
        self.seen[(arm.name, place)] = row
        if engaged.level is Engagement.CONTRADICTED:
            self.broken[(arm.name, place)] = f"did not engage: {engaged.reason}"
            self.progress.note(f"{arm.name}: {place}: INVALID, did not engage: {engaged.reason}")
        differs = [d for d in self.undeclared(arm, place) if d.status is Sameness.DIFFERS]
        if arm.role is Role.FLOOR and differs:
            # A floor on another build is no noise of the base, and would be subtracted from the candidate's loss.
            what = ", ".join(f"{d.field} {d.a} -> {d.b}" for d in differs)
            self.broken[(arm.name, place)] = f"not the base's deployment: {what}"
            self.progress.note(f"{arm.name}: {place}: left out, not the base's deployment: {what}")
        return engaged

    def undeclared(self, arm: Arm, place: str) -> tuple[FieldDelta, ...]:
        """Identity fields that differ from the base of the same place, or are unknown, beyond what the arm declares."""
        base, own = self.seen.get((BASE, place)), self.seen.get((arm.name, place))
        if base is None or base.deployment is None or own is None or own.deployment is None:
            return ()
        return tuple(
            d
            for d in base.deployment.delta(own.deployment)
            if d.field not in arm.perturb
            and (d.status is Sameness.DIFFERS or (d.status is Sameness.UNKNOWN and d.field not in OFTEN_UNKNOWN))
        )
