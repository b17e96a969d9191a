"""Several tests at once: Holm's step-down. Needed where any one finding would fail a candidate.

Rules that must all pass (non-inferiority, ceilings) need no correction: the chance of a false PASS is at most that of
each of them.
"""

from __future__ import annotations

from collections.abc import Mapping


def holm_adjusted(p_values: Mapping[str, float]) -> Mapping[str, float]:
    """Holm's adjusted p values: adjusted <= alpha exactly where Holm rejects at alpha.

    Raises:
        ValueError: a p value outside 0..1.
    """
    for name, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"p value {p} of {name!r} is not between 0 and 1")
    adjusted: dict[str, float] = {}
    largest = 0.0
    for i, name in enumerate(sorted(p_values, key=lambda k: (p_values[k], k))):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def holm(p_values: Mapping[str, float], alpha: float) -> Mapping[str, bool]:
    """Which tests are rejected with a family-wise error of at most alpha."""
    return {name: p <= alpha for name, p in holm_adjusted(p_values).items()}
