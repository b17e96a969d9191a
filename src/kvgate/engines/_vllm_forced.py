"""The decode lane over vLLM's server: a given text, one step of the engine a token.

The request names the tokens to be chosen (`workers/vllm_forced.py` does that inside vLLM), and vLLM returns the top of
the distribution that each of them was chosen from, computed before the choice was forced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvgate.core.engine import TopKRow
from kvgate.core.errors import BadAnswer
from kvgate.engines._topk import row_of

#: As in the worker, which cannot be imported here.
KEY: Final = "kvgate_forced"
_PREFIX: Final = "token_id:"


def forced_body(model: str, ids: Sequence[int], start: int, k: int) -> dict[str, Any]:
    """Request for the tops of tokens `start`.. of a text.

    The token before `start` is forced too: a prompt's last position is computed with the prompt, which is no decode
    step.
    """
    first = max(1, start - 1)
    return {
        "model": model,
        "prompt": list(ids[:first]),
        "max_tokens": len(ids) - first,
        "temperature": 0.0,
        "logprobs": k,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
        "vllm_xargs": {KEY: list(ids[first:])},
    }


def forced_rows(answer: Any, ids: Sequence[int], start: int) -> list[TopKRow]:
    """The rows of such an answer.

    Raises:
        BadAnswer: no such rows, or other tokens than were named: nothing was forced.
    """
    first = max(1, start - 1)
    try:
        said = answer["choices"][0]["logprobs"]
        tokens, tops = [_id(t) for t in said["tokens"]], said["top_logprobs"]
        rows = [row_of([(_id(t), x) for t, x in _pairs(top)]) for top in tops[start - first :]]
    except (LookupError, TypeError, ValueError):
        raise BadAnswer("no logprobs with token ids in the answer", kind="bad_shape") from None
    if tokens != list(ids[first:]):
        raise BadAnswer("vLLM chose other tokens than the text's: nothing was forced", kind="bad_shape")
    if len(rows) != len(ids) - start:
        raise BadAnswer(f"{len(rows)} positions in the answer, {len(ids) - start} asked for", kind="bad_shape")
    return rows


def _pairs(top: Any) -> list[tuple[str, float]]:
    if not isinstance(top, Mapping):
        raise TypeError("no object")
    return [(str(t), float(x)) for t, x in top.items()]


def _id(token: Any) -> int:
    text = str(token)
    if not text.startswith(_PREFIX):
        raise ValueError(text)
    return int(text.removeprefix(_PREFIX))
