"""What a kind of server is to `engines/openai.py`: how it scores a given text. `_pages` says whose server it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvgate.core.engine import Lane, TopKRow
from kvgate.core.errors import BadAnswer

#: Kind of the refusal of a lane that a server does not have: another kind of server may.
NOT_HERE = "not_here"
_ABSENT = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Question:
    """A text to score.

    Attributes:
        ids: the whole text. start: first token whose distribution is wanted, at least 1.
        lane: PREFILL_TOPK or FORCED_DECODE. k: entries a position.
        base: the baseline's rows of the same positions, whose ids the answer should hold too; () asks for none.
    """

    ids: Sequence[int]
    start: int
    lane: Lane
    k: int
    base: Sequence[TopKRow] = ()


class Asks(Protocol):
    """The session, as a server's file sees it."""

    async def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any: ...

    async def model_name(self, *, timeout_s: float | None = None) -> str: ...

    async def has_native(self) -> bool: ...


class Server(Protocol):
    """One kind of server.

    Attributes:
        name: the engine's, as its reader of pages has it.
        asked_ids: ids that a request may name so that they are in the answer; 0 for a kind that takes none.
    """

    name: str
    asked_ids: int

    async def score(self, ask: Asks, question: Question) -> list[TopKRow]:
        """The tops of each position.

        Raises:
            BadAnswer: kind "not_here" where this kind of server has no such lane, else what is wrong with the answer.
        """
        ...


async def first_that_scores(servers: Sequence[Server], ask: Asks, question: Question) -> tuple[Server, list[TopKRow]]:
    """The first kind of server whose way of asking gives rows, and the rows.

    Raises:
        BadAnswer: none does; the reason that says most.
    """
    reason = BadAnswer("no known kind of server scores a given text so", kind=NOT_HERE)
    for server in servers:
        try:
            return server, await server.score(ask, question)
        except BadAnswer as e:
            # What another kind's address said (404) is worth less than what is wrong with an answer.
            if reason.kind == NOT_HERE or reason.status in _ABSENT:
                reason = e
            if e.kind == "degenerate_logprobs":
                break
    raise reason


def missing_ids(row: TopKRow, base: TopKRow) -> list[int]:
    """Ids of the base's row that a row lacks, most likely first."""
    here = set(row.ids)
    return [i for i in base.ids if i not in here]


def lost_mass(row: TopKRow, base: TopKRow) -> float:
    """The base's mass in ids that a row lacks: it could only be compared as one rest."""
    here = set(row.ids)
    return math.fsum(math.exp(x) for i, x in zip(base.ids, base.logprobs, strict=True) if i not in here)


def joined(row: TopKRow, more: Mapping[int, float]) -> TopKRow:
    """A row with further entries of the same position; what the row itself says of an id stands."""
    found = dict(more) | dict(zip(row.ids, row.logprobs, strict=True))
    ranked = sorted(found.items(), key=lambda entry: -entry[1])
    return TopKRow(tuple(i for i, _ in ranked), tuple(x for _, x in ranked))


def refuse_alike(rows: Sequence[TopKRow], k: int) -> None:
    """Refuse rows that no text can have: what servers give whose numbers come from a draft model or a finished sampler.

    Raises:
        BadAnswer: one entry of no doubt at every position where `k` were asked for, or one top at all of them.
    """
    kind = "degenerate_logprobs"
    if k > 1 and len(rows) >= _FEW_POSITIONS and all(len(r.ids) == 1 and abs(r.logprobs[0]) < _NO_DOUBT for r in rows):
        raise BadAnswer(
            f"degenerate logprobs: one entry of probability 1 at all {len(rows)} positions where {k} were asked for "
            "(a server that speculates, or gives what its sampler left)",
            kind=kind,
        )
    if len(rows) >= _ALIKE_POSITIONS and all(r == rows[0] for r in rows):
        raise BadAnswer(f"degenerate logprobs: the same top at all {len(rows)} positions", kind=kind)


#: Positions from which on "all alike" is no chance.
_FEW_POSITIONS, _ALIKE_POSITIONS = 2, 8
_NO_DOUBT = 1e-6
