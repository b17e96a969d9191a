"""E2M1 elements as llama.cpp rounds them: to the nearest, a tie toward zero, and never to -0 (OCP rounds half to even).

The reference takes the first of 16 values at least distance, in the order 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, ... (doubled
values), with distances in float32. Between 0 and 6 scales they are exact, so that comparing with the midpoints gives
the same code. Far beyond, where a scale saturates, distances become equal and smaller codes win, down to 0.
Source: ggml-quants.c best_index_mxfp4, llama.cpp b11434.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvgate.formats.numbers import FLOAT_SPECS

if TYPE_CHECKING:
    from kvgate.formats.xp import Array, Namespace

VALUES = FLOAT_SPECS["e2m1"].values
#: In scales: from here on float32 distances to 0 and to 6 begin to look alike (at 2**20 the last place is 1/16).
FAR = 2.0**18
MIDPOINTS = tuple((a + b) / 2 for a, b in pairwise(VALUES[:8]))
#: Quarters beyond the last midpoint.
LAST = int(4 * MIDPOINTS[-1]) + 1


def _nearest(quarters: int) -> int:
    code = sum(abs(quarters) > 4 * m for m in MIDPOINTS)
    return code + 8 if quarters < 0 and code else code


#: The code for each number of quarters, -LAST to LAST.
NEAREST = tuple(_nearest(q) for q in range(-LAST, LAST + 1))


def without_nan(x: Array, amax: Array, xp: Namespace) -> tuple[Array, Array]:
    """A NaN counts as 0, as in the reference, whose comparisons it never wins."""
    if not xp.any(xp.isnan(amax)):
        return x, amax
    x = xp.where(xp.isnan(x), 0.0, x)
    return x, xp.absmax(x)


def codes_of(x: Array, scale: Array, xp: Namespace) -> Array:
    """u8 codes of x by a scale [n, 1] that is not 0."""
    scaled = xp.divide(x, scale)
    if xp.any(xp.absmax(scaled) > FAR):
        codes = _by_distance(x, scale, xp)
        return codes | xp.cast((scaled < 0) & (codes > 0), "u8") * 8
    # Midpoints are multiples of a quarter, and count only if exceeded: four times the value, rounded away from zero.
    quarters = xp.copysign(xp.minimum(xp.ceil(xp.abs(scaled) * 4), LAST), scaled)
    return xp.take(xp.constant(NEAREST, "u8"), xp.cast(quarters, "i32") + LAST)


def _by_distance(x: Array, scale: Array, xp: Namespace) -> Array:
    size = xp.abs(x)
    codes, best = xp.cast(size * 0, "u8"), size
    for code in range(1, 8):
        distance = xp.abs(scale * VALUES[code] - size)
        nearer = distance < best
        codes, best = xp.where(nearer, code, codes), xp.where(nearer, distance, best)
    return codes


def bound(x: Array, scale: Array, xp: Namespace) -> Array:
    """Half the distance between the neighbours of |x|/scale; beyond 6, what is cut off. `scale` may be 0."""
    size = xp.abs(x)
    gap = 0.25 + 0.25 * xp.cast(size >= 2 * scale, "f32") + 0.5 * xp.cast(size >= 4 * scale, "f32")
    bound = xp.where(size > 6 * scale, size - 6 * scale, gap * scale)
    return xp.where(size > FAR * scale, size, bound)
