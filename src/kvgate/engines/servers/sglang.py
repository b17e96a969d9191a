"""SGLang's server: `/generate` with `return_logprob`, one request a text; `token_ids_logprob` for the base's ids.

Source: SGLang 0.5.23, managers/io_struct.py and managers/tokenizer_manager.py (read, not run here).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvgate.core.engine import Lane, TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines import _topk
from kvgate.engines.servers._server import NOT_HERE, Asks, Question, joined

#: Positions of one request that names ids: the ids of all of them are returned at each.
_CHUNK = 64


class Sglang:
    """See the module."""

    name = "sglang"
    #: No cap in its source; the ids of a chunk of positions stay under this.
    asked_ids = 4096

    async def score(self, ask: Asks, question: Question) -> list[TopKRow]:
        if question.lane is not Lane.PREFILL_TOPK:
            raise BadAnswer("SGLang's server takes no text to decode: it answers with its own tokens", kind=NOT_HERE)
        if not question.base:
            return await self._rows(ask, question, question.start, len(question.ids))
        rows: list[TopKRow] = []
        for start in range(question.start, len(question.ids), _CHUNK):
            rows += await self._rows(ask, question, start, min(start + _CHUNK, len(question.ids)))
        return rows

    def body(self, ids: Sequence[int], start: int, k: int, wanted: Sequence[int]) -> dict[str, Any]:
        """Request for the tops of tokens `start`.. of a text; `wanted` ids are named at each."""
        return _topk.sglang_body(ids, start, k, wanted)

    def rows_of(self, answer: Any, ids: Sequence[int], start: int) -> list[TopKRow]:
        """The tops in such an answer."""
        return _topk.sglang_rows(answer, ids, start)

    async def _rows(self, ask: Asks, question: Question, start: int, end: int) -> list[TopKRow]:
        ids = question.ids[:end]
        base = question.base[start - question.start : end - question.start]
        wanted = sorted({i for row in base for i in row.ids})[: self.asked_ids]
        answer = await ask.post_json("/generate", self.body(ids, start, question.k, wanted))
        rows = self.rows_of(answer, ids, start)
        if not base:
            return rows
        named = _topk.sglang_named(answer, ids, start)
        # Only the base's own ids of each position: those of its neighbours would make tops of different length.
        return [
            joined(row, {i: x for i, x in more.items() if i in set(theirs.ids)})
            for row, more, theirs in zip(rows, named, base, strict=True)
        ]


SERVER = Sglang()
