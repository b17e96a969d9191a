"""How far one arm's next-token distribution is from the base's, from raw logits over the whole vocabulary.

    KL(base || arm) = sum p (ln p - ln q),   p = softmax(base), q = softmax(arm)

computed without subtracting large numbers. With d = base - arm (logits) and e = d - E_p[d]:

    ln q's normaliser = ln p's normaliser - E_p[d] + KL,        KL = ln(1 + E_p[exp(-e) - 1 + e])

Every term exp(-e) - 1 + e is at least 0 in exact arithmetic. In float64 it is at least -2 eps (one rounding of the
subtraction near 1, one of the sum near 0), so the mean is too, and a KL below -2**-51 cannot come from rounding. It is
clipped at 0. The probabilities are kept in float32, so a KL is right to 2**-24 of itself. Two equal rows give d = 0 and
so KL = 0.0 exactly: an exact zero means that the logits are the same bits, up to a shift by a constant, which the gate
reads as a signal.

Knows nothing about engines, documents or intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kvgate.core.errors import BadAnswer
from kvgate.core.observation import POSITION_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvgate.core.observation import Positions

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
    Ids = NDArray[np.integer[Any]]

#: Rows scored together: 16 rows of 49,152 float32 probabilities are 3 MiB, which stays in the cache for all arms.
BLOCK_ROWS = 16
#: Largest |e| for the fast form. p below e**-87 is subnormal in float32 and loses digits; times exp(40) it still weighs
#: less than e**-47. Rows further apart are evaluated from the definition.
FAR_LOGITS = 40.0
#: BLAS splits longer vectors among threads, which wait for each other in loops: on a machine with other work that took
#: 50 times the CPU time of one thread (19 against 0.4 ms a position), and its sums depend on the number of cores.
DOT_ENTRIES = 8192
#: Ranks are stored in 16 bits.
RANK_CAP = 65_535


class BaseRows:
    """What all arms share: the base's probabilities and its own columns, computed once per row.

    Holds a view of `logits`, so it is valid as long as they are.

    Attributes:
        logits: [rows, vocab] float32. p: the same shape, softmax in float32; `mass`: its float64 sum per row.
        lse: log of the softmax's denominator. entropy (nat), margin (p1 - p2): [rows] float64. top1: [rows] token ids.
    """

    def __init__(self, logits: F32) -> None:
        self.logits = _rows(logits, "base")
        n, vocab = self.logits.shape
        self.p = np.empty((n, vocab), dtype=np.float32)
        self.mass = np.empty(n)
        self.lse, self.entropy, self.margin = np.empty(n), np.empty(n), np.empty(n)
        self.top1 = np.empty(n, dtype=np.int64)
        x, w = np.empty(vocab), np.empty(vocab)
        with _quiet():
            for i in range(n):
                self._row(i, x, w)

    def __len__(self) -> int:
        return len(self.logits)

    def _row(self, i: int, x: F64, w: F64) -> None:
        row = self.logits[i]
        first = int(np.argmax(row))
        top = float(row[first])
        np.subtract(row, top, out=x, dtype=np.float64)
        np.exp(x, out=w)
        z = float(w.sum())
        # argmax finds a NaN first, and -inf and +inf make the dot product NaN: one check for all of them.
        mean_x = _dot(w, x) / z
        if not np.isfinite(mean_x):
            raise BadAnswer("degenerate logits: the base's row holds NaN or infinity")
        np.divide(w, z, out=self.p[i], casting="same_kind")
        self.mass[i] = self.p[i].sum(dtype=np.float64)
        self.top1[i] = first
        self.lse[i] = top + np.log(z)
        self.entropy[i] = np.log(z) - mean_x
        w[first] = -1.0
        self.margin[i] = (1.0 - float(w.max())) / z


def score_rows(base: F32 | BaseRows, arm: F32, targets: Ids) -> Positions:
    """Compare every row of an arm with the base's.

    Args:
        base: [rows, vocab] raw logits, or the precomputed `BaseRows` when several arms share them.
        arm: [rows, vocab] raw logits of the arm at the same positions.
        targets: [rows] id of the next token of the text.

    Returns:
        [rows] structured array of `POSITION_FIELDS`; `covered` is 1: the whole vocabulary.

    Raises:
        BadAnswer: NaN or infinity among the logits.
        ValueError: shapes that do not fit, or a target outside the vocabulary.
    """
    shared = base if isinstance(base, BaseRows) else BaseRows(base)
    rows, (n, vocab) = _rows(arm, "arm"), shared.logits.shape
    if rows.shape != (n, vocab) or targets.shape != (n,):
        raise ValueError(f"base is {(n, vocab)}, arm {rows.shape}, targets {targets.shape}: rows do not match")
    if n and not 0 <= int(targets.min()) <= int(targets.max()) < vocab:
        raise ValueError(f"a target is outside the vocabulary of {vocab}")
    out = np.zeros(n, dtype=POSITION_FIELDS)
    out["base_entropy"], out["base_margin"], out["covered"] = shared.entropy, shared.margin, 1.0
    out["base_top1"] = shared.top1
    scratch = (np.empty(vocab), np.empty(vocab), np.empty(vocab))
    for i in range(n):
        with _quiet():
            kl, arm_lse = _divergence(shared, i, rows[i], scratch)
        target, base_top1 = int(targets[i]), int(shared.top1[i])
        out["kl"][i] = kl
        out["base_lp"][i] = float(shared.logits[i, target]) - shared.lse[i]
        out["lp"][i] = float(rows[i, target]) - arm_lse
        top1 = int(np.argmax(rows[i]))
        out["top1"][i] = top1
        out["base_top1_rank"][i] = 0 if top1 == base_top1 else min(_rank(rows[i], base_top1), RANK_CAP)
    return out


def score_arms(base: F32, arms: Mapping[str, F32], targets: Ids) -> dict[str, Positions]:
    """`score_rows` for several arms, in blocks small enough that the base's probabilities stay in the cache."""
    parts: dict[str, list[Positions]] = {arm: [] for arm in arms}
    for at in range(0, len(base), BLOCK_ROWS):
        block = slice(at, at + BLOCK_ROWS)
        shared = BaseRows(base[block])
        for arm, rows in arms.items():
            parts[arm].append(score_rows(shared, rows[block], targets[block]))
    return {arm: np.concatenate(p) if p else np.zeros(0, dtype=POSITION_FIELDS) for arm, p in parts.items()}


def perplexity(mean_logprob: F64 | float) -> F64:
    """exp(-mean log-probability): of one number, or of a vector of resampled means."""
    return np.exp(-np.asarray(mean_logprob, dtype=np.float64))


def perplexity_ratio(mean_logprob_loss: F64 | float) -> F64:
    """Arm's perplexity over the base's: exp of the mean of (base_lp - lp) over the same positions."""
    return np.exp(np.asarray(mean_logprob_loss, dtype=np.float64))


def _dot(a: F64, b: F64) -> float:
    """Inner product on one thread: the same bits on any number of cores."""
    return sum(float(np.dot(a[i : i + DOT_ENTRIES], b[i : i + DOT_ENTRIES])) for i in range(0, len(a), DOT_ENTRIES))


def _quiet() -> np.errstate:
    """NaN and infinity are found and raised as BadAnswer; numpy need not warn about them too."""
    return np.errstate(invalid="ignore", over="ignore", divide="ignore")


def _rows(logits: F32, who: str) -> F32:
    if logits.ndim != 2 or logits.dtype != np.float32 or logits.shape[1] < 2:
        raise ValueError(f"{who}: expected float32 [rows, vocab >= 2], got {logits.dtype} {logits.shape}")
    return logits


def _divergence(base: BaseRows, i: int, row: F32, scratch: tuple[F64, F64, F64]) -> tuple[float, float]:
    """(KL in nats, log of the arm's softmax denominator) of one row."""
    d, g, p = scratch
    np.subtract(base.logits[i], row, out=d, dtype=np.float64)
    np.copyto(p, base.p[i])
    mean_d = _dot(p, d) / base.mass[i]
    if not np.isfinite(mean_d):
        raise BadAnswer("degenerate logits: the arm's row holds NaN or infinity")
    d -= mean_d
    if max(float(d.max()), -float(d.min())) > FAR_LOGITS:
        return _by_definition(base, i, row)
    np.negative(d, out=g)
    np.exp(g, out=g)
    g -= 1.0
    g += d
    kl = float(np.log1p(max(_dot(p, g) / base.mass[i], 0.0)))
    return kl, base.lse[i] - mean_d + kl


def _by_definition(base: BaseRows, i: int, row: F32) -> tuple[float, float]:
    """The same from log-softmax, for rows so far apart that exp(-e) could overflow. Error: some eps of |logit|."""
    b, a = base.logits[i].astype(np.float64), row.astype(np.float64)
    top = a.max()
    arm_lse = float(top + np.log(np.exp(a - top).sum()))
    log_p = b - base.lse[i]
    return max(_dot(np.exp(log_p), log_p - (a - arm_lse)), 0.0), arm_lse


def _rank(row: F32, token: int) -> int:
    """How many tokens come before `token` when the row is sorted by logit, ties by lower id."""
    value = row[token]
    return int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
