"""From scored positions to estimates: one set of document resamples a lane, shared by the candidate and every floor.

Documents are the clusters and categories the strata; the same resample is applied to all arms, so each difference is
paired. Excess is the candidate's statistic minus the largest of the floors' same statistic, inside each resample.
Intervals are two-sided at 90 %: the gate's one-sided 5 % reads one end.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvgate.core.engine import ArmId, Pass
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.metric import MetricId, metric_id
from kvgate.core.observation import FULL_VOCABULARY, PairedRecords, PositionBlock, Records
from kvgate.core.suite import Summary
from kvgate.stats.bootstrap import excess_interval, percentile_interval, weighted_mean, weighted_quantile
from kvgate.stats.cluster import cluster_counts
from kvgate.stats.divergence import perplexity, perplexity_ratio

if TYPE_CHECKING:
    from kvgate.core.observation import Positions

LEVEL = 0.90
RESAMPLES = 2000
#: A flip matters where the base was not torn between two tokens.
CONFIDENT_MARGIN = 0.1
#: Position buckets are powers of two; everything before this is one bucket.
FIRST_BUCKET_TOKENS = 64

Array = NDArray[Any]
#: The case and repeat that a run of positions belongs to.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Statistic:
    """One number of an arm against the base: the mean, or the q-quantile, of a column over some positions.

    Attributes:
        of: rows -> one value a position. where: rows -> which of them count.
        q: quantile; None is the mean. after: what is done to the mean (exp, for perplexity).
        excess: whether its excess over the floor is a sensible number. labelled: also by category and position.
        least: positions under which it is unknown.
    """

    name: str
    unit: str
    of: Callable[[Positions], Array]
    where: Callable[[Positions], Array] | None = None
    q: float | None = None
    after: Callable[[Any], Array] = np.asarray
    excess: bool = False
    labelled: bool = False
    least: int = 1


def _kl(rows: Positions) -> Array:
    return np.asarray(rows["kl"], dtype=np.float64)


def _flipped(rows: Positions) -> Array:
    return np.asarray(rows["top1"] != rows["base_top1"], dtype=np.float64)


def _confident(rows: Positions) -> Array:
    return np.asarray(rows["base_margin"] > CONFIDENT_MARGIN)


def _lp(column: str) -> Callable[[Positions], Array]:
    return lambda rows: np.asarray(rows[column], dtype=np.float64)


def _lp_loss(rows: Positions) -> Array:
    return np.asarray(np.subtract(rows["base_lp"], rows["lp"], dtype=np.float64))


#: A quantile needs one observation beyond it (1 / (1 - q) of them); p99.9 needs ten, as it stands alone in the tail.
STATISTICS: tuple[Statistic, ...] = (
    Statistic("kl_mean", "nat", _kl, excess=True, labelled=True),
    Statistic("kl_median", "nat", _kl, q=0.5, excess=True),
    Statistic("kl_p90", "nat", _kl, q=0.9, excess=True, least=10),
    Statistic("kl_p95", "nat", _kl, q=0.95, excess=True, least=20),
    Statistic("kl_p99", "nat", _kl, q=0.99, excess=True, labelled=True, least=100),
    Statistic("kl_p999", "nat", _kl, q=0.999, excess=True, least=10_000),
    Statistic("top1_flip_rate", "1", _flipped, excess=True),
    Statistic("top1_flip_rate_confident", "1", _flipped, where=_confident, excess=True),
    Statistic("ppl_base", "1", _lp("base_lp"), after=perplexity),
    Statistic("ppl", "1", _lp("lp"), after=perplexity),
    Statistic("ppl_ratio", "1", _lp_loss, after=perplexity_ratio),
)


@dataclass(frozen=True, slots=True)
class LanePositions:
    """Positions that all arms have in one lane, in one order.

    Attributes:
        arms: [n] rows per arm. cluster_of, at: [n] document index, index in the text of the scored token.
        documents, strata: per document; categories: the same, before single ones were put together.
        counts: [resamples, documents].
    """

    lane: Pass
    arms: Mapping[ArmId, Positions]
    cluster_of: Array
    at: Array
    documents: tuple[str, ...]
    categories: tuple[str, ...]
    strata: tuple[str, ...]
    counts: Array

    @property
    def n(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class Measured:
    """A statistic of one arm: the data's value, each resample's, and what they rest on."""

    point: float
    samples: Array
    n: int
    clusters: int
    strata: int


@dataclass(slots=True)
class _Report:
    """A Summary in the making."""

    metrics: dict[MetricId, Measure] = field(default_factory=dict)
    excess: dict[MetricId, Estimate] = field(default_factory=dict)
    floor: dict[ArmId, dict[MetricId, Measure]] = field(default_factory=dict)
    untested: list[str] = field(default_factory=list)
    blind_spots: list[str] = field(default_factory=list)
    statistics: Sequence[Statistic] = STATISTICS
    prefix: str = ""


def summarise(
    paired: PairedRecords,
    *,
    statistics: Sequence[Statistic] = STATISTICS,
    estimator: str = FULL_VOCABULARY,
    prefix: str = "",
) -> Summary:
    """All metrics of one candidate, of each floor arm, and the excess.

    Args:
        estimator: how the positions were compared; others are refused. prefix: put before the names of the lanes, so
            that numbers of two estimators never share a name.

    Raises:
        ValueError: positions of another estimator.
    """
    records, candidate = paired.records, paired.candidate
    if any(b.estimator != estimator for b in records.positions):
        raise ValueError(f"positions of another estimator than {estimator!r} cannot be mixed with it")
    report = _Report(statistics=statistics, prefix=prefix)
    for case in records.cases.values():
        report.untested += [f"not run: {reason}" for reason in case.body.get("skipped", ())]
    floors = [f for f in records.floors if f != candidate]
    for lane in (Pass.PREFILL, Pass.DECODE):
        planned = sum(1 for c in records.cases.values() if c.body[lane.value])
        if not planned:
            report.untested.append(f"{lane}: no document has this lane")
            continue
        data = lane_positions(records, lane, candidate, floors, report.untested)
        if data is None:
            report.untested.append(f"{lane}: no position was scored for {candidate}")
            continue
        _lane(report, data, candidate)
    return Summary(report.metrics, report.excess, report.floor, tuple(report.untested), tuple(report.blind_spots))


def never_differs(records: Records, arm: ArmId) -> bool:
    """Whether an arm has positions and KL is exactly 0 at every one: the same bits as the base.

    For a codec that is lossy against the base's this means that it did not engage. An arm without positions says
    nothing, so False.
    """
    mine = [b for b in records.positions if b.arm == arm and len(b.data)]
    return bool(mine) and all(not b.data["kl"].any() for b in mine)


def lane_positions(
    records: Records, lane: Pass, candidate: ArmId, floors: Sequence[ArmId], notes: list[str]
) -> LanePositions | None:
    """Gather one lane; documents that an arm lacks are left out for all arms, and noted. None: nothing is left."""
    by_arm = {arm: _by_case(records, lane, arm) for arm in (candidate, *floors)}
    for arm in floors:
        if not by_arm[arm]:
            notes.append(f"{lane}: floor arm {arm} has no positions")
            del by_arm[arm]
    keys = [
        k for k in by_arm[candidate] if all(_same_positions(by_arm[candidate][k], p.get(k)) for p in by_arm.values())
    ]
    planned = sum(1 for c in records.cases.values() if c.body[lane.value])
    documents = {records.cases[case_id].cluster for case_id, _ in keys}
    if keys and len(documents) < planned:
        notes.append(f"{lane}: {planned - len(documents)} of {planned} documents are missing on some arm")
    if not keys:
        return None
    names = tuple(dict.fromkeys(records.cases[case_id].cluster for case_id, _ in keys))
    index = {name: i for i, name in enumerate(names)}
    category_of = {records.cases[case_id].cluster: records.cases[case_id].category for case_id, _ in keys}
    spans = [by_arm[candidate][k] for k in keys]
    categories = tuple(category_of[name] for name in names)
    drawn_in = strata(categories)
    return LanePositions(
        lane,
        {arm: np.concatenate([parts[k].data for k in keys]) for arm, parts in by_arm.items()},
        np.repeat([index[records.cases[k[0]].cluster] for k in keys], [len(s.data) for s in spans]),
        np.concatenate([np.arange(s.start, s.start + len(s.data)) for s in spans]),
        names,
        categories,
        drawn_in,
        cluster_counts(drawn_in, _rng(records, lane), RESAMPLES),
    )


def strata(categories: Sequence[str]) -> tuple[str, ...]:
    """The categories, with those of a single document put together.

    A stratum of one is drawn every time and would add nothing to the interval. A lone single joins the smallest other
    category.
    """
    sizes = Counter(categories)
    lonely = {c for c, n in sizes.items() if n == 1}
    if len(lonely) == 1 and len(sizes) > 1:
        lonely |= {min((c for c in sizes if c not in lonely), key=lambda c: (sizes[c], c))}
    return tuple("+".join(sorted(lonely)) if c in lonely else c for c in categories)


def _rng(records: Records, lane: Pass) -> np.random.Generator:
    seed = hashlib.sha256(f"{records.digest}/{lane.value}".encode()).digest()
    return np.random.default_rng(int.from_bytes(seed[:8], "little"))


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    data: Positions


def _same_positions(a: _Span, b: _Span | None) -> bool:
    return b is not None and a.start == b.start and len(a.data) == len(b.data)


def _by_case(records: Records, lane: Pass, arm: ArmId) -> dict[Key, _Span]:
    """Blocks of one arm and lane joined per case, in the order of the cases' documents."""
    blocks: dict[Key, list[PositionBlock]] = {}
    for b in records.positions:
        if b.arm != arm or b.lane != lane.value:
            continue
        blocks.setdefault((b.case_id, b.repeat), []).append(b)
    out = {}
    for key in sorted(blocks, key=lambda k: (records.cases[k[0]].cluster, k)):
        parts = sorted(blocks[key], key=lambda b: b.start)
        out[key] = _Span(parts[0].start, np.concatenate([b.data for b in parts]))
    return out


def _lane(report: _Report, data: LanePositions, candidate: ArmId) -> None:
    floors = [a for a in data.arms if a != candidate]
    for labels, rows in _groups(data):
        for stat in report.statistics:
            if labels and not stat.labelled:
                continue
            metric = metric_id(f"{report.prefix}{data.lane.value}.{stat.name}", **labels)
            measured = {arm: _measure(stat, data, arm, rows) for arm in data.arms}
            report.metrics[metric] = _estimate(stat, measured[candidate])
            for arm in floors:
                report.floor.setdefault(arm, {})[metric] = _estimate(stat, measured[arm])
            if stat.excess:
                report.excess[metric] = _excess(stat, measured[candidate], [measured[a] for a in floors])
    _maxima(report, data, candidate, floors)
    seen = f"{len(data.documents)} documents, {data.n} positions, none past token {int(data.at.max())}"
    report.blind_spots.append(f"{data.lane}: {seen}: longer contexts are unseen")


def _groups(data: LanePositions) -> list[tuple[dict[str, str], Array]]:
    """All positions, then those of each category and of each position bucket, as boolean masks."""
    everything = np.ones(data.n, dtype=bool)
    groups: list[tuple[dict[str, str], Array]] = [({}, everything)]
    category = np.asarray(data.categories, dtype=object)[data.cluster_of]
    groups += [({"category": c}, category == c) for c in sorted(set(data.categories)) if c]
    low = 1
    high = FIRST_BUCKET_TOKENS
    while low <= data.at.max():
        inside = (data.at >= low) & (data.at < high)
        if inside.any():
            groups.append(({"position": f"{low}-{high - 1}"}, inside))
        low, high = high, 2 * high
    return groups


def _measure(stat: Statistic, data: LanePositions, arm: ArmId, mask: Array) -> Measured:
    rows = data.arms[arm]
    if stat.where is not None:
        mask = mask & stat.where(rows)
    n = int(mask.sum())
    clusters = data.cluster_of[mask]
    documents = np.unique(clusters)
    rests_on = (n, len(documents), len({data.strata[d] for d in documents}))
    if n < stat.least:
        return Measured(np.nan, np.empty(0), *rests_on)
    values = stat.of(rows)[mask]
    if stat.q is None:
        point, samples = values.mean(), weighted_mean(values, clusters, data.counts)
    else:
        point, samples = np.quantile(values, stat.q), weighted_quantile(values, clusters, data.counts, stat.q)
    return Measured(float(stat.after(point)), stat.after(samples), *rests_on)


def _too_few(stat: Statistic, m: Measured) -> Estimate:
    why = f"{m.n} positions; {stat.name} needs at least {stat.least}"
    return Estimate.unknown(why, level=LEVEL, n=m.n, clusters=m.clusters, unit=stat.unit)


def _estimate(stat: Statistic, m: Measured) -> Estimate:
    if m.n < stat.least:
        return _too_few(stat, m)
    return percentile_interval(
        m.point,
        m.samples,
        level=LEVEL,
        n=m.n,
        clusters=m.clusters,
        unit=stat.unit,
        what=stat.name,
        strata=m.strata,
    )


def _excess(stat: Statistic, m: Measured, floors: Sequence[Measured]) -> Estimate:
    if m.n < stat.least:
        return _too_few(stat, m)
    return excess_interval(
        m.point,
        m.samples,
        [f.samples for f in floors],
        [f.point for f in floors],
        level=LEVEL,
        n=m.n,
        clusters=m.clusters,
        unit=stat.unit,
        what=stat.name,
        strata=m.strata,
    )


def _maxima(report: _Report, data: LanePositions, candidate: ArmId, floors: Sequence[ArmId]) -> None:
    """The largest KL, without an interval: no resample can hold a larger one than the data."""
    metric = metric_id(f"{report.prefix}{data.lane.value}.kl_max")
    top = {arm: float(rows["kl"].max()) for arm, rows in data.arms.items()}

    def bare(value: float) -> Estimate:
        why = "a maximum has no bootstrap interval: no resample holds a larger value than the data"
        return Estimate(value, None, None, LEVEL, data.n, len(data.documents), "nat", "largest position", why)

    report.metrics[metric] = bare(top[candidate])
    for arm in floors:
        report.floor.setdefault(arm, {})[metric] = bare(top[arm])
    if floors:
        report.excess[metric] = bare(top[candidate] - max(top[a] for a in floors))
