"""topk asks a candidate for the base's own tokens where its server lets one name them, and never elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kvgate.core.engine import Available, Lane, Missing, TopKRow
from kvgate.core.observation import Case, Raw
from kvgate.stats.topk import compare_rows
from kvgate.suites.topk import SUITE

IDS = tuple(range(12))
CASE = Case.make(
    "topk", cluster="c", category="prose", body={"ids": IDS, "prefill": 3, "prefix": 4, "decode": 2, "k": 2}
)
BASE, OWN, JOINED = TopKRow((1, 2), (-0.5, -1.5)), TopKRow((1, 3), (-0.6, -1.4)), TopKRow((1, 3, 2), (-0.6, -1.4, -1.6))


class Session:
    """Serves both lanes; ids may be named in those that `limits` says."""

    def __init__(self, limits: Mapping[Lane, Mapping[str, int]]) -> None:
        self._limits = limits
        self.beside: list[tuple[Lane, tuple[TopKRow, ...]]] = []

    async def lanes(self) -> Mapping[Lane, Available | Missing]:
        return {lane: Available(limits) for lane, limits in self._limits.items()}

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        return [OWN._replace(logprobs=(-0.6 - i / 100, -1.4)) for i in range(len(ids) - start)]

    async def score_beside(
        self, ids: Sequence[int], *, start: int, lane: Lane, k: int, base: Sequence[TopKRow]
    ) -> Sequence[TopKRow]:
        self.beside.append((lane, tuple(base)))
        return [JOINED] * len(base)


def raw(n_prefill: int = 3) -> Raw:
    part = {"k": 2, "ids": [BASE.ids] * n_prefill, "lp": [BASE.logprobs] * n_prefill}
    decode = {"start": 5, "k": 2, "ids": [BASE.ids] * 2, "lp": [BASE.logprobs] * 2}
    return Raw({"missing": {}, "prefill": part | {"start": 1}, "decode": decode})


def run(session: Any, base: Raw) -> Mapping[str, Any]:
    body = asyncio.run(SUITE.run_beside(session, CASE, 0, 0, base)).body
    assert body is not None
    return body


def test_only_a_lane_that_takes_ids_is_asked_for_them() -> None:
    """Prefill says "ids", decode does not: one is asked beside the base's rows, the other as ever."""
    session = Session({Lane.PREFILL_TOPK: {"top_k": 2, "ids": 128}, Lane.FORCED_DECODE: {"top_k": 2}})
    body = run(session, raw())

    assert session.beside == [(Lane.PREFILL_TOPK, (BASE,) * 3)]
    assert body["prefill"]["ids"] == [JOINED.ids] * 3 and body["decode"]["ids"] == [OWN.ids] * 2


@pytest.mark.parametrize("base", [Raw(None, error="x"), Raw({"missing": {"prefill": "no"}}), raw(n_prefill=2)])
def test_a_base_without_these_rows_is_not_asked_beside(base: Raw) -> None:
    """A base that failed, that lacks the lane, or whose rows are not of the same positions."""
    session = Session({Lane.PREFILL_TOPK: {"top_k": 2, "ids": 128}})

    assert run(session, base)["prefill"]["ids"] == [OWN.ids] * 3 and session.beside == []


def test_named_ids_cover_more_of_the_base() -> None:
    """The bound rests on all of the base's listed mass then, and only grows by it."""
    (plain,), (named,) = compare_rows([BASE], [OWN], [1]), compare_rows([BASE], [JOINED], [1])

    assert plain["covered"] == pytest.approx(0.6065, abs=1e-4) and named["covered"] == pytest.approx(0.8297, abs=1e-4)
    assert named["kl"] >= plain["kl"] > 0
