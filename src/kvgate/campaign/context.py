"""What every stage of one run shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvgate.campaign.arms import BASE, Arm, Role
from kvgate.campaign.capacity import capacity_rows
from kvgate.campaign.measured import ArmFacts, Facts, Measured, place_of, undeclared
from kvgate.campaign.progress import Meter, Progress
from kvgate.campaign.spec import CheckSpec
from kvgate.core.deployment import Deployment, Engaged, Engagement, Sameness
from kvgate.core.engine import Driver
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelFiles
from kvgate.core.observation import Case
from kvgate.core.private import public_words
from kvgate.core.suite import Suite
from kvgate.store.open import Store
from kvgate.store.rows import ArmRow

#: A decoded token costs more than a prefilled one; seen on llama.cpp CPU: 8.5 to 13 ms against 4.5 ms.
DECODE_WEIGHT = 2.5


@dataclass
class RunContext:
    """One run in flight. `broken` holds the reason for each (arm, place) that cannot be used.

    `short_context`: a running server holds less than was asked for; suites that do not fit are then untested. `met` are
    the (arm, place) that this process has seen.
    """

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
    preset: str
    cases: dict[str, dict[str, Case]] = field(default_factory=dict)
    seen: dict[tuple[str, str], ArmRow] = field(default_factory=dict)
    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)
    seen_before: bool = False
    panel_failed: bool = False
    estimated_s: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)
    short_context: bool = False
    met: set[tuple[str, str]] = field(default_factory=set)

    def suites_of(self, place: str) -> list[Suite]:
        """Suites of a place that have cases and are not ruled out."""
        return [s for n, s in self.suites.items() if place_of(s) == place and n not in self.untested]

    def weight(self, suite: Suite, case: Case) -> float:
        """Tokens of one case on one arm, decoded ones weighed."""
        cost = suite.cost([case], self.params[suite.name])
        return cost.prefill_tokens + DECODE_WEIGHT * cost.decode_tokens

    def arm(self, name: str) -> Arm:
        return next(a for a in self.arms if a.name == name)

    def usable(self, arm: str, place: str) -> bool:
        return (arm, place) not in self.broken and (BASE, place) not in self.broken

    def record_arm(self, arm: Arm, place: str, deployment: Deployment) -> Engaged:
        """Keep what was observed of an arm; refuse to go on with a run whose deployment has changed.

        An arm that changes while it is being measured is broken: its answers are of two deployments.

        Raises:
            UserError: this arm ran before in this run under another identity.
        """
        before = self.seen.get((arm.name, place))
        if before is not None and before.deployment is not None:
            what = _changes(before.deployment, deployment)
            if what and (arm.name, place) in self.met and before.engaged is not None:
                self.broken[(arm.name, place)] = f"not the deployment it was: {what}"
                self.progress.note(f"{arm.name}: {place}: INVALID, not the deployment it was: {what}")
                return before.engaged
            if what:
                raise UserError(
                    f"run {self.run_id} cannot go on: {arm.name} is not the deployment it was ({what})",
                    fix="undo the change, or start anew with --fresh",
                )
        self.met.add((arm.name, place))
        engaged = self.driver.engaged(arm.launch.expected, deployment)
        if engaged.level is Engagement.UNOBSERVED and self.spec.assume_engaged:
            engaged = Engaged(Engagement.ASSUMED, f"{engaged.reason}; taken on your word by --assume-engaged")
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
        found = undeclared(self.seen, arm.name, arm.perturb, place)
        differs = [d for d in found if d.status is Sameness.DIFFERS]
        if arm.role is not Role.BASE and differs:
            # A floor on another build is no noise of the base, and would be subtracted from the candidate's loss; a
            # candidate on another one would be compared in more than its cache.
            what = ", ".join(f"{d.field} {d.a} -> {d.b}" for d in differs)
            self.broken[(arm.name, place)] = f"not the base's deployment: {what}"
            self.progress.note(f"{arm.name}: {place}: left out, not the base's deployment: {what}")
        return engaged

    def measured(self, duration_s: float = 0.0) -> Measured:
        """What has been measured so far."""
        return Measured(self.store, self.run_id, self._facts(duration_s), dict(self.seen), dict(self.suites))

    def _facts(self, duration_s: float) -> Facts:
        tokens = [c.body["tokens"] for per in self.cases.values() for c in per.values() if "tokens" in c.body]
        return Facts(
            asked=self.spec.model,
            model=self.model,
            engine=self.driver.name,
            context_tokens=self.context_tokens,
            preset=self.preset,
            seed=self.spec.seed,
            arms=tuple(self._arm_facts(a) for a in self.arms),
            broken=tuple((arm, place, reason) for (arm, place), reason in self.broken.items()),
            untested=dict(self.untested),
            suites=tuple(self.suites),
            options=kept_options(self.spec, self.driver.name),
            longest_case_tokens=max(tokens, default=0),
            capacity=capacity_rows(self.model.geometry, self.arms, self.seen),
            duration_s=duration_s,
            written=datetime.now(UTC).isoformat(timespec="microseconds"),
        )

    def _arm_facts(self, arm: Arm) -> ArmFacts:
        base, expected = self.arm(BASE).launch.expected, arm.launch.expected
        held = expected.lossless_against
        same = (base.k_codec, base.v_codec) == (expected.k_codec, expected.v_codec)
        return ArmFacts(
            name=arm.name,
            role=arm.role,
            places=tuple(sorted(arm.places)),
            recipe=str(arm.recipe),
            effective=str(arm.launch.effective),
            perturb=arm.perturb,
            lossless=same or (base.k_codec in held and base.v_codec in held),
        )


def _changes(before: Deployment, now: Deployment) -> str:
    """What differs between two looks at one arm, in words; "" for nothing that is known on both."""
    said = [f"{d.field} {d.a} -> {d.b}" for d in before.delta(now) if d.status is Sameness.DIFFERS]
    a, b = before.note.fingerprint, now.note.fingerprint
    if a is not None and b is not None and a != b:
        said.append(f"fingerprint {a} -> {b}")
    return ", ".join(said)


def kept_options(spec: CheckSpec, engine: str) -> tuple[str, ...]:
    """What the person gave that a next command must give again; sizes and suites follow the policy."""
    given = {
        "--engine": None if engine == "llama_cpp" or spec.against is not None else engine,
        "--against": spec.against,
        "--log": spec.log,
        "--base-log": spec.base_log,
        "--base": None if spec.base == "native" else spec.base,
        "--context": spec.context_tokens,
        "--golden": spec.golden,
        "--corpus": spec.corpus,
        "--engine-python": spec.engine_python,
    }
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    words += ["--assume-engaged"] * spec.assume_engaged + ["--same-model"] * spec.same_model
    words += [f"--engine-arg={public_words(word)}" for word in spec.engine_arguments]
    return (*words, *(word for arm in spec.arms for word in ("--arm", public_words(arm))))
