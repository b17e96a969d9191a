"""The topk suite on scripted sessions: what it asks of a server, and what it takes for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kvgate.core.engine import Available, Lane, Missing, TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.core.observation import Case, Raw
from kvgate.suites.topk import SAME_ROWS, SUITE

IDS = list(range(1, 31))
CASE = Case.make(
    "topk", cluster="c", category="x", body={"ids": IDS, "prefill": 20, "prefix": 5, "decode": 12, "k": 64}
)


class Scripted:
    """A session that serves `lanes` and gives a row a position, or what `rows` makes of the positions."""

    def __init__(self, lanes: Mapping[Lane, Any], rows: Any = None) -> None:
        self._lanes, self._rows = lanes, rows or (lambda at: [TopKRow((i, 0), (-0.1 - i / 1e3, -3.0)) for i in at])
        self.asked: list[tuple[Lane, int, int, int]] = []

    async def lanes(self) -> Mapping[Lane, Any]:
        return self._lanes

    async def score(self, ids: Sequence[int], *, start: int, lane: Lane, k: int) -> Sequence[TopKRow]:
        self.asked.append((lane, start, len(ids), k))
        return list(self._rows(range(start, len(ids))))


BOTH = {Lane.PREFILL_TOPK: Available({"top_k": 20}), Lane.FORCED_DECODE: Available()}


def ran(session: Scripted) -> Raw:
    return asyncio.run(SUITE.run(session, CASE, 0, 0))  # type: ignore[arg-type]


def test_each_lane_is_asked_for_its_positions() -> None:
    """Prefill from the second token on, decode after the prefix; as many entries as are wanted and granted."""
    session = Scripted(BOTH)
    body = ran(session).body

    assert session.asked == [(Lane.PREFILL_TOPK, 1, 21, 20), (Lane.FORCED_DECODE, 6, 18, 64)]
    assert body is not None and (len(body["prefill"]["ids"]), len(body["decode"]["lp"])) == (20, 12)
    assert (body["prefill"]["start"], body["decode"]["start"], body["missing"]) == (1, 6, {})


def test_a_lane_that_is_not_served_says_why() -> None:
    """The other lane is measured all the same."""
    body = ran(Scripted({**BOTH, Lane.PREFILL_TOPK: Missing("no logprobs here")})).body

    assert body is not None and body["missing"] == {"prefill": "no logprobs here"}
    assert "prefill" not in body and len(body["decode"]["ids"]) == 12


def same(at: range) -> list[TopKRow]:
    return [TopKRow((1, 2), (-0.5, -1.5))] * len(at)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [(same, "degenerate_logprobs"), (lambda at: same(at)[1:], "bad_shape"), (lambda at: [], "bad_shape")],
)
def test_an_answer_that_means_nothing_is_a_bad_one(rows: Any, kind: str) -> None:
    """One top at every position, or another number of positions."""
    with pytest.raises(BadAnswer) as e:
        ran(Scripted(BOTH, rows))
    assert e.value.kind == kind


def test_a_few_equal_tops_in_a_row_are_no_fault() -> None:
    """Only a whole text of them is: a repeated passage may give the same numbers for a while."""

    def rows(at: range) -> list[TopKRow]:
        return [*same(range(len(at) - 1)), TopKRow((1, 2), (-0.4, -1.5))]

    assert len(IDS) > SAME_ROWS and ran(Scripted(BOTH, rows)).body is not None
