"""The arithmetic of `benchmarks/fidelity.py`: the peer's file and words, the same positions, agreement; no peer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvgate.core.observation import POSITION_FIELDS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fidelity.py"

#: As llama-perplexity b11434 prints them (lines that are read, with neighbours; numbers of a run on SmolLM2).
PRINTED = """
kl_divergence: 8.41 seconds per pass - ETA 0.27 minutes

chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p
   1      63.8339 ±   20.0475      -0.00115 ±    0.01052       0.00475 ±    0.00037     1.475 ±  0.318 %    91.339 ±  2.506 %
   2      60.0231 ±   12.9195      -0.00542 ±    0.00696       0.00426 ±    0.00022     1.226 ±  0.196 %    92.126 ±  1.693 %

====== KL divergence statistics ======
Mean    KLD:   0.004255 ±   0.000215
Maximum KLD:   0.027066
99.9%   KLD:   0.025925
99.0%   KLD:   0.016404
95.0%   KLD:   0.009400

====== Token probability statistics ======
99.0%   Δp:  3.539%
Same top p: 92.126 ± 1.693 %
"""  # noqa: E501 - as printed


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("fidelity_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def peer_file(path: Path, context: int = 8, vocabulary: int = 5, chunks: int = 3, *, cut: int = 0) -> Path:
    """A file as the peer writes it: head, tokens, a row of 16-bit codes for each scored position."""
    row = 2 * ((vocabulary + 1) // 2) + 4
    tokens = np.arange(context * chunks, dtype="<i4") % vocabulary
    rows = np.zeros(chunks * (context - 1 - context // 2) * row, dtype="<u2")
    head = np.array([context, vocabulary, chunks], dtype="<i4")
    data = b"_logits_" + head.tobytes() + tokens.tobytes() + rows.tobytes()
    path.write_bytes(data[: len(data) - cut])
    return path


@pytest.mark.parametrize(("context", "vocabulary", "chunks"), [(8, 5, 3), (512, 49_152, 1), (7, 6, 2)])
def test_the_peers_file(bench: Any, tmp_path: Path, context: int, vocabulary: int, chunks: int) -> None:
    """Head, tokens and size are read, and the count of scored positions is the peer's: n_ctx - 1 - n_ctx / 2."""
    path = peer_file(tmp_path / "x", context, vocabulary, chunks)

    head = bench.read_base(path)

    assert (head.context, head.vocabulary, head.tokens.shape) == (context, vocabulary, (chunks, context))
    assert head.tokens.reshape(-1).tolist() == [i % vocabulary for i in range(context * chunks)]
    assert head.positions == chunks * (context - 1 - context // 2)
    assert head.bytes == path.stat().st_size


def test_bytes_of_a_position_of_smollm2(bench: Any, tmp_path: Path) -> None:
    """98,312 bytes a scored position for 49,152 entries, as read in the tool's source."""
    one, two = (bench.read_base(peer_file(tmp_path / str(n), 512, 49_152, n)) for n in (1, 2))

    assert (two.bytes - one.bytes - 4 * 512) / (two.positions - one.positions) == 98_312


@pytest.mark.parametrize("broken", ["cut", "magic", "empty", "head"])
def test_another_file_is_refused(bench: Any, tmp_path: Path, broken: str) -> None:
    """A short file, another kind of file, and a head that says nothing are no base."""
    path = peer_file(tmp_path / "x", cut=2 if broken == "cut" else 0)
    data = path.read_bytes()
    path.write_bytes({"cut": data, "magic": b"_logitz_" + data[8:], "empty": b"", "head": data[:8] + bytes(12)}[broken])

    with pytest.raises(ValueError, match=r"its head says|is no file"):
        bench.read_base(path)


def test_the_peers_words(bench: Any) -> None:
    """Totals as printed; running means of chunks taken apart; the KLD's percentile, not the probability's."""
    found = bench.read_stats(PRINTED)

    assert (found.mean, found.p99, found.same_top) == pytest.approx((0.004255, 0.016404, 0.92126))
    assert found.chunk_mean == pytest.approx((0.00475, 2 * 0.00426 - 0.00475))
    assert found.chunk_same_top == pytest.approx((0.91339, 2 * 0.92126 - 0.91339))


@pytest.mark.parametrize("lost", ["Mean    KLD", "99.0%   KLD", "Same top p: ", "   1      63"])
def test_missing_words_are_an_error(bench: Any, lost: str) -> None:
    """Each line that is needed is missed: no number is made up, and no other line stands in for it."""
    text = "\n".join(line for line in PRINTED.splitlines() if not line.startswith(lost))

    with pytest.raises(ValueError, match="the peer"):
        bench.read_stats(text)


def test_running_means_come_apart(bench: Any) -> None:
    """The parts' own means, from their running ones."""
    parts = np.array([0.3, 0.1, 0.7, 0.2])
    running = np.cumsum(parts) / np.arange(1, 5)

    assert bench.apart(running.tolist()) == pytest.approx(tuple(parts))


def columns(kl: np.ndarray, same: np.ndarray) -> Any:
    out = np.zeros(kl.shape, dtype=POSITION_FIELDS)
    out["kl"], out["base_top1"], out["top1"] = kl, 7, np.where(same, 7, 8)
    return out


def test_agreement_and_its_absence(bench: Any) -> None:
    """The same positions agree, a shift of the file's size does too, and one twice the interval does not."""
    rng = np.random.default_rng(1)
    kl, same = rng.lognormal(-6, 1, (4, 255)), rng.random((4, 255)) < 0.9
    stats = bench.PeerStats(
        kl.mean(), np.quantile(kl, 0.99), same.mean(), tuple(kl.mean(1)), tuple(same.mean(axis=1, dtype=float))
    )
    rows = bench.agreement(columns(kl, same), stats)

    assert [r["agrees"] for r in rows] == [True] * 3
    assert rows[0]["kvgate"] == pytest.approx(stats.mean, rel=1e-6)
    same_kl = np.full((4, 255), 0.004)
    near = bench.PeerStats(0.0041, 0.0041, 1.0, (0.0041,) * 4, (1.0,) * 4)
    assert [r["by"] for r in bench.agreement(columns(same_kl, np.ones((4, 255), bool)), near)][:2] == ["file", "file"]
    far = bench.PeerStats(0.0045, 0.0045, 0.9, (0.0045,) * 4, (0.9,) * 4)
    assert [r["agrees"] for r in bench.agreement(columns(same_kl, np.ones((4, 255), bool)), far)] == [False] * 3


def test_the_files_bound_holds_for_the_files_arithmetic(bench: Any) -> None:
    """Rounding the base's log-probabilities to 65,535 steps of 16 nat moves no KLD further than the bound says."""
    rng = np.random.default_rng(2)
    for spread in (0.01, 0.1, 1.0):
        base = rng.normal(0, 3, 4000)
        arm = base + rng.normal(0, spread, 4000)
        lp, lq = (x - np.logaddexp.reduce(x) for x in (base, arm))
        lowest, step = max(lp.min(), lp.max() - 16), (lp.max() - max(lp.min(), lp.max() - 16)) / 65535
        kept = lowest + step * np.rint((np.maximum(lp, lowest) - lowest) / step)
        exact = float(np.exp(lp) @ (lp - lq))
        with_tail = np.where(lp > lowest, kept, lp)
        filed = float(np.exp(with_tail) @ (with_tail - lq))

        assert abs(filed - exact) <= bench.file_bound(exact) * (1 + 2 * bench.HALF_STEP)
        assert abs(filed - exact) > 0


def kept(logits: np.ndarray) -> np.ndarray:
    """Rows as the peer keeps them, in its float32 arithmetic."""
    top, lowest = logits.max(), max(logits.min(), logits.max() - np.float32(16))
    step = np.float32((top - lowest) / np.float32(65535))
    lse = np.float32(np.log(np.exp(logits.astype(np.float64) - top).sum()))
    codes = np.where(logits > lowest, np.rint((logits - lowest) / step), 0).astype("<u2")
    head = np.array([step, np.float32(lowest - top - lse)], dtype="<f4").view("<u2")
    return np.concatenate([head, codes])


def test_the_base_is_compared_entry_by_entry(bench: Any) -> None:
    """The peer's rounding of our own logits is within the limit; another position's logits are far outside it."""
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (4, 2000)).astype(np.float32)
    rows = np.stack([kept(x) for x in logits])

    assert 1e-5 < bench.base_difference(logits, rows) <= bench.MOST_BASE_DIFFERENCE
    assert bench.base_difference(np.roll(logits, 1, axis=0), rows) > 1
    assert bench.base_difference(logits * np.float32(1.0005), rows) > bench.MOST_BASE_DIFFERENCE


def test_without_a_peer_it_says_what_to_build() -> None:
    """No peer: exit 2 and the target to build; nothing is started."""
    done = subprocess.run([sys.executable, SCRIPT, "--peer", "/nowhere"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert "--target llama-perplexity" in done.stderr


def test_a_report_of_ratios_and_promises(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians of CPU time, the further candidate as a difference, and a promise that is missed is not held."""
    args = type("A", (), {"candidates": ["q8_0", "q4_0"], "every": True, "peer": "x", "chunks": 2, "context": 8})()
    args.ubatch, args.threads, args.repeats = 128, 1, 3
    head = bench.BaseFile(8, 5, np.zeros((2, 8), dtype="<i4"), 1000)
    seconds = {
        "peer, base": [9, 10, 50], "peer, q8_0": [10, 10, 10], "peer, q4_0": [12, 12, 12],
        "kvgate, q8_0": [22, 21, 90], "kvgate, q8_0, q4_0": [31, 31, 31], "kvgate, q8_0, all positions": [24, 24, 24],
    }  # fmt: skip
    costs = {who: [bench.Cost(float(s), 1.0) for s in runs] for who, runs in seconds.items()}
    data = columns(np.full((2, 3), 0.004), np.ones((2, 3), bool))
    ours = {"columns": {"q8_0": data, "q4_0": data}, "parts": {"scoring_cpu_s": 1.2}, "base_difference": 1e-4}
    stats = bench.PeerStats(0.004, 0.004, 1.0, (0.004, 0.004), (1.0, 1.0))
    monkeypatch.setattr(bench, "stored_bytes", lambda _: 40.0)
    monkeypatch.setattr(bench, "peer_version", lambda _: "b1")

    found = bench.report(args, head, costs, {"q8_0": stats, "q4_0": stats}, ours)

    assert found["ratios"] == pytest.approx(
        {"base and q8_0": 22 / 20, "further q4_0": 9 / 12, "base and q8_0, all positions": (24 / 14) / (20 / 6)}
    )
    assert found["scored_positions"] == 6
    assert found["held"]
    assert "| base and q8_0 | 1.10 |" in bench.markdown(found)
    ours["base_difference"] = 2e-4
    assert not bench.report(args, head, costs, {"q8_0": stats, "q4_0": stats}, ours)["held"]
    ours["base_difference"] = 1e-4
    costs["kvgate, q8_0"] = [bench.Cost(23.0, 1.0)] * 3
    assert not bench.report(args, head, costs, {"q8_0": stats, "q4_0": stats}, ours)["held"]


def test_stored_bytes_are_measured(bench: Any) -> None:
    """A real store holds the positions in fewer bytes than the promise; random columns, which compress worst."""
    rng = np.random.default_rng(1)
    data = columns(rng.lognormal(-6, 1, (4, 255)), rng.random((4, 255)) < 0.9)
    for name in ("base_lp", "lp", "base_entropy", "base_margin"):
        data[name] = rng.normal(size=(4, 255))

    assert 20 < bench.stored_bytes({"q8_0": data, "q4_0": data}) < 200
