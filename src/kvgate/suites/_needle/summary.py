"""Metrics of the needle suite for one candidate. The haystack is the unit: one needle asked at several lengths.

    needle.accuracy{bucket}       share of needles found; needle.base_accuracy{bucket}: the base's
    needle.accuracy_ratio{bucket} candidate / base, cluster bootstrap
    needle.net_losses             exact McNemar on haystacks: more needles lost than gained, or the reverse
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
_ALPHA = 0.05


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
    net: dict[str, float] = {}
    for case, base, arm in zip(scores.cases, scores.base, scores.arm, strict=True):
        net[case.cluster] = net.get(case.cluster, 0.0) + base - arm
    lost = sum(max(0.0, b - a) for b, a in zip(scores.base, scores.arm, strict=True))
    gained = sum(max(0.0, a - b) for b, a in zip(scores.base, scores.arm, strict=True))
    n = len(scores.cases)
    metrics: dict[MetricId, Measure] = {
        "needle.net_losses": mcnemar(sum(v > 0 for v in net.values()), sum(v < 0 for v in net.values())),
        "needle.lost": Estimate(lost, lost, lost, LEVEL, n, len(net), "needles", "count"),
        "needle.gained": Estimate(gained, gained, gained, LEVEL, n, len(net), "needles", "count"),
        "needle.accuracy": _accuracy(scores.arm, scores.cases, paired),
        "needle.accuracy_ratio": _ratio(scores, paired),
    }
    for bucket in dict.fromkeys(c.bucket for c in scores.cases):
        part = scores.only([bucket])
        metrics[metric_id("needle.accuracy", bucket=bucket)] = _accuracy(part.arm, part.cases, paired)
        metrics[metric_id("needle.accuracy_ratio", bucket=bucket)] = _ratio(part, paired)
    return metrics


def _base_metrics(seen: _Scores, buckets: Sequence[str]) -> dict[MetricId, Measure]:
    """The base's accuracy on every length, also where it is too low to compare."""
    from kvgate.stats.binomial import wilson

    metrics: dict[MetricId, Measure] = {}
    for bucket in buckets:
        part = seen.only([bucket]).base
        metrics[metric_id("needle.base_accuracy", bucket=bucket)] = wilson(round(sum(part)), len(part), LEVEL)
    return metrics


def _accuracy(values: Sequence[float], cases: Sequence[Case], paired: PairedRecords) -> Estimate:
    """Wilson where every needle has its own haystack; else haystacks are resampled."""
    import numpy as np

    from kvgate.stats.binomial import unseen_rate, wilson
    from kvgate.stats.bootstrap import percentile_interval, weighted_mean

    n, point = len(values), sum(values) / len(values)
    clusters = len({c.cluster for c in cases})
    if clusters == n:
        return wilson(round(sum(values)), n, LEVEL)
    cluster_of, counts = _resamples(cases, paired)
    samples = weighted_mean(_array(values), cluster_of, counts)
    e = percentile_interval(point, samples, level=LEVEL, n=n, clusters=clusters, unit="1", what="accuracy")
    if e.lo is None or np.ptp(samples) > 1e-12:
        return e
    # All haystacks alike: the interval has no width, which says nothing about haystacks that were not asked.
    r = unseen_rate(clusters, 1 - (1 - LEVEL) / 2)
    how = f"exact binomial bound on unseen haystacks, {clusters} all alike (rule of three)"
    return Estimate(point, (1 - r) * point, (1 - r) * point + r, LEVEL, n, clusters, "1", how)


def _ratio(scores: _Scores, paired: PairedRecords) -> Estimate:
    from kvgate.stats.paired import paired_ratio

    cluster_of, counts = _resamples(scores.cases, paired)
    return paired_ratio(_array(scores.base), _array(scores.arm), cluster_of, counts, level=LEVEL)


def _resamples(cases: Sequence[Case], paired: PairedRecords) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cluster index of each case, and how often each haystack is drawn; the same draws for every arm."""
    import numpy as np

    from kvgate.stats.cluster import cluster_counts

    names = {name: i for i, name in enumerate(dict.fromkeys(c.cluster for c in cases))}
    seed = int((paired.records.digest or "0")[:16], 16)
    counts = cluster_counts([""] * len(names), np.random.default_rng(seed), RESAMPLES)
    return np.array([names[c.cluster] for c in cases]), counts


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
    haystacks = len({c.cluster for c in used.cases})
    if haystacks:
        rate = 100 * unseen_rate(haystacks)
        said.append(f"needle: {haystacks} haystacks: a loss on {rate:.0f} % of them would go unseen")
        if 0.5**haystacks > _ALPHA:
            said.append(f"needle: {haystacks} haystacks cannot reach p = {_ALPHA}, even if all needles are lost")
    if not all(c.body.get("exact", True) for c in records.cases.values()):
        said.append("needle: lengths are guesses, the server has no tokenizer")
    return said
