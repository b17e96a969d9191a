"""Metrics of the golden suite for one candidate. Prompts are the units; one prompt is one cluster.

golden.net_breaks         exact McNemar, confirmed breaks against repairs
golden.confirmed_breaks   prompts, also by class; golden.critical_breaks: those tagged critical
golden.break_rate         confirmed breaks among prompts that could break (Wilson)
golden.unconfirmed_breaks broke once and not again, or on a floor arm too; golden.repairs
golden.undecided_breaks   broke, and the reruns or the floor arms that would decide are missing
golden.changed_texts      share of prompts whose text or calls differ from the base's (Wilson)
golden.text_similarity    mean word similarity (difflib), bootstrap over prompts
golden.drift              share with soft drift: numbers, argument values, length
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.core.engine import ArmId
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.metric import MetricId, metric_id
from kvgate.core.observation import PairedRecords, Records
from kvgate.core.suite import Summary
from kvgate.suites._breaks.answer import Answer
from kvgate.suites._breaks.expect import Expect
from kvgate.suites._breaks.inspect import inspect
from kvgate.suites._breaks.relative import Difference, difference
from kvgate.suites._breaks.taxonomy import public_class
from kvgate.suites._golden.confirm import Outcome, answers, outcomes

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVEL = 0.90
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class _Texts:
    """First answers of one arm against the base's first, on prompts that all arms have; one entry a prompt."""

    changed: Sequence[float]
    similarity: Sequence[float]
    drifted: Sequence[float]


def summarise(paired: PairedRecords) -> Summary:
    """All metrics of one candidate, its floor arms, what was not tested and what these sizes cannot see."""
    records, candidate = paired.records, paired.candidate
    found = outcomes(records, candidate)
    floors = [f for f in records.floors if f != candidate and any((f, c) in records.raws for c in records.cases)]
    shared = _shared_cases(records, [candidate, *floors])
    texts = {arm: _texts(records, arm, shared) for arm in (candidate, *floors)}
    broken_base = _broken_at_base(records, found)
    testable = [o for o in found if o.case.id not in broken_base or o.pair.break_class]
    metrics: dict[MetricId, Measure] = _break_metrics(found, testable)
    metrics |= _text_metrics(texts[candidate], paired)
    return Summary(
        metrics=metrics,
        excess=_excess(texts, candidate, floors, paired),
        floor={f: _floor_metrics(records, f, texts[f], paired) for f in floors},
        untested=_untested(records, found, broken_base),
        blind_spots=_blind_spots(found, len(testable)),
    )


def _break_metrics(found: Sequence[Outcome], testable: Sequence[Outcome]) -> dict[MetricId, Measure]:
    from kvgate.stats.binomial import wilson
    from kvgate.stats.paired import mcnemar

    confirmed = [o for o in found if o.confirmed]
    critical = [o for o in found if "critical" in o.case.body.get("tags", ())]
    repairs = sum(o.repair for o in found)
    n = len(testable)
    metrics: dict[MetricId, Measure] = {
        "golden.net_breaks": mcnemar(len(confirmed), repairs, could_break=n),
        "golden.confirmed_breaks": _count(len(confirmed), n),
        "golden.critical_breaks": _count(sum(o.confirmed for o in critical), len(critical)),
        "golden.unconfirmed_breaks": _count(sum(bool(o.pair.break_class) and not o.confirmed for o in found), n),
        "golden.undecided_breaks": _count(sum(o.undecided for o in found), n),
        "golden.repairs": _count(repairs, len(found)),
        "golden.break_rate": wilson(len(confirmed), n, LEVEL),
    }
    for cls, count in sorted(Counter(o.pair.break_class for o in confirmed).items()):
        metrics[metric_id("golden.confirmed_breaks", **{"class": cls})] = _count(count, n)
    return metrics


def _count(value: int, n: int) -> Estimate:
    """A count of prompts as it was seen: it describes these prompts and claims nothing about others."""
    return Estimate(float(value), float(value), float(value), LEVEL, n, n, "prompts", "count")


def _text_metrics(texts: _Texts, paired: PairedRecords) -> dict[MetricId, Measure]:
    from kvgate.stats.binomial import wilson

    n = len(texts.changed)
    return {
        "golden.changed_texts": wilson(round(sum(texts.changed)), n, LEVEL),
        "golden.drift": wilson(round(sum(texts.drifted)), n, LEVEL),
        "golden.text_similarity": _mean(texts.similarity, paired),
    }


def _mean(values: Sequence[float], paired: PairedRecords) -> Estimate:
    from kvgate.stats.bootstrap import percentile_interval

    if not values:
        return Estimate.unknown("no prompt has an answer on both arms", level=LEVEL, unit="1")
    n, point = len(values), sum(values) / len(values)
    samples = _resampled(values, paired)
    return percentile_interval(point, samples, level=LEVEL, n=n, clusters=n, unit="1", what="mean word similarity")


def _resampled(values: Sequence[float], paired: PairedRecords) -> NDArray[Any]:
    """Means in resamples of prompts; the same resamples for every arm of one candidate."""
    import numpy as np

    from kvgate.stats.bootstrap import weighted_mean
    from kvgate.stats.cluster import cluster_counts

    seed = int((paired.records.digest or "0")[:16], 16)
    counts = cluster_counts([""] * len(values), np.random.default_rng(seed), RESAMPLES)
    return weighted_mean(np.asarray(values), np.arange(len(values)), counts)


def _excess(
    texts: Mapping[ArmId, _Texts], candidate: ArmId, floors: Sequence[ArmId], paired: PairedRecords
) -> dict[MetricId, Estimate]:
    """Share of changed texts over the largest of the floors' share: what is not the base's own noise."""
    from kvgate.stats.bootstrap import excess_interval

    own = texts[candidate].changed
    if not own:
        return {}
    floor_values = [texts[f].changed for f in floors]
    n = len(own)
    return {
        "golden.changed_texts": excess_interval(
            sum(own) / n,
            _resampled(own, paired),
            [_resampled(v, paired) for v in floor_values],
            [sum(v) / n for v in floor_values],
            level=LEVEL,
            n=n,
            clusters=n,
            unit="1",
            what="share of changed texts,",
        )
    }


def _floor_metrics(records: Records, floor: ArmId, texts: _Texts, paired: PairedRecords) -> dict[MetricId, Measure]:
    """The same numbers for the base against itself; its breaks are single runs, without confirmation."""
    from kvgate.stats.binomial import wilson
    from kvgate.stats.paired import mcnemar

    found = outcomes(records, floor)
    breaks, repairs = sum(bool(o.pair.break_class) for o in found), sum(o.pair.repaired for o in found)
    return {
        "golden.net_breaks": mcnemar(breaks, repairs),
        "golden.confirmed_breaks": _count(breaks, len(found)),
        "golden.break_rate": wilson(breaks, len(found), LEVEL),
        **_text_metrics(texts, paired),
    }


def _shared_cases(records: Records, arms: Sequence[ArmId]) -> list[str]:
    return [
        case_id
        for case_id in records.cases
        if all(answers(records.raws.get((arm, case_id), ())) for arm in (records.base, *arms))
    ]


def _texts(records: Records, arm: ArmId, case_ids: Sequence[str]) -> _Texts:
    seen = [_difference(records, arm, c) for c in case_ids]
    return _Texts([float(d.changed) for d in seen], [d.similarity for d in seen], [float(bool(d.drift)) for d in seen])


def _difference(records: Records, arm: ArmId, case_id: str) -> Difference:
    base, own = _first(records, records.base, case_id), _first(records, arm, case_id)
    return difference(base, own, Expect.from_body(records.cases[case_id].body))


def _first(records: Records, arm: ArmId, case_id: str) -> Answer:
    return answers(records.raws[arm, case_id])[0]


def _broken_at_base(records: Records, found: Sequence[Outcome]) -> dict[str, str]:
    """case id -> first class, where the base's own first answer is already broken."""
    broken = {}
    for outcome in found:
        seen = inspect(_first(records, records.base, outcome.case.id), Expect.from_body(outcome.case.body))
        if not seen.clean:
            broken[outcome.case.id] = public_class(seen.flags[0].cls)
    return broken


def _untested(records: Records, found: Sequence[Outcome], broken_base: Mapping[str, str]) -> list[str]:
    said = [f"golden: not run: {reason}" for case in records.cases.values() for reason in case.body.get("skipped", ())]
    silent = len(records.cases) - len(found)
    if silent:
        said.append(f"golden: {silent} of {len(records.cases)} prompts have no answer on one side")
    if broken_base:
        classes = ", ".join(f"{n} {cls}" for cls, n in Counter(broken_base.values()).most_common())
        said.append(f"golden: {len(broken_base)} of {len(found)} prompts are broken on the base itself ({classes})")
    open_ends = sum(o.undecided for o in found)
    if open_ends:
        said.append(f"golden: {_prompts(open_ends)} broke and could not be rerun often enough to confirm it")
    noisy = [o for o in found if o.noisy]
    if noisy:
        said.append(f"golden: {_prompts(len(noisy))} broke on the candidate and on a floor arm too: not counted")
    return said


def _blind_spots(found: Sequence[Outcome], n: int) -> list[str]:
    from kvgate.stats.binomial import unseen_rate

    if not n:
        return ["golden: no prompt could show a break"]
    said = [f"golden: {_prompts(n)}: a {_percent(unseen_rate(n))} break rate would go unseen"]
    cut = sum(o.base_cut for o in found)
    if cut:
        said.append(
            f"golden: on {cut} of {_prompts(len(found))} the base ran into the token limit: the end is not seen"
        )
    return said


def _prompts(n: int) -> str:
    return f"{n} prompt{'' if n == 1 else 's'}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.0f} %" if rate >= 0.01 else f"{100 * rate:.1f} %"
