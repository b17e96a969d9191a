"""Metrics of the needle suite for one candidate. The haystack is the unit, and each holds one needle.

    needle.accuracy{bucket}       share of needles found; needle.base_accuracy{bucket}: the base's
    needle.accuracy_ratio{bucket} candidate / base, bootstrap over haystacks within each length
    needle.net_losses             exact McNemar, needles lost against needles gained
    needle.lost, needle.gained    needles

A length at which the base finds less than half of its needles cannot show a loss: it is left out and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.core.engine import ArmId
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.metric import MetricId, metric_id
from kvgate.core.observation import Case, PairedRecords, Records
from kvgate.core.suite import Summary
from kvgate.suites._needle.score import value_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVEL = 0.90
RESAMPLES = 2000
#: Below this the base is at its floor.
MIN_BASE_ACCURACY = 0.5


@dataclass(frozen=True, slots=True)
class _Scores:
    """Mean score per case of the base and one arm, on cases that both answered."""

    cases: Sequence[Case]
    base: Sequence[float]
    arm: Sequence[float]

    def only(self, buckets: Sequence[str]) -> _Scores:
        keep = [i for i, c in enumerate(self.cases) if c.bucket in buckets]
        return _Scores([self.cases[i] for i in keep], [self.base[i] for i in keep], [self.arm[i] for i in keep])


def summarise(paired: PairedRecords) -> Summary:
    """All metrics of one candidate against the base, and of every floor arm against the base."""
    records = paired.records
    buckets = sorted({c.bucket for c in records.cases.values()}, key=lambda b: (len(b), b))
    seen = _scores(records, paired.candidate)
    good = [b for b in buckets if _mean(seen.only([b]).base) >= MIN_BASE_ACCURACY]
    floors = {f: _scores(records, f).only(good) for f in records.floors if f != paired.candidate}
    used = seen.only(good)
    return Summary(
        metrics=_metrics(used, paired) | _base_metrics(seen, buckets),
        floor={f: _metrics(s, paired) for f, s in floors.items() if s.cases},
        untested=_untested(records, seen, buckets, good),
        blind_spots=_blind_spots(records, used),
    )


def _scores(records: Records, arm: ArmId) -> _Scores:
    cases, base, own = [], [], []
    for case in records.cases.values():
        b, a = _case_mean(records, records.base, case), _case_mean(records, arm, case)
        if b is not None and a is not None:
            cases.append(case)
            base.append(b)
            own.append(a)
    return _Scores(cases, base, own)


def _case_mean(records: Records, arm: ArmId, case: Case) -> float | None:
    values = [v for raw in records.raws.get((arm, case.id), ()) if (v := value_of(case, raw)) is not None]
    return sum(values) / len(values) if values else None


def _metrics(scores: _Scores, paired: PairedRecords) -> dict[MetricId, Measure]:
    from kvgate.stats.paired import mcnemar

    if not scores.cases:
        return {}
    lost = sum(b > a for b, a in zip(scores.base, scores.arm, strict=True))
    gained = sum(b < a for b, a in zip(scores.base, scores.arm, strict=True))
    n = len(scores.cases)
    metrics: dict[MetricId, Measure] = {
        "needle.net_losses": mcnemar(lost, gained, could_break=sum(b > 0 for b in scores.base)),
        "needle.lost": Estimate(lost, lost, lost, LEVEL, n, n, "needles", "count"),
        "needle.gained": Estimate(gained, gained, gained, LEVEL, n, n, "needles", "count"),
        "needle.accuracy": _accuracy(scores.arm),
        "needle.accuracy_ratio": _ratio(scores, paired),
    }
    for bucket in dict.fromkeys(c.bucket for c in scores.cases):
        part = scores.only([bucket])
        metrics[metric_id("needle.accuracy", bucket=bucket)] = _accuracy(part.arm)
        metrics[metric_id("needle.accuracy_ratio", bucket=bucket)] = _ratio(part, paired)
    return metrics


def _base_metrics(seen: _Scores, buckets: Sequence[str]) -> dict[MetricId, Measure]:
    """The base's accuracy on every length, also where it is too low to compare."""
    return {metric_id("needle.base_accuracy", bucket=b): _accuracy(seen.only([b]).base) for b in buckets}


def _accuracy(values: Sequence[float]) -> Estimate:
    from kvgate.stats.binomial import wilson

    return wilson(round(sum(values)), len(values), LEVEL)


def _ratio(scores: _Scores, paired: PairedRecords) -> Estimate:
    from kvgate.stats.paired import paired_ratio

    cluster_of, counts = _resamples(scores.cases, paired)
    return paired_ratio(_array(scores.base), _array(scores.arm), cluster_of, counts, level=LEVEL)


def _resamples(cases: Sequence[Case], paired: PairedRecords) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cluster index of each case, and how often each haystack is drawn within its length; the same for every arm."""
    import numpy as np

    from kvgate.stats.cluster import cluster_counts

    seed = int((paired.records.digest or "0")[:16], 16)
    counts = cluster_counts([c.bucket for c in cases], np.random.default_rng(seed), RESAMPLES)
    return np.arange(len(cases)), counts


def _array(values: Sequence[float]) -> NDArray[Any]:
    import numpy as np

    return np.asarray(values, dtype=np.float64)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _untested(records: Records, seen: _Scores, buckets: Sequence[str], good: Sequence[str]) -> list[str]:
    said = []
    silent = len(records.cases) - len(seen.cases)
    if silent:
        said.append(f"needle: {silent} of {len(records.cases)} needles have no answer on one side")
    for bucket in (b for b in buckets if b not in good):
        part = seen.only([bucket]).base
        said.append(
            f"needle: at {bucket} tokens the base finds {sum(part):g} of {len(part)} needles: too few to show a loss"
        )
    if not good:
        said.append("needle: the base is at its floor at every length, so this suite says nothing")
    return said


def _blind_spots(records: Records, used: _Scores) -> list[str]:
    from kvgate.stats.binomial import unseen_rate

    said = []
    haystacks = len(used.cases)
    if haystacks:
        rate = 100 * unseen_rate(haystacks)
        said.append(f"needle: {haystacks} haystacks: a loss on {rate:.0f} % of them would go unseen")
    if not all(c.body.get("exact", True) for c in records.cases.values()):
        said.append("needle: lengths are guesses, the server has no tokenizer")
    return said
