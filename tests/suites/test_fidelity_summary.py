"""What the fidelity suite makes of positions: held against brute force, planted defects and A/A pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fidelity_lab import CLEAN, NONE, PLANTED, made_cases, run
from scipy.stats import binom

from kvgate.core.engine import Pass
from kvgate.core.estimate import Estimate
from kvgate.core.metric import parse_metric
from kvgate.core.observation import POSITION_FIELDS, PositionBlock, Records
from kvgate.core.suite import Summary
from kvgate.stats.bootstrap import excess_interval, widened_tail
from kvgate.suites import _fidelity_summary as summary
from kvgate.suites.fidelity import SUITE, never_differs


def concat(records: Records, arm: str, lane: str = "prefill") -> np.ndarray:
    return np.concatenate([b.data for b in records.positions if b.arm == arm and b.lane == lane])


@pytest.fixture(scope="module", autouse=True)
def fewer_resamples() -> Iterator[None]:
    """250 instead of 2,000: nothing here reads an interval finer than its 4 % quantile, and tests take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "RESAMPLES", 250)
        yield


@pytest.fixture(scope="module")
def records() -> Records:
    """Twelve documents of 96 prefill and 20 decode positions; one exact floor and one that is not zero."""
    script = {"base": NONE, "exact": NONE, "ubatch": CLEAN, "cand": PLANTED}
    cases = made_cases(11, prefill=96, decode=20)
    return run(script, cases, seed=11, floors=("exact", "ubatch"))


@pytest.fixture(scope="module")
def result(records: Records) -> Summary:
    return SUITE.summarise(records.pair_with("cand"))


@pytest.mark.parametrize("lane", ["prefill", "decode"])
@pytest.mark.parametrize("arm", ["cand", "ubatch", "exact"])
def test_values_are_their_definitions(records: Records, result: Summary, lane: str, arm: str) -> None:
    """Each statistic equals the plain numpy one over all positions of the lane, for candidate and floors."""
    rows = concat(records, arm, lane)
    got = result.metrics if arm == "cand" else result.floor[arm]
    kl, flips = rows["kl"].astype(np.float64), rows["top1"] != rows["base_top1"]
    sure = rows["base_margin"] > 0.1
    lp, base_lp = rows["lp"].astype(np.float64), rows["base_lp"].astype(np.float64)
    want = {
        "kl_mean": kl.mean(),
        "kl_median": np.median(kl),
        "kl_p90": np.quantile(kl, 0.9),
        "kl_p95": np.quantile(kl, 0.95),
        "kl_p99": np.quantile(kl, 0.99),
        "kl_max": kl.max(),
        "top1_flip_rate": flips.mean(),
        "top1_flip_rate_confident": flips[sure].mean(),
        "ppl_base": np.exp(-base_lp.mean()),
        "ppl": np.exp(-lp.mean()),
        "ppl_ratio": np.exp(-lp.mean()) / np.exp(-base_lp.mean()),
    }
    assert 0 < sure.sum() < len(rows)
    for name, value in want.items():
        assert got[f"{lane}.{name}"].value == pytest.approx(value, rel=1e-12), name
    assert got[f"{lane}.kl_mean"].n == len(rows)
    assert got[f"{lane}.kl_mean"].clusters == 12


def brute_force(
    records: Records, statistic: Callable[[np.ndarray], float], arms: Sequence[str]
) -> tuple[dict[str, np.ndarray], summary.LanePositions]:
    """The statistic of every resample, each written out as the positions of its documents, repeated."""
    data = summary.lane_positions(records, Pass.PREFILL, "cand", ("exact", "ubatch"), [])
    assert data is not None
    samples = {}
    for arm in arms:
        rows = data.arms[arm]
        samples[arm] = np.array([statistic(np.repeat(rows, c[data.cluster_of])) for c in data.counts])
    return samples, data


@pytest.mark.parametrize(
    ("name", "statistic"),
    [
        ("kl_mean", lambda r: r["kl"].mean(dtype=np.float64)),
        ("kl_p95", lambda r: np.quantile(r["kl"].astype(np.float64), 0.95)),
        ("top1_flip_rate_confident", lambda r: (r["top1"] != r["base_top1"])[r["base_margin"] > 0.1].mean()),
        ("ppl_ratio", lambda r: np.exp((r["base_lp"].astype(float) - r["lp"].astype(float)).mean())),
    ],
)
def test_intervals_and_excess_are_those_of_joint_resamples(
    records: Records, monkeypatch: pytest.MonkeyPatch, name: str, statistic: Callable[[np.ndarray], float]
) -> None:
    """Interval and excess interval equal the quantiles over resamples that all arms share, written out one by one."""
    monkeypatch.setattr(summary, "RESAMPLES", 40)
    result = SUITE.summarise(records.pair_with("cand"))
    samples, data = brute_force(records, statistic, ("cand", "exact", "ubatch"))
    tail = widened_tail(0.90, len(data.documents) - len(set(data.strata)))
    got = result.metrics[f"prefill.{name}"]
    assert (got.lo, got.hi) == pytest.approx(tuple(np.quantile(samples["cand"], [tail, 1 - tail])), rel=1e-9)
    if name != "ppl_ratio":
        over = samples["cand"] - np.maximum(samples["exact"], samples["ubatch"])
        excess = result.excess[f"prefill.{name}"]
        assert (excess.lo, excess.hi) == pytest.approx(tuple(np.quantile(over, [tail, 1 - tail])), rel=1e-9)
        floor = result.floor["ubatch"][f"prefill.{name}"].value
        assert excess.value == pytest.approx(got.value - floor, rel=1e-12)


def assert_floor_is_taken_off(records: Records) -> None:
    """A candidate that is the floor arm itself has an excess of exactly 0, and the floor is not 0."""
    blocks = [replace(b, arm="twin") for b in records.positions if b.arm == "ubatch"]
    twin = replace(records, positions=records.positions + tuple(blocks), candidates=("twin",))
    result = SUITE.summarise(twin.pair_with("twin"))
    floor = result.floor["ubatch"]["prefill.kl_mean"]
    assert floor.value is not None and floor.value > 1e-4
    assert result.floor["exact"]["prefill.kl_mean"].value == 0
    assert result.metrics["prefill.kl_mean"].value == floor.value
    for metric, e in result.excess.items():
        if e.lo is not None:
            assert (e.value, e.lo, e.hi) == (0, 0, 0), metric
    assert result.excess["prefill.kl_mean"].lo is not None


def test_excess_over_a_floor_that_is_not_zero(records: Records) -> None:
    """The larger of two floor arms is subtracted inside each resample."""
    assert_floor_is_taken_off(records)


def floor_of_zero(point: float, arm: Any, floors: Sequence[Any], points: Sequence[float], **rest: Any) -> Estimate:
    return excess_interval(point, arm, [0 * f for f in floors], [0.0 for _ in points], **rest)


def first_floor_only(point: float, arm: Any, floors: Sequence[Any], points: Sequence[float], **rest: Any) -> Estimate:
    return excess_interval(point, arm, floors[:1], points[:1], **rest)


def unpaired_floor(point: float, arm: Any, floors: Sequence[Any], points: Sequence[float], **rest: Any) -> Estimate:
    return excess_interval(point, arm, [f[::-1] for f in floors], points, **rest)


@pytest.mark.parametrize("mutant", [floor_of_zero, first_floor_only, unpaired_floor])
def test_a_wrong_floor_is_noticed(
    records: Records, monkeypatch: pytest.MonkeyPatch, mutant: Callable[..., Estimate]
) -> None:
    """A floor always 0, only the first floor arm, or a floor resampled apart fail the check above."""
    monkeypatch.setattr(summary, "excess_interval", mutant)
    with pytest.raises(AssertionError):
        assert_floor_is_taken_off(records)


def test_labels_split_by_category_and_position(records: Records, result: Summary) -> None:
    """Each category and each power-of-two bucket of the text has its own mean, over just its positions."""
    labels = {m: parse_metric(m) for m in result.metrics}
    means = {m: p.labels for m, p in labels.items() if p.name == "prefill.kl_mean" and p.labels}
    assert list(means.values()) == [{"category": f"c{i}"} for i in range(4)] + [
        {"position": "1-63"},
        {"position": "64-127"},
    ]
    at = np.concatenate([np.arange(b.start, b.start + len(b.data)) for b in records.positions if b.arm == "cand"])
    kl = np.concatenate([b.data["kl"] for b in records.positions if b.arm == "cand"]).astype(np.float64)
    prefill = np.concatenate([np.full(len(b.data), b.lane == "prefill") for b in records.positions if b.arm == "cand"])
    late = result.metrics["prefill.kl_mean{position=64-127}"]
    assert late.value == pytest.approx(kl[prefill & (at >= 64)].mean(), rel=1e-12)
    assert late.n == 12 * 33
    of_c1 = [b.data["kl"] for b in records.positions if b.arm == "cand" and b.lane == "prefill"]
    category = result.metrics["prefill.kl_mean{category=c1}"]
    assert category.value == pytest.approx(np.concatenate(of_c1[1::4]).astype(np.float64).mean(), rel=1e-12)
    assert (category.clusters, category.lo, category.hi) == (3, None, None)
    assert "8" in category.why
    assert set(result.excess) < set(result.metrics)
    assert {parse_metric(m).name.split(".")[1][:3] for m in result.excess} == {"kl_", "top"}


def test_quantiles_without_the_positions_for_them_are_unknown(result: Summary) -> None:
    """p99.9 is unknown under 10,000 positions, p99 of a small group too, and each says why; max has no interval."""
    p999 = result.metrics["prefill.kl_p999"]
    assert (p999.value, p999.why) == (None, "1152 positions; kl_p999 needs at least 10000")
    assert result.excess["prefill.kl_p999"].value is None
    assert result.metrics["decode.kl_p99{category=c0}"].value is None
    top = result.metrics["prefill.kl_max"]
    assert top.value is not None and (top.lo, top.hi) == (None, None) and "maximum" in top.why


def test_p999_with_enough_positions() -> None:
    """At 10,000 positions p99.9 is a number with an interval."""
    rng = np.random.default_rng(0)
    cases = made_cases(1, documents=10)
    cases = [replace(c, body={**c.body, "prefill": 1000}) for c in cases]
    blocks = [block(c.id, "cand", rng.exponential(0.01, 1000)) for c in cases]
    records = Records("fidelity", "base", (), ("cand",), {c.id: c for c in cases}, positions=tuple(blocks), digest="d")
    p999 = SUITE.summarise(records.pair_with("cand")).metrics["prefill.kl_p999"]
    want = np.quantile(np.concatenate([b.data["kl"] for b in blocks]).astype(np.float64), 0.999)
    assert p999.value == pytest.approx(want, rel=1e-12)
    assert p999.lo is not None and p999.lo < want < p999.hi


def block(case_id: str, arm: str, kl: np.ndarray, lane: str = "prefill", estimator: str = "full") -> PositionBlock:
    data = np.zeros(len(kl), dtype=POSITION_FIELDS)
    data["kl"] = kl
    return PositionBlock(case_id, 0, lane, arm, 1, estimator, data)


def test_no_floor_is_not_a_floor_of_zero(records: Records) -> None:
    """Without a floor arm the excess is unknown, with the reason."""
    alone = replace(records, floors=())
    excess = SUITE.summarise(alone.pair_with("cand")).excess["prefill.kl_mean"]
    assert excess.value is None and "no floor arm" in excess.why


def test_under_eight_documents_the_interval_is_unbounded() -> None:
    """Seven documents give a value and no interval, so that no rule can pass on them; eight give one."""
    script = {"base": NONE, "floor": CLEAN, "cand": PLANTED}
    for documents, bounded in ((7, False), (8, True)):
        records = run(script, made_cases(2, documents=documents), seed=2)
        excess = SUITE.summarise(records.pair_with("cand")).excess["prefill.kl_mean"]
        assert excess.value is not None
        assert (excess.lo is not None, excess.hi is not None) == (bounded, bounded)


def test_single_documents_share_a_stratum() -> None:
    """A stratum of one document would add no width: singles are put together, a lone one joins the smallest other."""
    assert summary.strata(["a", "a", "b", "c", "d"]) == ("a", "a", "b+c+d", "b+c+d", "b+c+d")
    assert summary.strata(["a", "a", "a", "b", "b", "c"]) == ("a", "a", "a", "b+c", "b+c", "b+c")
    assert summary.strata(["a", "a", "b", "b"]) == ("a", "a", "b", "b")
    assert summary.strata(["a"]) == ("a",)


def test_documents_missing_on_an_arm_are_left_out_for_all(records: Records) -> None:
    """A document that one floor arm lacks counts on no arm, and the summary says how many are missing."""
    gone = records.positions[0].case_id
    kept = tuple(b for b in records.positions if not (b.case_id == gone and b.arm == "ubatch"))
    result = SUITE.summarise(replace(records, positions=kept).pair_with("cand"))
    assert result.metrics["prefill.kl_mean"].clusters == 11
    assert "prefill: 1 of 12 documents are missing on some arm" in result.untested


def test_a_floor_arm_without_positions_is_said(records: Records) -> None:
    """A floor arm that gave nothing is left out and named; the other one is still subtracted."""
    kept = tuple(b for b in records.positions if b.arm != "exact")
    result = SUITE.summarise(replace(records, positions=kept).pair_with("cand"))
    assert set(result.floor) == {"ubatch"}
    assert "prefill: floor arm exact has no positions" in result.untested
    assert result.excess["prefill.kl_mean"].value is not None


def test_a_candidate_without_positions_is_untested(records: Records) -> None:
    """No position means no metric, and a reason."""
    result = SUITE.summarise(records.pair_with("other"))
    assert not result.metrics
    assert "prefill: no position was scored for other" in result.untested


def test_a_floor_arm_seen_as_a_candidate(records: Records) -> None:
    """Summarised as a candidate, a floor arm is judged against the other floors."""
    result = SUITE.summarise(records.pair_with("ubatch"))
    assert set(result.floor) == {"exact"}
    assert result.excess["prefill.kl_mean"].value == result.metrics["prefill.kl_mean"].value


def test_skipped_documents_and_reach_are_reported(records: Records, result: Summary) -> None:
    """What the corpus left out is untested; how far the positions reach is the blind spot."""
    first = next(iter(records.cases.values()))
    body = {**first.body, "skipped": ["a/x.txt: 3 tokens, 193 needed"]}
    cases = {**records.cases, first.id: replace(first, body=body)}
    assert (
        "not run: a/x.txt: 3 tokens, 193 needed"
        in SUITE.summarise(replace(records, cases=cases).pair_with("cand")).untested
    )
    assert "prefill: 12 documents, 1152 positions, none past token 96: longer contexts are unseen" in result.blind_spots


def test_other_estimators_are_not_mixed_in(records: Records) -> None:
    """Positions over the top k are another quantity; mixing them is refused."""
    case_id = next(iter(records.cases))
    mixed = (*records.positions, block(case_id, "cand", np.zeros(3), estimator="topk_bucket"))
    with pytest.raises(ValueError, match=r"another estimator than .full."):
        SUITE.summarise(replace(records, positions=mixed).pair_with("cand"))


def test_the_summary_depends_on_the_records_alone(records: Records, result: Summary) -> None:
    """The same records give the same numbers to the last bit; another digest gives other resamples."""
    assert SUITE.summarise(records.pair_with("cand")) == result
    other = SUITE.summarise(replace(records, digest="other").pair_with("cand"))
    assert other.metrics["prefill.kl_mean"].value == result.metrics["prefill.kl_mean"].value
    assert other.metrics["prefill.kl_mean"].lo != result.metrics["prefill.kl_mean"].lo


def test_never_differs(records: Records) -> None:
    """True only for an arm that has positions and is exactly the base at every one of them."""
    assert never_differs(records, "exact")
    assert not never_differs(records, "cand")
    assert not never_differs(records, "nobody")
    case_id = next(iter(records.cases))
    once = replace(records, positions=(*records.positions, block(case_id, "exact", np.array([0, 0, 1e-12]))))
    assert not never_differs(once, "exact")


#: One-sided alpha of the gate: the share of A/A pairs whose excess may look like a loss.
ALPHA = 0.05
PAIRS = 100


def false_alarms(floors: int) -> dict[str, int]:
    """A/A pairs, of clustered, heavy-tailed, drifting noise, whose excess interval lies above 0."""
    names = tuple(f"floor{i}" for i in range(floors))
    alarms = dict.fromkeys(("prefill.kl_mean", "prefill.kl_p95", "prefill.top1_flip_rate"), 0)
    for seed in range(PAIRS):
        script = {"base": NONE, "cand": CLEAN} | dict.fromkeys(names, CLEAN)
        records = run(script, made_cases(seed), seed=seed, floors=names)
        excess = SUITE.summarise(records.pair_with("cand")).excess
        for metric in alarms:
            alarms[metric] += (excess[metric].lo or 0) > 0
    return alarms


def most_alarms() -> int:
    """More than this many of the pairs would be seen once in 1,000 tries if the rate were alpha."""
    return int(binom.ppf(0.999, PAIRS, ALPHA))


@pytest.mark.parametrize("floors", [1, 2])
def test_a_a_pairs_pass_at_the_stated_rate(floors: int) -> None:
    """Base against base with one floor arm looks like a loss in about 5 % of runs, and less often with two."""
    alarms = false_alarms(floors)
    assert max(alarms.values()) <= most_alarms(), alarms


def test_a_wrong_interval_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting positions instead of documents makes intervals so short that A/A pairs fail far above the rate."""
    counts = summary.cluster_counts

    def too_sure(*args: Any) -> np.ndarray:
        drawn = counts(*args)
        # 64 independent positions a document would shrink the deviation of a document's weight 8 times.
        return np.asarray(np.rint(8 * drawn.mean() + drawn - drawn.mean()), dtype=np.int64)

    monkeypatch.setattr(summary, "cluster_counts", too_sure)
    assert max(false_alarms(1).values()) > most_alarms()


def test_the_planted_defect_is_found() -> None:
    """The suite's own planted defect lies above the floor in every run, by the metric that it names."""
    fault = SUITE.planted_defect()
    script = {"base": NONE, "floor": CLEAN, "cand": PLANTED}
    for seed in range(10):
        records = run(script, made_cases(seed), seed=seed)
        found = SUITE.summarise(records.pair_with("cand")).excess[fault.metric]
        assert found.lo is not None and found.lo > 0
