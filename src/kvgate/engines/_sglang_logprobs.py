"""Log-probabilities of SGLang's own `/generate`: of a given text at once, and of its next token.

    prefill   one request a text; `logprob_start_len` 0 keeps the radix cache out: the engine matches no prefix that is
              longer than it (srt/managers/schedule_batch.py, _compute_max_prefix_len)
    stepwise  one request a token, the text growing by one. The radix cache holds what came before, as it is stored;
              only the last token is computed, by the extend kernel, not by the decode kernel, which decodes only what
              the engine chose itself. `meta_info.cached_tokens` proves that one token was computed.

A page of several tokens is cached whole or not at all, so that a step there would compute several tokens: refused.
Source: sglang 0.5.23 srt/managers/io_struct.py GenerateReqInput, tokenizer_manager.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kvgate.core.engine import Lane, TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines._topk import row_of, sglang_rows
from kvgate.engines.servers._server import Asks, Question
from kvgate.engines.servers.sglang import Sglang


class PastTheCache(Sglang):
    """SGLang as a server whose every request has a salt, so that no answer comes from another's cache.

    Args:
        refused: why log-probabilities of this server mean nothing; "" where they do.
    """

    def __init__(self, refused: Callable[[], Awaitable[str]]) -> None:
        self._refused = refused

    async def score(self, ask: Asks, question: Question) -> list[TopKRow]:
        """As `Server.score`; both lanes."""
        if why := await self._refused():
            raise BadAnswer(why, kind="degenerate_logprobs")
        if question.lane is Lane.FORCED_DECODE:
            return await self._steps(ask, question)
        return await super().score(ask, question)

    def body(self, ids: Sequence[int], start: int, k: int, wanted: Sequence[int]) -> dict[str, Any]:
        return prefill_body(ids, k, _salt(), wanted)

    def rows_of(self, answer: Any, ids: Sequence[int], start: int) -> list[TopKRow]:
        return prefill_rows(answer, ids, start)

    async def _steps(self, ask: Asks, question: Question) -> list[TopKRow]:
        ids, start, salt = question.ids, question.start, _salt()
        if start > 1:
            # What stands before the first scored token is filled in as one prompt; its last position is no step.
            await ask.post_json("/generate", step_body(ids[: start - 1], question.k, salt))
        rows = []
        for n in range(start, len(ids)):
            rows.append(step_row(await ask.post_json("/generate", step_body(ids[:n], question.k, salt)), n))
        return rows


def prefill_body(ids: Sequence[int], k: int, salt: str, wanted: Sequence[int] = ()) -> dict[str, Any]:
    """Request for the tops of every token of a text but the first; `wanted` ids are named at each."""
    named = {"token_ids_logprob": list(wanted)} if wanted else {}
    return _body(ids, k, salt) | {"logprob_start_len": 0} | named


def prefill_rows(answer: Any, ids: Sequence[int], start: int) -> list[TopKRow]:
    """Rows of tokens `start`.. of such an answer.

    Raises:
        BadAnswer: no such rows, other tokens than the text's, or a part of the text came from the cache.
    """
    meta = _meta(answer)
    if cached := _cached(meta):
        raise BadAnswer(
            f"{cached} tokens of the text came from the prefix cache: their log-probabilities were not computed",
            kind="stale",
        )
    tokens = meta.get("input_token_logprobs")
    if isinstance(tokens, list) and [_id(t) for t in tokens[start - len(ids) :]] != list(ids[start:]):
        raise BadAnswer("SGLang scored other tokens than the text's", kind="bad_shape")
    return sglang_rows(answer, ids, start)


def step_body(ids: Sequence[int], k: int, salt: str) -> dict[str, Any]:
    """Request for the top of the token after `ids`."""
    return _body(ids, k, salt) | {"logprob_start_len": -1}


def step_row(answer: Any, n_tokens: int) -> TopKRow:
    """The one row of such an answer to a text of `n_tokens`.

    Raises:
        BadAnswer: no such row, or more than one token was computed to get it.
    """
    meta = _meta(answer)
    computed = n_tokens - _cached(meta)
    if computed != 1:
        raise BadAnswer(
            f"a step computed {computed} tokens at once: without a radix cache in pages of one token SGLang goes "
            "through no given text step by step",
            kind="not_here",
        )
    tops = meta.get("output_top_logprobs")
    try:
        return row_of([(int(pair[1]), float(pair[0])) for pair in tops[0]])  # type: ignore[index]
    except (LookupError, TypeError, ValueError):
        raise BadAnswer("no output_top_logprobs in the answer", kind="bad_shape") from None


def _salt() -> str:
    return secrets.token_hex(8)


def _body(ids: Sequence[int], k: int, salt: str) -> dict[str, Any]:
    return {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": k,
        "cache_salt": salt,
    }


def _meta(answer: Any) -> Mapping[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping):
        raise BadAnswer("no meta_info in the answer", kind="bad_shape")
    reason = meta.get("finish_reason")
    if isinstance(reason, Mapping) and reason.get("type") == "abort":
        raise BadAnswer(f"SGLang gave the request up: {str(reason.get('message', ''))[:200]}", kind="aborted")
    return meta


def _cached(meta: Mapping[str, Any]) -> int:
    """Tokens that came from the cache.

    Raises:
        BadAnswer: the server does not say.
    """
    cached = meta.get("cached_tokens")
    if not isinstance(cached, int) or isinstance(cached, bool) or cached < 0:
        raise BadAnswer("the answer does not say how many tokens came from the prefix cache", kind="bad_shape")
    return cached


def _id(entry: Any) -> int | None:
    try:
        return int(entry[1])
    except (LookupError, TypeError, ValueError):
        return None
