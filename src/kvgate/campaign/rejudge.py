"""A stored run again, without engine or model file: other policy, newer scorer, new report, or beside another run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvgate.campaign.arms import BASE, Role, choose_floors
from kvgate.campaign.check import Outcome, make_folder
from kvgate.campaign.confirm import keep_scores, scored_records
from kvgate.campaign.judgement import judged
from kvgate.campaign.measured import Measured, measured_of, place_of
from kvgate.core.deployment import Sameness
from kvgate.core.errors import UserError
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.verdict import Decision
from kvgate.gate.policy import Policy, load_policy
from kvgate.report.model import RunView
from kvgate.report.write import write_all
from kvgate.store.open import Store
from kvgate.store.rows import RunRow


def gate_run(store: Store, run: str, policy: Policy, out: Path | None = None) -> Outcome:
    """Judge a stored run by another policy; the verdict is added, the old one stays.

    Args:
        run: id, unique beginning, or "last". out: folder for the report; None puts it beside the run's own.

    Raises:
        UserError: no such run, one that cannot be judged again, or a folder that cannot be written.
    """
    row = store.find_run(run)
    measured = measured_of(store, row.run_id)
    _know_floors(measured, policy)
    folder = out or store.folder / "reports" / row.run_id / f"gate-{policy.digest()[:8]}"
    make_folder(folder)
    view = judged(measured, policy)
    return Outcome(view, write_all(view, folder))


def _know_floors(measured: Measured, policy: Policy) -> None:
    """A mistyped floor is refused, as a check would; one of the run's own may be named beside those of every check.

    Raises:
        UserError: no such floor arm.
    """
    own = {a.name for a in measured.of_role(Role.FLOOR)}
    choose_floors([name for name in policy.floor.arms if name not in own])


def _own_policy(row: RunRow, measured: Measured) -> str:
    """The policy that the newest leg of the check was given; an earlier kvgate kept only the first leg's."""
    return measured.facts.policy or str(row.manifest.get("spec", {}).get("policy", "default"))


def report_run(store: Store, run: str, *, outputs: bool, policy: str | None = None, out: Path | None = None) -> Outcome:
    """Write the report of a stored run again.

    Args:
        outputs: False leaves out all prompts and all model text. policy: None is the one that the check was given.

    Raises:
        UserError: no such run, one that cannot be judged again, a policy file that is no longer there, or a folder
            that cannot be written.
    """
    row = store.find_run(run)
    measured = measured_of(store, row.run_id)
    rules = load_policy(policy or _own_policy(row, measured))
    folder = out or store.folder / "reports" / row.run_id / ("again" if outputs else "no-outputs")
    make_folder(folder)
    view = judged(measured, rules)
    return Outcome(view, write_all(view, folder, outputs=outputs))


@dataclass(frozen=True, slots=True)
class Rescored:
    """One suite of a run. `version` is the scorer's; `before` are the versions that were there."""

    suite: str
    answers: int
    version: int
    before: tuple[int, ...]
    why_not: str = ""


def rescore(store: Store, run: str) -> tuple[str, tuple[Rescored, ...]]:
    """Score the stored raw outputs with this kvgate's scorers; appended under the scorer's version.

    A version that is already there is verified: every score must be equal, and nothing is written.

    Raises:
        StoreError: the same version gives another score than before.
    """
    row = store.find_run(run)
    measured = measured_of(store, row.run_id)
    found = []
    for name, suite in measured.suites.items():
        before = store.scorer_versions(row.run_id, name)
        if place_of(suite) == "panel":
            why = "its logits were compared as they came and are not kept: only a new check can score them again"
            found.append(Rescored(name, 0, suite.scorer_version, before, why))
            continue
        records = scored_records(measured, suite)
        keep_scores(measured, suite, records)
        answers = sum(len(raws) for raws in records.raws.values())
        found.append(Rescored(name, answers, suite.scorer_version, before))
    return row.run_id, tuple(found)


@dataclass(frozen=True, slots=True)
class MetricDelta:
    """One metric in two runs. `apart`: the two 90 % intervals do not touch; None where one has no interval."""

    candidate: str
    suite: str
    metric: str
    a: Measure | None
    b: Measure | None
    apart: bool | None


@dataclass(frozen=True)
class RunDelta:
    """Two runs side by side.

    Attributes:
        changed: (place, field, a, b) identity fields of the base arms that differ. unknown: fields one side lacks.
        questions: (suite, cases of a, of b, of both) of suites whose cases are not the same in both.
        only_a, only_b: candidates of one run alone.
        decisions: candidate -> (a, b). metrics: of the candidates of both.
    """

    a: RunView
    b: RunView
    changed: tuple[tuple[str, str, str, str], ...]
    unknown: tuple[tuple[str, str], ...]
    questions: tuple[tuple[str, int, int, int], ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    decisions: Mapping[str, tuple[Decision, Decision]]
    metrics: tuple[MetricDelta, ...]

    @property
    def same_deployment(self) -> bool:
        """Whether both bases were one deployment, as far as is known."""
        return not self.changed

    @property
    def like_for_like(self) -> bool:
        """Whether a difference in results could be the KV cache's alone: one deployment, asked the same."""
        return not self.changed and not self.questions


def compare_runs(store: Store, a: str, b: str, policy: str | None = None) -> RunDelta:
    """Two runs, both judged by one policy (the second's own, unless another is named).

    Raises:
        UserError: the same run twice, other models, or a run that cannot be judged again.
    """
    rows = store.find_run(a), store.find_run(b)
    if rows[0].run_id == rows[1].run_id:
        raise UserError(f"{a!r} and {b!r} are the same run", fix="name two runs of `kvgate runs`")
    measured = [measured_of(store, row.run_id) for row in rows]
    rule = load_policy(policy or _own_policy(rows[1], measured[1]))
    one, two = (judged(m, rule) for m in measured)
    if one.model.digest != two.model.digest:
        raise UserError(
            f"the runs are of other models ({one.model.name} and {two.model.name}): nothing to compare",
            fix="compare two runs of one model",
        )
    changed, unknown = _identity(one, two)
    both = [c for c in one.candidates if c in two.candidates]
    decided = [{v.candidate: v.decision for v in view.verdicts} for view in (one, two)]
    return RunDelta(
        a=one,
        b=two,
        changed=changed,
        unknown=unknown,
        questions=_questions(one, two),
        only_a=tuple(c for c in one.candidates if c not in both),
        only_b=tuple(c for c in two.candidates if c not in both),
        decisions={c: (decided[0][c], decided[1][c]) for c in both},
        metrics=tuple(delta for c in both for delta in _metrics(one, two, c)),
    )


def _identity(one: RunView, two: RunView) -> tuple[tuple[tuple[str, str, str, str], ...], tuple[tuple[str, str], ...]]:
    changed, unknown = [], []
    bases = one.arm(BASE), two.arm(BASE)
    places = sorted({p for base in bases if base is not None for p in base.deployments})
    for place in places:
        pair = [base.deployments.get(place) if base is not None else None for base in bases]
        if pair[0] is None or pair[1] is None:
            unknown.append((place, "not run on both sides"))
            continue
        for d in pair[0].delta(pair[1]):
            if d.status is Sameness.DIFFERS:
                changed.append((place, d.field, str(d.a), str(d.b)))
            elif (d.a is None) != (d.b is None):
                unknown.append((place, d.field))
    return tuple(changed), tuple(unknown)


def _questions(one: RunView, two: RunView) -> tuple[tuple[str, int, int, int], ...]:
    """A case's id is a digest of its content, so the same id is the same question."""
    found = []
    for suite in [*one.records, *(s for s in two.records if s not in one.records)]:
        a, b = (set(view.records[suite].cases) if suite in view.records else set[str]() for view in (one, two))
        if a != b:
            found.append((suite, len(a), len(b), len(a & b)))
    return tuple(found)


def _metrics(one: RunView, two: RunView, candidate: str) -> list[MetricDelta]:
    left, right = one.evidence[candidate].summaries, two.evidence[candidate].summaries
    found = []
    for suite in [*left, *(s for s in right if s not in left)]:
        sides = [side[suite].metrics if suite in side else {} for side in (left, right)]
        for metric in [*sides[0], *(m for m in sides[1] if m not in sides[0])]:
            a, b = sides[0].get(metric), sides[1].get(metric)
            found.append(MetricDelta(candidate, suite, metric, a, b, _apart(a, b)))
    return found


def _apart(a: Measure | None, b: Measure | None) -> bool | None:
    if not isinstance(a, Estimate) or not isinstance(b, Estimate):
        return None
    if a.lo is None or a.hi is None or b.lo is None or b.hi is None:
        return None
    return a.hi < b.lo or b.hi < a.lo
