"""The quantizer's levels against published tables, sampling and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from kvgate.methods.lloyd_max import (
    angle_levels,
    float_db,
    normal_levels,
    normal_quantile,
    normal_range_square,
    range_db,
    sphere_levels,
)

#: J. Max, Quantizing for minimum distortion, 1960, table I: positive levels and mean square error for N(0, 1).
MAX_1960 = {
    2: ([0.7980], 0.3634),
    4: ([0.4528, 1.510], 0.1175),
    8: ([0.2451, 0.7560, 1.344, 2.152], 0.03454),
    16: ([0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
}


@pytest.mark.parametrize("count", MAX_1960)
def test_normal_levels_are_the_published_ones(count: int) -> None:
    """To the digits that were printed in 1960."""
    levels, error = MAX_1960[count]
    found = normal_levels(count)

    assert np.allclose(found.levels[count // 2 :], levels, rtol=0, atol=6e-4)
    assert np.allclose(found.levels, -np.array(found.levels[::-1]), rtol=0, atol=1e-12)
    assert found.error == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("found", [normal_levels(8), sphere_levels(16, 64), angle_levels(4, 3)], ids=["n", "s", "a"])
def test_no_small_move_of_a_level_helps(found: object, rng: np.random.Generator) -> None:
    """The stored error is a minimum: moving any level by a hundredth makes it larger."""
    levels = found.levels  # type: ignore[attr-defined]
    if len(levels) == 8:
        x, density = np.linspace(-8, 8, 160_001), None
        density = np.exp(-x * x / 2)
    elif len(levels) == 16:
        x = np.linspace(-1, 1, 160_001)
        density = (1 - x * x) ** 30.5
    else:
        x = np.linspace(0, np.pi / 2, 160_001)
        density = np.sin(2 * x) ** 3
    density = density / density.sum()

    def error(at: np.ndarray) -> float:
        nearest = at[np.searchsorted((at[1:] + at[:-1]) / 2, x)]
        return float(((x - nearest) ** 2 * density).sum())

    best = error(np.array(levels))
    assert best == pytest.approx(found.error, rel=1e-4)  # type: ignore[attr-defined]
    for i in range(len(levels)):
        for move in (0.01, -0.01):
            moved = np.array(levels)
            moved[i] += move * (levels[1] - levels[0])
            assert error(moved) > best


def test_the_sphere_tends_to_the_normal() -> None:
    """In many dimensions a coordinate of the sphere is N(0, 1/d)."""
    wide = np.array(sphere_levels(8, 4096).levels) * 64

    assert np.allclose(wide, normal_levels(8).levels, rtol=2e-3, atol=0)
    assert not np.allclose(np.array(sphere_levels(8, 64).levels) * 8, normal_levels(8).levels, rtol=2e-3)


def test_ranges_of_normal_samples(rng: np.random.Generator) -> None:
    """E[(max - min)^2] of 32 normals, by sampling; its standard error over 40,000 groups is 0.15 %."""
    x = rng.standard_normal((40_000, 32))

    assert normal_range_square(32) == pytest.approx(float(np.ptp(x, axis=1).__pow__(2).mean()), rel=0.006)
    # Two values: E[(a - b)^2] = 2.
    assert normal_range_square(2) == pytest.approx(2, rel=1e-4)


def test_quantiles() -> None:
    """The well-known points of the normal distribution."""
    assert normal_quantile(0.975) == pytest.approx(1.959963985, abs=1e-8)
    assert normal_quantile(0.5) == pytest.approx(0, abs=1e-12)


def test_theory_of_errors(rng: np.random.Generator) -> None:
    """Uniform codes over a range, and rounding to three fraction bits, by direct simulation, within 0.2 dB."""
    x = rng.standard_normal((20_000, 32))
    step = np.ptp(x, axis=1, keepdims=True) / 15
    codes = np.round((x - x.min(1, keepdims=True)) / step) * step + x.min(1, keepdims=True)
    assert range_db(4, 32) == pytest.approx(10 * np.log10((x**2).mean() / ((x - codes) ** 2).mean()), abs=0.2)

    ulp = 2.0 ** (np.floor(np.log2(np.abs(x))) - 3)
    off = x - np.round(x / ulp) * ulp
    assert float_db(3) == pytest.approx(10 * np.log10((x**2).mean() / (off**2).mean()), abs=0.2)
