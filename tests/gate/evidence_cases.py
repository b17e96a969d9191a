"""Evidence for gate tests: one candidate that passes everything, and how to spoil it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvgate.core.deployment import Engaged, Engagement
from kvgate.core.estimate import Estimate, Measure
from kvgate.core.suite import Summary
from kvgate.core.verdict import CandidateEvidence
from kvgate.stats.paired import mcnemar

CONFIRMED = Engaged(Engagement.CONFIRMED, "load log", ("llama_kv_cache: K (q8_0), V (q8_0)",))
FLOORS = ("restart", "batch", "twin", "ubatch32")
LOWER_IS_BETTER = (
    "kl_mean", "kl_median", "kl_p90", "kl_p95", "kl_p99", "kl_p999", "kl_max", "top1_flip_rate_confident",
)  # fmt: skip


def est(value: float, half: float = 0.0, *, unit: str = "nat", n: int = 2304, clusters: int = 12) -> Estimate:
    return Estimate(value, value - half, value + half, 0.90, n, clusters, unit, "test")


def count(value: float, prompts: int = 24) -> Estimate:
    return Estimate(value, None, None, 0.90, prompts, prompts, "prompts", "count", "a count")


def fidelity(mean: float = 0.0005, half: float = 0.0003, floor: float = 0.004) -> Summary:
    """A fidelity summary whose mean excess is `mean` +- `half`; tails are 6 times as large."""
    scale = {"kl_mean": 1.0, "kl_p99": 6.0}
    names = {f"{lane}.{name}": scale.get(name, 1.0) for lane in ("prefill", "decode") for name in LOWER_IS_BETTER}
    metrics: dict[str, Measure] = {m: est(floor + s * mean, half) for m, s in names.items()}
    excess = {m: est(s * mean, s * half) for m, s in names.items()}
    floors: dict[str, dict[str, Measure]] = {
        "twin": dict.fromkeys(names, est(0.0)),
        "ubatch32": dict.fromkeys(names, est(floor)),
    }
    return Summary(metrics, excess, floors)


def golden(breaks: int = 0, repairs: int = 0, critical: int = 0, prompts: int = 24) -> Summary:
    return Summary(
        {
            "golden.net_breaks": mcnemar(breaks, repairs),
            "golden.confirmed_breaks": count(breaks, prompts),
            "golden.critical_breaks": count(critical, prompts),
            "golden.break_rate": est(breaks / prompts, 0.1, unit="1", n=prompts, clusters=prompts),
        },
        floor={"restart": {"golden.break_rate": est(0.0, unit="1")}, "batch": {}},
        blind_spots=(f"golden: {prompts} prompts: a 12 % break rate would go unseen",),
    )


def needle(ratio: float = 1.0, half: float = 0.02, losses: int = 0) -> Summary:
    return Summary(
        {
            "needle.accuracy_ratio": est(ratio, half, unit="ratio", n=200, clusters=200),
            "needle.net_losses": mcnemar(losses, 0),
        },
        floor={"restart": {}, "batch": {}},
        blind_spots=("needles up to 512 tokens only",),
    )


def good(**changes: Any) -> CandidateEvidence:
    """A q8_0 candidate that passes the default policy; keyword arguments replace fields."""
    whole = CandidateEvidence(
        candidate="q8_0",
        recipe="q8_0",
        effective="q8_0+hadamard",
        engaged={"serving": CONFIRMED, "panel": CONFIRMED},
        summaries={"fidelity": fidelity(), "golden": golden(), "needle": needle()},
        model="smollm2",
        engine="llama_cpp",
        caveats=("a 135M model's result does not carry to another model",),
        records_digest="d" * 64,
    )
    return replace(whole, **changes)


def with_suite(evidence: CandidateEvidence, **summaries: Summary) -> CandidateEvidence:
    """The same evidence with these suites replaced."""
    return replace(evidence, summaries={**evidence.summaries, **summaries})
