"""From what was measured to verdicts and the report's view. Pure over the store's records; saves what it concludes."""

from __future__ import annotations

from kvgate.campaign.confirm import keep_scores, scored_records
from kvgate.campaign.evidence import caveats, gather
from kvgate.campaign.measured import ArmFacts, Measured
from kvgate.campaign.published import published
from kvgate.gate.policy import Policy
from kvgate.gate.verdict import judge
from kvgate.report.model import ArmView, RunView


def judged(run: Measured, policy: Policy) -> RunView:
    """Score, summarise and judge; scores, comparisons and verdicts are appended to the store.

    Raises:
        StoreError: a scorer gives another score than before under the same version.
    """
    records = {name: scored_records(run, suite) for name, suite in run.suites.items()}
    for name, suite in run.suites.items():
        keep_scores(run, suite, records[name])
    evidence = gather(run, records)
    verdicts = [judge(e, policy) for e in evidence.values()]
    for verdict in verdicts:
        run.store.save_verdict(run.run_id, verdict)
    row, facts = run.store.find_run(run.run_id), run.facts
    return RunView(
        run_id=run.run_id,
        key=row.key,
        created=row.created,
        duration_s=facts.duration_s,
        model=facts.model,
        engine=facts.engine,
        policy=policy.name,
        preset=facts.preset,
        seed=facts.seed,
        context_tokens=facts.context_tokens,
        arms=[_arm_view(run, a) for a in facts.arms],
        capacity=facts.capacity,
        evidence=evidence,
        verdicts=verdicts,
        records=records,
        manifest=row.manifest,
        caveats=caveats(run),
        published=published(run),
    )


def _arm_view(run: Measured, arm: ArmFacts) -> ArmView:
    rows = run.rows_of(arm.name)
    return ArmView(
        name=arm.name,
        role=arm.role.value,
        recipe=arm.recipe,
        effective=arm.effective,
        perturb=arm.perturb,
        deployments={p: r.deployment for p, r in rows.items() if r.deployment is not None},
        engaged={p: r.engaged for p, r in rows.items() if r.engaged is not None},
    )
