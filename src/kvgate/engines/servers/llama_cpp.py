"""llama.cpp's server: `/completion`, one token a request; its slot's cache makes each step a decode.

Source: llama.cpp b11549, tools/server README. It gives no log-probabilities of prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.core.engine import Lane, TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines import _topk
from kvgate.engines.servers._server import NOT_HERE, Asks, Question


class LlamaCpp:
    """See the module."""

    name = "llama_cpp"
    #: `n_probs` has no cap, so that the top itself is as long as one likes.
    asked_ids = 0

    async def score(self, ask: Asks, question: Question) -> list[TopKRow]:
        if question.lane is not Lane.FORCED_DECODE:
            raise BadAnswer("llama.cpp's server gives no logprobs of prompt tokens", kind=NOT_HERE)
        if not await ask.has_native():
            raise BadAnswer("this server has no /completion that goes on token by token", kind=NOT_HERE)
        rows: list[TopKRow] = []
        for end in range(question.start, len(question.ids)):
            answer = await ask.post_json("/completion", _topk.native_body(question.ids[:end], question.k))
            if rows:
                _refuse_recomputed(answer)
            rows.append(_topk.native_row(answer))
        return rows


def _refuse_recomputed(answer: Any) -> None:
    """A step that computed more than its one token was no decode: its cache was gone, or another client had its slot.

    Raises:
        BadAnswer: so it was. A server that does not tell is believed.
    """
    timings = answer.get("timings") if isinstance(answer, Mapping) else None
    n = timings.get("prompt_n") if isinstance(timings, Mapping) else None
    if isinstance(n, int) and n > 1:
        raise BadAnswer(
            f"a step computed {n} tokens instead of one: the slot's cache was not kept (a cache without prompt reuse, "
            "or another client on slot 0), so this is no decode",
            kind="not_decoded",
        )


SERVER = LlamaCpp()
