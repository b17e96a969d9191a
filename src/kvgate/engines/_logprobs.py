"""Log-probabilities in the shapes that servers send, and the refusal of those that mean nothing.

Shapes: OpenAI chat (`content: [...]`), OpenAI completions (`tokens`, `token_logprobs`, `top_logprobs`), llama.cpp
(`completion_probabilities`, and `content` in completions too). All natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvgate.core.engine import TokenLogprobs
from kvgate.core.errors import BadAnswer

#: A softmax in float32 may sum to a little over 1: llama.cpp was seen to return 1.00016 over a whole vocabulary.
_OVER_ONE = 1e-3
#: What servers put for "none" (vLLM's floor is -9999); one token may be that unlikely, every chosen one may not.
_NO_MASS = -9e3
#: Positions that must agree in every number before "identical everywhere" is no coincidence of a repetition loop.
_IDENTICAL_POSITIONS = 4


class Row(NamedTuple):
    """One generated position as the server described it; `token_id` is None where it gave none."""

    logprobs: TokenLogprobs
    token_id: int | None


def read_rows(value: Any) -> list[Row]:
    """Rows of any of the known shapes; [] for null.

    Raises:
        BadAnswer: another shape.
    """
    if value is None:
        return []
    if isinstance(value, Mapping):
        if isinstance(value.get("content"), list):
            return [_row(entry) for entry in value["content"]]
        if value.get("content", 0) is None:
            return []
        if isinstance(value.get("token_logprobs"), list):
            return _legacy(value)
    if isinstance(value, list):
        return [_row(entry) for entry in value]
    raise BadAnswer("logprobs have no known shape", kind="bad_shape")


def _row(entry: Any) -> Row:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("token"), str):
        raise BadAnswer("a logprobs entry has no token", kind="bad_shape")
    top = entry.get("top_logprobs") or ()
    if not isinstance(top, Sequence) or isinstance(top, str):
        raise BadAnswer("top_logprobs is no list", kind="bad_shape")
    pairs = []
    for t in top:
        if not isinstance(t, Mapping) or not isinstance(t.get("token"), str):
            raise BadAnswer("a top_logprobs entry has no token", kind="bad_shape")
        pairs.append((t["token"], _number(t.get("logprob"))))
    token_id = entry.get("id")
    return Row(
        TokenLogprobs(entry["token"], _number(entry.get("logprob")), tuple(pairs)),
        token_id if isinstance(token_id, int) and not isinstance(token_id, bool) else None,
    )


def _legacy(value: Mapping[str, Any]) -> list[Row]:
    numbers = value["token_logprobs"]
    tokens = value.get("tokens") or [""] * len(numbers)
    tops = value.get("top_logprobs") or [None] * len(numbers)
    if not (isinstance(tokens, list) and isinstance(tops, list) and len(tokens) == len(numbers) == len(tops)):
        raise BadAnswer("tokens, token_logprobs and top_logprobs differ in length", kind="bad_shape")
    rows = []
    for token, number, top in zip(tokens, numbers, tops, strict=True):
        if not isinstance(top, Mapping | None):
            raise BadAnswer("top_logprobs holds no objects", kind="bad_shape")
        pairs = tuple((str(t), _number(x)) for t, x in (top or {}).items())
        rows.append(Row(TokenLogprobs(str(token), _number(number), pairs), None))
    return rows


def _number(x: Any) -> float:
    return float(x) if isinstance(x, int | float) and not isinstance(x, bool) else math.nan


def check_rows(rows: Sequence[Row]) -> None:
    """Refuse log-probabilities that no model can have meant.

    Raises:
        BadAnswer: not finite, over 0, all 0.0, chosen tokens without any mass, a top list that sums to more than 1, or
            identical everywhere.
    """
    kind = "degenerate_logprobs"
    positions = [row.logprobs for row in rows]
    for i, p in enumerate(positions):
        values = [p.logprob, *(x for _, x in p.top)]
        if not all(math.isfinite(x) for x in values):
            raise BadAnswer(f"degenerate logprobs: not a finite number at generated position {i}", kind=kind)
        if max(values) > _OVER_ONE:
            raise BadAnswer(f"degenerate logprobs: {max(values):g} is over 0 at generated position {i}", kind=kind)
    alternatives = any(len(p.top) > 1 for p in positions)
    if positions and (alternatives or len(positions) > 1) and all(_all_zero(p) for p in positions):
        raise BadAnswer(f"degenerate logprobs: all 0.0 at {len(positions)} positions", kind=kind)
    if len(positions) > 1 and all(p.logprob <= _NO_MASS for p in positions):
        n = len(positions)
        raise BadAnswer(f"degenerate logprobs: the chosen token has no mass at all {n} positions", kind=kind)
    for i, p in enumerate(positions):
        mass = math.fsum(math.exp(x) for _, x in p.top)
        if mass > 1 + _OVER_ONE:
            raise BadAnswer(f"degenerate logprobs: top list sums to {mass:.4g} at position {i}", kind=kind)
    shapes = {(p.logprob, tuple(x for _, x in p.top)) for p in positions}
    if len(positions) >= _IDENTICAL_POSITIONS and len(shapes) == 1:
        raise BadAnswer(f"degenerate logprobs: identical at all {len(positions)} positions", kind=kind)


def _all_zero(p: TokenLogprobs) -> bool:
    return p.logprob == 0 and all(x == 0 for _, x in p.top)
