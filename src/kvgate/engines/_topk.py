"""Tops of distributions over a given text, in the shapes that servers send; `servers/` has who is asked how.

vLLM:      `/v1/completions` with `prompt_logprobs`, one request a text (prefill).
SGLang:    `/generate` with `return_logprob` and `logprob_start_len`, one request a text (prefill).
llama.cpp: `/completion`, one token a request, the text growing by one: its prompt cache makes each a decode step.
Source: vLLM 0.32 and SGLang 0.5.23 protocols, llama.cpp b11549 server README; see docs/suites.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.core.engine import TopKRow
from kvgate.core.errors import BadAnswer

#: As in `_logprobs`: float32 softmaxes sum to a little over 1.
_OVER_ONE = 1e-3
#: Below this a log-probability means "none" (vLLM's floor is -9999, llama.cpp's the least float32).
_NO_MASS = -9e3


def vllm_body(model: str, ids: Sequence[int], k: int) -> dict[str, Any]:
    """Request for the prompt's own log-probabilities. vLLM does not read its prefix cache for these."""
    return {"model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": k}


def vllm_rows(answer: Any, ids: Sequence[int], start: int) -> list[TopKRow]:
    """Rows of positions start.. from `choices[0].prompt_logprobs`: a list with null first, then {id: {logprob}}."""
    try:
        listed = answer["choices"][0]["prompt_logprobs"]
    except (LookupError, TypeError):
        listed = None
    if not isinstance(listed, list):
        raise BadAnswer("no prompt_logprobs in the answer", kind="bad_shape")
    _expect(len(listed), len(ids))
    rows = []
    for entry in listed[start:]:
        if not isinstance(entry, Mapping):
            raise BadAnswer("a prompt_logprobs entry is no object", kind="bad_shape")
        try:
            rows.append(_row((int(key), value["logprob"]) for key, value in entry.items()))
        except (LookupError, TypeError, ValueError):
            raise BadAnswer("a prompt_logprobs entry has no logprob", kind="bad_shape") from None
    return rows


def vllm_ids_body(model: str, ids: Sequence[int], wanted: Sequence[int]) -> dict[str, Any]:
    """Request for the log-probabilities of `wanted` after `ids`."""
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": len(wanted),
        "logprob_token_ids": list(wanted),
        "return_tokens_as_token_ids": True,
    }


def vllm_ids_row(answer: Any, wanted: Sequence[int]) -> dict[int, float]:
    """Log-probabilities by id of such an answer, of those that were wanted.

    Raises:
        BadAnswer: none of them is there, or the numbers are none.
    """
    try:
        top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        found = {int(str(t).removeprefix("token_id:")): float(x) for t, x in top.items()}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise BadAnswer("no logprobs of the token ids that were named", kind="bad_shape") from None
    kept = {i: x for i, x in found.items() if i in set(wanted)}
    if not kept:
        raise BadAnswer("none of the token ids that were named is in the answer", kind="bad_shape")
    return _massive(kept)


def sglang_body(ids: Sequence[int], start: int, k: int, wanted: Sequence[int] = ()) -> dict[str, Any]:
    """Request for input log-probabilities from the position before `start` on; `wanted` ids are named at each."""
    sampling = {"max_new_tokens": 1, "temperature": 0.0}
    named = {"token_ids_logprob": list(wanted)} if wanted else {}
    return named | {
        "input_ids": list(ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": max(start - 1, 0),
        "top_logprobs_num": k,
    }


def sglang_rows(answer: Any, ids: Sequence[int], start: int) -> list[TopKRow]:
    """Rows from `meta_info.input_top_logprobs`: a list a position of [logprob, id, text], null for the first."""
    try:
        listed = answer["meta_info"]["input_top_logprobs"]
    except (LookupError, TypeError):
        listed = None
    if not isinstance(listed, list):
        raise BadAnswer("no input_top_logprobs in the answer", kind="bad_shape")
    wanted = len(ids) - start
    if len(listed) < wanted:
        _expect(len(listed), wanted)
    rows = []
    for entry in listed[len(listed) - wanted :]:
        try:
            rows.append(_row((int(pair[1]), pair[0]) for pair in entry))
        except (LookupError, TypeError, ValueError):
            raise BadAnswer("an input_top_logprobs entry has no known shape", kind="bad_shape") from None
    return rows


def sglang_named(answer: Any, ids: Sequence[int], start: int) -> list[dict[int, float]]:
    """Log-probabilities by id of each position from `meta_info.input_token_ids_logprobs`, shaped as the tops."""
    try:
        listed = answer["meta_info"]["input_token_ids_logprobs"]
    except (LookupError, TypeError):
        listed = None
    wanted = len(ids) - start
    if not isinstance(listed, list) or len(listed) < wanted:
        raise BadAnswer("no input_token_ids_logprobs of each position in the answer", kind="bad_shape")
    try:
        tail = listed[len(listed) - wanted :]
        return [_massive({int(pair[1]): float(pair[0]) for pair in entry}) for entry in tail]
    except (LookupError, TypeError, ValueError):
        raise BadAnswer("an input_token_ids_logprobs entry has no known shape", kind="bad_shape") from None


def native_body(ids: Sequence[int], k: int) -> dict[str, Any]:
    """Request for one step of llama.cpp after `ids`, on the slot that still holds the text so far.

    The grammar keeps half a character from being chosen, for which the server gives no probabilities; those it gives
    are from before the grammar.
    """
    one = {"n_predict": 1, "n_probs": k, "temperature": 0.0, "cache_prompt": True, "id_slot": 0}
    return {"prompt": list(ids), **one, "grammar": "root ::= [ -~]+"}


def native_row(answer: Any) -> TopKRow:
    """The one row of such an answer."""
    try:
        top = answer["completion_probabilities"][0]["top_logprobs"]
        return _row((int(t["id"]), t["logprob"]) for t in top)
    except (LookupError, TypeError, ValueError):
        raise BadAnswer("no completion_probabilities with ids in the answer", kind="bad_shape") from None


def row_of(pairs: Sequence[tuple[int, float]]) -> TopKRow:
    """A row of (id, logprob), checked as those of the servers above; errors as `vllm_rows`."""
    return _row(pairs)


def _massive(found: dict[int, float]) -> dict[int, float]:
    """Without tokens that have no mass at all, which are sent as -inf or a huge negative number.

    Raises:
        BadAnswer: no number, or over 0.
    """
    if any(math.isnan(x) or x > _OVER_ONE for x in found.values()):
        raise BadAnswer("degenerate logprobs: no number, or over 0", kind="degenerate_logprobs")
    return {i: x for i, x in found.items() if x > _NO_MASS}


def _expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise BadAnswer(f"{found} positions in the answer, {wanted} asked for", kind="bad_shape")


def _row(pairs: Any) -> TopKRow:
    """A row, most likely first.

    Raises:
        BadAnswer: no number, over 0, a token twice, or mass over 1.
    """
    found = sorted(((i, float(x)) for i, x in pairs), key=lambda e: -e[1])
    values = [x for _, x in found]
    # A token without any mass is sent as -inf or as a huge negative number; it lists nothing.
    kept = [(i, x) for i, x in found if x > _NO_MASS]
    kind = "degenerate_logprobs"
    if not kept or any(math.isnan(x) for x in values) or values[0] > _OVER_ONE:
        raise BadAnswer("degenerate logprobs: no number, or over 0", kind=kind)
    if len({i for i, _ in kept}) != len(kept):
        raise BadAnswer("degenerate logprobs: a token twice in one top", kind=kind)
    if math.fsum(math.exp(x) for _, x in kept) > 1 + _OVER_ONE:
        raise BadAnswer("degenerate logprobs: a top sums to more than 1", kind=kind)
    if len(kept) > 1 and all(x == 0 for _, x in kept):
        raise BadAnswer("degenerate logprobs: all 0.0", kind=kind)
    return TopKRow(tuple(i for i, _ in kept), tuple(x for _, x in kept))
