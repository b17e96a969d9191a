"""How many sentences fill a length? Fitted with the model's own tokenizer, by bisection on the number of sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Fit(NamedTuple):
    """The largest number of units whose text has at most `target` tokens, and what it has."""

    units: int
    tokens: int


def fit_units(count: Callable[[int], int], target: int, guess: int) -> Fit | None:
    """The most units that fit in `target` tokens; None if not even none does.

    Args:
        count: tokens of the whole text with n units; grows with n.
        guess: where to look first. Each call tokenises the whole text, so a good guess saves most of the time.
    """
    at_least, least_tokens = 0, count(0)
    if least_tokens > target:
        return None
    too_many: int | None = None
    n = max(1, guess)
    while too_many is None or too_many - at_least > 1:
        tokens = count(n)
        if tokens <= target:
            at_least, least_tokens = n, tokens
        else:
            too_many = n
        n = _next(at_least, least_tokens, too_many, target, tokens, n)
    return Fit(at_least, least_tokens)


def _next(at_least: int, least_tokens: int, too_many: int | None, target: int, tokens: int, n: int) -> int:
    """Step by the average size of a unit, kept strictly inside what is still open."""
    size = max(1.0, tokens / max(1, n))
    step = int((target - least_tokens) / size)
    low, high = at_least + 1, (too_many - 1 if too_many is not None else max(2 * at_least, at_least + 1))
    return max(low, min(high, at_least + step if step > 0 else low))
