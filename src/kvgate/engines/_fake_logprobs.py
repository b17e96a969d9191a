"""Top log-probabilities of the fake model's answers: seeded by what stands before, with the answer's token on top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from kvgate.engines import _fake_tokens as tokens
from kvgate.engines._fake_script import FakeScript, unit


class TopRow(NamedTuple):
    """One position: the token that was generated, and (id, logprob) from the most likely down."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def top_rows(
    script: FakeScript, digest: str, ids: Sequence[int], k: int, noise: tuple[int, int] = (0, 0)
) -> list[TopRow]:
    """A row per generated token. The mass falls off geometrically, so a list of k sums to less than 1.

    Args:
        noise: the server's noise seed and the request's number; they draw what `top_sd` asks for.
    """
    rows = [_row(script, digest, ids, at, k) for at in range(len(ids))]
    if script.top_sd:
        rows = [_noisy(script.top_sd, row, (*noise, at)) for at, row in enumerate(rows)]
    return [_faulty(script, row) for row in rows]


def _noisy(sd: float, row: TopRow, key: tuple[int, ...]) -> TopRow:
    """Normal noise on every listed logit and on the one that stands for the rest."""
    values = [x for _, x in row.top]
    rest = max(1 - math.fsum(map(math.exp, values)), 1e-6)
    draws = [NormalDist().inv_cdf(min(max(unit("top", *key, i), 1e-9), 1 - 1e-9)) for i in range(len(values) + 1)]
    moved = [x + sd * z for x, z in zip([*values, math.log(rest)], draws, strict=True)]
    total = math.log(math.fsum(map(math.exp, moved)))
    pairs = sorted(((i, x - total) for (i, _), x in zip(row.top, moved, strict=False)), key=lambda p: -p[1])
    return TopRow(row.token_id, dict(pairs).get(row.token_id, row.logprob), tuple(pairs))


def _row(script: FakeScript, digest: str, ids: Sequence[int], at: int, k: int) -> TopRow:
    key = (script.seed, digest, tuple(ids[max(0, at - 2) : at]), at)
    p_first = 0.35 + 0.6 * unit(key, "p")
    others: list[int] = []
    while len(others) < max(k - 1, 1):
        candidate = int(unit(key, "id", len(others), ids[at]) * tokens.VOCAB)
        # Step on from an id that is taken: draws alone would not end for a long list.
        while candidate == ids[at] or candidate in others:
            candidate = (candidate + 1) % tokens.VOCAB
        others.append(candidate)
    ranked = [ids[at], *others]
    if unit(script.seed, "flip top", digest, at) < script.flip_rate:
        ranked[0], ranked[1] = ranked[1], ranked[0]
    values = [math.log(p_first) + i * math.log(1 - p_first) for i in range(len(ranked))]
    pairs = list(zip(ranked, values, strict=True))
    return TopRow(ids[at], dict(pairs)[ids[at]], tuple(pairs[:k]))


def _faulty(script: FakeScript, row: TopRow) -> TopRow:
    if script.logprobs in ("ok", "missing"):
        return row
    if script.logprobs == "single":
        return TopRow(row.token_id, 0.0, ((row.token_id, 0.0),))
    if script.logprobs == "no_mass":
        return TopRow(row.token_id, -9999.0, tuple(pair for pair in row.top if pair[0] != row.token_id))
    value = {"zero": 0.0, "nan": math.nan, "positive": 0.7, "identical": -4.0}[script.logprobs]
    return TopRow(row.token_id, value, tuple((i, value) for i, _ in row.top))


def openai_rows(rows: Sequence[TopRow]) -> list[dict[str, Any]]:
    """Rows in the chat shape (llama.cpp uses it for completions too, and adds ids)."""
    return [_entry(row.token_id, row.logprob) | {"top_logprobs": [_entry(i, x) for i, x in row.top]} for row in rows]


def _entry(token_id: int, logprob: float) -> dict[str, Any]:
    piece = tokens.decode([token_id])
    return {"id": token_id, "token": piece, "logprob": logprob, "bytes": list(piece.encode())}
