"""Lloyd-Max: the levels of a scalar quantizer with the least mean square error for a given density.

Levels are the means of the density over their cells, cell edges lie halfway between levels; iterated until nothing
moves. Densities: N(0, 1), the coordinate of a random point on the unit sphere, the angles of PolarQuant. Moments of a
cell come from Gauss-Legendre quadrature (64 nodes; the densities are smooth). `vllm_levels` repeats vLLM's own, coarser
integration, because its stored codes depend on it.

Source: S. P. Lloyd, Least squares quantization in PCM, 1982; J. Max, 1960; vLLM 0.32.0 turboquant/centroids.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import erf, exp, lgamma, log, pi, sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Density = Callable[[Floats], Floats]

#: Where the normal density is cut: 10**-32 of it lies beyond.
_NORMAL_END = 12.0
_NODES = 64


class Levels(NamedTuple):
    """Levels in ascending order, the edges between them, and the mean square error under the density."""

    levels: tuple[float, ...]
    edges: tuple[float, ...]
    error: float


@cache
def normal_levels(count: int) -> Levels:
    """The best `count` levels for N(0, 1)."""
    import numpy as np

    return solve(lambda x: np.exp(-0.5 * x * x) / sqrt(2 * pi), -_NORMAL_END, _NORMAL_END, count, spread=1.0)


@cache
def sphere_levels(count: int, dim: int) -> Levels:
    """The best levels for one coordinate of a uniform random point on the unit sphere in `dim` > 2 dimensions.

    Density: G(d/2) / (sqrt(pi) G((d-1)/2)) (1 - x^2)^((d-3)/2), which tends to N(0, 1/d).
    """
    import numpy as np

    factor = exp(lgamma(dim / 2) - lgamma((dim - 1) / 2)) / sqrt(pi)
    end = min(1.0, _NORMAL_END / sqrt(dim))

    def density(x: Floats) -> Floats:
        return np.asarray(factor * np.maximum(0.0, 1 - x * x) ** ((dim - 3) / 2))

    return solve(density, -end, end, count, spread=1 / sqrt(dim))


@cache
def angle_levels(count: int, level: int) -> Levels:
    """The best levels for PolarQuant's angle of a recursion level >= 2, on [0, pi/2].

    Density proportional to sin(2 t)^(2^(level-1) - 1): the angle between the norms of two independent normal vectors of
    2^(level-1) dimensions each. Source: arXiv 2502.02617, Lemma 2.
    """
    import numpy as np

    power = 2 ** (level - 1) - 1

    def shape(t: Floats) -> Floats:
        return np.asarray(np.sin(2 * t) ** power)

    whole = _moment(shape, 0.0, pi / 2, 0)
    return solve(lambda t: shape(t) / whole, 0.0, pi / 2, count, spread=0.5 / sqrt(power + 1))


def solve(density: Density, low: float, high: float, count: int, *, spread: float) -> Levels:
    """Iterate levels and edges from evenly spaced levels around the middle.

    Args:
        density: integrates to 1 over [low, high].
        spread: standard deviation, roughly; where the first levels lie.
    """
    import numpy as np

    middle = (low + high) / 2
    reach = min((high - low) / 2, 3 * spread)
    levels = middle + reach * ((np.arange(count) + 0.5) / count * 2 - 1)
    for _ in range(20_000):
        edges = (levels[1:] + levels[:-1]) / 2
        mass, mean = _cells(density, low, edges, high)
        moved = mean / mass
        done = float(np.max(np.abs(moved - levels))) < 1e-13 * spread
        levels = moved
        if done:
            break
    edges = (levels[1:] + levels[:-1]) / 2
    mass, mean = _cells(density, low, edges, high)
    square = _moment(density, low, high, 2)
    error = square - float(np.sum(2 * levels * mean - levels * levels * mass))
    return Levels(tuple(map(float, levels)), tuple(map(float, edges)), error)


@cache
def vllm_levels(dim: int, bits: int) -> tuple[float, ...]:
    """The float32 centroids of vLLM's `turboquant_*` for N(0, 1/dim).

    Trapezoids of 200 steps a cell, outer edges at 10.5 standard deviations, levels from an even grid within 3.5, at
    most 200 rounds or until nothing moves by 1e-10; the last round's move is thrown away, as in the source.
    """
    import numpy as np

    sigma, count, steps = 1 / sqrt(dim), 1 << bits, 200
    low, high = -3.5 * sigma, 3.5 * sigma
    levels = low + (high - low) * (np.arange(count) + 0.5) / count
    for _ in range(200):
        edges = np.concatenate([[3 * low], (levels[:-1] + levels[1:]) / 2, [3 * high]])
        a, width = edges[:-1, None], (edges[1:] - edges[:-1]) / steps
        x = a + np.arange(steps + 1) * width[:, None]
        p = sqrt(dim / (2 * pi)) * np.exp(-x * x * dim / 2)
        weights = np.ones(steps + 1)
        weights[0] = weights[-1] = 0.5
        mass, mean = (p * weights).sum(1) * width, (x * p * weights).sum(1) * width
        moved = np.where(mass > 1e-15, mean / np.where(mass > 1e-15, mass, 1), levels)
        if np.max(np.abs(moved - levels)) < 1e-10:
            break
        levels = moved
    return tuple(map(float, levels.astype(np.float32)))


@cache
def normal_range_square(count: int) -> float:
    """E[(max - min)^2] of `count` independent N(0, 1) values.

    With F the normal distribution, P(min > a, max < b) = (F(b) - F(a))^n for a < b, and E[R^2] is twice the integral
    over a < b of P(min < a and max > b), summed here on a grid of 0.01.
    """
    import numpy as np

    grid = np.linspace(-9, 9, 1801)
    f = np.array([0.5 * (1 + erf(x / sqrt(2))) for x in grid])
    a, b = f[:, None], f[None, :]
    inside = 1 - (1 - a) ** count - b**count + np.maximum(b - a, 0) ** count
    upper = np.triu(np.ones_like(inside), 1) + 0.5 * np.eye(len(grid))
    return float(2 * np.sum(inside * upper) * (grid[1] - grid[0]) ** 2)


def normal_quantile(p: float) -> float:
    """x with P(N(0, 1) <= x) = p, by bisection."""
    low, high = -_NORMAL_END, _NORMAL_END
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * (1 + erf(middle / sqrt(2))) < p else (low, middle)
    return (low + high) / 2


def range_db(bits: int, group: int) -> float:
    """SQNR of asymmetric codes of `bits` over the range of `group` independent N(0, 1) values.

    The error is uniform over a step of (max - min) / (2^b - 1), so its square is step^2 / 12 on average, and the two
    extremes of a group are exact.
    """
    step_square = normal_range_square(group) / ((1 << bits) - 1) ** 2
    return db(step_square / 12 * (1 - 2 / group))


def float_db(fraction_bits: int) -> float:
    """SQNR of N(0, 1) values rounded to floating point with so many fraction bits, subnormals and overflow left out.

    In the binade [2^e, 2^(e+1)) the error is uniform over a step of 2^(e - fraction_bits).
    """
    error = 0.0
    for e in range(-24, 4):
        mass = erf(2.0 ** (e + 1) / sqrt(2)) - erf(2.0**e / sqrt(2))
        error += mass * 4.0 ** (e - fraction_bits) / 12
    return db(error)


def grid_db(positive: tuple[float, ...], group: int, scale_of: Callable[[float], float]) -> float:
    """SQNR of N(0, 1) values in groups, rounded to the nearest of +-`positive` times a scale that the largest decides.

    An integral over the largest magnitude of a group: the others are normal, cut off there.
    """
    import numpy as np

    x = np.linspace(0, 7, 7001)
    density = np.sqrt(2 / np.pi) * np.exp(-x * x / 2)
    below = np.cumsum(density) * (x[1] - x[0])
    levels = np.array(positive)
    edges = (levels[1:] + levels[:-1]) / 2
    total = weight = 0.0
    for i in range(400, 6000, 10):
        scale = scale_of(float(x[i]))
        square = (x - levels[np.searchsorted(edges, x / scale)] * scale) ** 2
        others = float((square[:i] * density[:i]).sum() / density[:i].sum())
        chance = float(density[i] * below[i] ** (group - 1))
        total += chance * ((group - 1) * others + float(square[i])) / group
        weight += chance
    return db(total / weight)


def db(error: float) -> float:
    """SQNR in dB of a unit-variance source at this mean square error."""
    return -10 * log(error) / log(10)


def _cells(density: Density, low: float, edges: Floats, high: float) -> tuple[Floats, Floats]:
    """Mass and first moment of the density over each cell."""
    import numpy as np

    nodes, weights = _quadrature()
    ends = np.concatenate([[low], edges, [high]])
    half, middle = (ends[1:] - ends[:-1]) / 2, (ends[1:] + ends[:-1]) / 2
    x = middle[:, None] + half[:, None] * nodes
    p = density(x) * weights * half[:, None]
    return p.sum(1), (x * p).sum(1)


def _moment(density: Density, low: float, high: float, power: int) -> float:
    """Integral of x^power times the density, cut into 64 pieces."""
    import numpy as np

    ends = np.linspace(low, high, 65)
    nodes, weights = _quadrature()
    half, middle = (ends[1:] - ends[:-1]) / 2, (ends[1:] + ends[:-1]) / 2
    x = middle[:, None] + half[:, None] * nodes
    return float(np.sum(x**power * density(x) * weights * half[:, None]))


@cache
def _quadrature() -> tuple[Floats, Floats]:
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights
