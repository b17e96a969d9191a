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
    """Totals as printed; the KLD's percentile, not the probability's."""
    found = bench.read_stats(PRINTED)

    assert (found.mean, found.p99, found.same_top) == pytest.approx((0.004255, 0.016404, 0.92126))


@pytest.mark.parametrize("lost", ["Mean    KLD", "99.0%   KLD", "Same top p: "])
def test_missing_words_are_an_error(bench: Any, lost: str) -> None:
    """Each line that is needed is missed: no number is made up, and no other line stands in for it."""
    text = "\n".join(line for line in PRINTED.splitlines() if not line.startswith(lost))

    with pytest.raises(ValueError, match="the peer"):
        bench.read_stats(text)


def columns(kl: np.ndarray, same: np.ndarray) -> Any:
    out = np.zeros(kl.shape, dtype=POSITION_FIELDS)
    out["kl"], out["base_top1"], out["top1"] = kl, 7, np.where(same, 7, 8)
    return out


def positions(seed: int, sd: float, shift: float = 1.0, chunks: int = 16, n: int = 127) -> tuple[Any, Any]:
    """Columns of two engines: one KLD a position, the other's `sd` away in its log and `shift` times as large."""
    rng = np.random.default_rng(seed)
    kl, same = rng.lognormal(-6, 1, (chunks, n)), rng.random((chunks, n)) < 0.9
    other = kl * shift * np.exp(rng.normal(0, sd, kl.shape) - sd**2 / 2)
    drawn_again = rng.random(kl.shape) < 0.2 * sd
    return columns(kl, same), columns(other, np.where(drawn_again, rng.random(kl.shape) < 0.9, same))


def test_two_engines_that_differ_by_noise_alone(bench: Any) -> None:
    """Noise at single positions leaves 0 inside the paired intervals; a third more everywhere does not."""
    noisy = bench.differences(*positions(1, 0.5), 0.99)
    shifted = bench.differences(*positions(1, 0.5, shift=4 / 3), 0.99)

    assert all(d["lo"] < 0 < d["hi"] for d in noisy.values())
    assert shifted["mean"]["hi"] < 0


def test_a_pair_is_drawn_together(bench: Any) -> None:
    """What both engines share cancels: a chunk ten times as hard as the others widens no interval."""
    ours, others = positions(2, 0.0)
    for data in (ours, others):
        data["kl"][0] *= 10

    found = bench.differences(ours, others, 0.99)

    assert found["mean"]["lo"] == found["mean"]["hi"] == pytest.approx(0, abs=1e-9)


def test_agreement_and_its_absence(bench: Any) -> None:
    """The same measure within print; the seventh decimal too far is another measure, and says by how much."""
    wheel, own = positions(3, 0.3)
    printed = bench.numbers(*bench.kld_and_same(own))
    near = bench.Numbers(printed.mean + 5e-7, printed.p99, printed.same_top)
    far = bench.Numbers(printed.mean + 1e-4, printed.p99, printed.same_top)

    found = bench.agreement(wheel, own, near, printed, 0.99)

    assert found["same_measure"]
    assert found["no_difference_seen"]
    assert not bench.agreement(wheel, own, far, printed, 0.99)["same_measure"]
    assert bench.agreement(wheel, own, far, printed, 0.99)["printed_difference"] == pytest.approx(1e-4)
    assert not bench.agreement(positions(3, 0.3)[0], positions(3, 0.3, shift=2)[1], near, printed, 0.99)[
        "no_difference_seen"
    ]


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


def test_the_peers_arithmetic(bench: Any) -> None:
    """From the file's codes: the exact KLD to half a step's bound, without what the file's base puts below e**-16."""
    rng = np.random.default_rng(4)
    base = rng.normal(0, 3, (40, 2000)).astype(np.float32)
    arm = (base + rng.normal(0, 0.3, base.shape)).astype(np.float32)
    lp, lq = (x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in (base.astype(float), arm.astype(float)))
    counted = lp > -16
    exact = (np.exp(lp) * (lp - lq) * counted).sum(axis=1)

    kld, same = bench.filed(arm, np.stack([kept(x) for x in base]))

    # A step of the log-probability moves p and ln p: half a step times 1 + |ln p/q|, which is under 4 here.
    assert np.abs(kld - exact).max() <= bench.HALF_STEP * 5
    assert same.tolist() == (base.argmax(1) == arm.argmax(1)).tolist()
    assert not same.all()
    assert np.abs(bench.filed(np.roll(arm, 1, axis=0), np.stack([kept(x) for x in base]))[0] - exact).min() > 0.1


def test_without_a_peer_it_says_what_to_build(tmp_path: Path) -> None:
    """No peer, or one without its engine beside it: exit 2 and what to build; nothing is started."""
    alone = tmp_path / "llama-perplexity"
    alone.write_text("")
    for peer, word in (("/nowhere", "--target llama-perplexity"), (str(alone), "libllama.so")):
        done = subprocess.run([sys.executable, SCRIPT, "--peer", peer], capture_output=True, text=True, check=False)

        assert (done.returncode, done.stdout) == (2, "")
        assert word in done.stderr


def test_a_report_of_ratios_and_promises(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians of CPU time, the further candidate as a difference, each engine for itself; a promise that is missed."""
    args = type("A", (), {"candidates": ["q8_0", "q4_0"], "every": True, "peer": "x"})()
    head = bench.BaseFile(8, 5, np.zeros((2, 8), dtype="<i4"), 1000)
    seconds = {
        "peer, base": [9, 10, 50], "peer, q8_0": [10, 10, 10], "peer, q4_0": [12, 12, 12],
        "kvgate, q8_0": [22, 21, 90], "kvgate, q8_0, q4_0": [31, 31, 31], "kvgate, q8_0, all positions": [24, 24, 24],
        "kvgate on the peer's engine, q8_0": [19, 19, 19], "kvgate on the peer's engine, q8_0, q4_0": [30, 30, 30],
    }  # fmt: skip
    costs = {who: [bench.Cost(float(s), 1.0) for s in runs] for who, runs in seconds.items()}
    data = columns(np.full((2, 3), 0.004), np.ones((2, 3), bool))
    ours = {"columns": {"q8_0": data, "q4_0": data}, "parts": {"scoring_cpu_s": 1.2}}
    monkeypatch.setattr(bench, "stored_bytes", lambda _: 40.0)

    found = bench.report(args, head, costs, ours)

    assert found["ratios"] == pytest.approx(
        {
            "base and q8_0": 22 / 20, "further q4_0": 9 / 12,
            "base and q8_0, on the peer's engine": 19 / 20, "further q4_0, on the peer's engine": 11 / 12,
            "base and q8_0, all positions": (24 / 14) / (20 / 6),
        }
    )  # fmt: skip
    assert found["scored_positions"] == 6
    assert all(p["held"] for p in found["cost_promises"])
    assert "| base and q8_0 | 1.10 |" in bench.markdown(found)
    assert "Missed: nothing." in bench.markdown(found)
    costs["kvgate, q8_0"] = [bench.Cost(23.0, 1.0)] * 3
    assert "Missed: base and q8_0, of the peer's CPU." in bench.markdown(bench.report(args, head, costs, ours))


def test_stored_bytes_are_measured(bench: Any) -> None:
    """A real store holds the positions in fewer bytes than the promise; random columns, which compress worst."""
    rng = np.random.default_rng(1)
    data = columns(rng.lognormal(-6, 1, (4, 255)), rng.random((4, 255)) < 0.9)
    for name in ("base_lp", "lp", "base_entropy", "base_margin"):
        data[name] = rng.normal(size=(4, 255))

    assert 20 < bench.stored_bytes({"q8_0": data, "q4_0": data}) < 200
