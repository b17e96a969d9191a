"""Blocks that ggml's formats are held against: many scales, and the values at which something could go another way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def blocks(block: int, rng: np.random.Generator, n: int = 3000) -> Iterator[tuple[str, np.ndarray]]:
    """(kind, float32 [m, block]); all values finite."""
    base = rng.standard_normal((n, block)).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        for decade in range(-44, 38, 2):
            yield "decades", (base[: n // 10] * 10.0**decade).astype(np.float32)
    yield "log-normal", (base * np.exp(3 * rng.standard_normal(base.shape))).astype(np.float32)
    yield "zeros", np.zeros((3, block), np.float32)
    yield "zeros", np.full((3, block), -0.0, np.float32)
    # Zeros of both signs are equal: which one is the smallest, or the largest, is a matter of order.
    for values in ([0.0, -0.0], [0.0, -0.0, 1.5], [0.0, -0.0, -1.5]):
        yield "zeros", rng.choice(np.array(values, np.float32), (200, block))
    for value in (1, -1, 3.7, -1e-5, 1e-8, -1e-39, 1e5, 65504, 3e38):
        yield "equal", np.full((3, block), value, np.float32)
    yield "one sign", np.abs(base)
    yield "one sign", -np.abs(base)
    yield "halves", (rng.integers(-254, 255, base.shape) / 2).astype(np.float32)
    yield "halves", rng.integers(-8, 9, base.shape).astype(np.float32)
    # The largest magnitude occurs several times, with both signs: the first one decides.
    yield "ties", np.where(rng.random(base.shape) < 0.3, np.sign(base), base * np.float32(0.2)).astype(np.float32)
    yield "far from zero", base + np.float32(1000)
    yield "far from zero", base * np.float32(1e-4) - np.float32(30000)
    # One element is the scale's tie between two float16 numbers, times the largest code, or a float32 next to it.
    low = np.concatenate([np.arange(0x3C00, 0x3C00 + n // 2), np.arange(n // 2)]).astype(np.uint16).view(np.float16)
    tie = (low.astype(np.float64) + np.nextafter(low, np.float16(np.inf))) / 2
    for top in (6, 8, 15, 16, 31, 127):
        one = np.zeros((low.size, block), np.float32)
        one[:, 3] = tie * top
        one[:, 3] = np.nextafter(one[:, 3], np.float32(np.inf) * rng.choice([-1, 1], low.size).astype(np.float32))
        one[::3, 3] = (tie * top)[::3]
        yield "scale ties", one
    bits = rng.integers(0, 2**32, base.shape, dtype=np.uint32).view(np.float32).copy()
    bits[~np.isfinite(bits)] = 0
    yield "any bits", bits
    yield "any bits", bits * np.float32(1e-30)


def with_one(value: float, block: int, rng: np.random.Generator, n: int = 500) -> np.ndarray:
    """Normal values with `value` at one place of each block."""
    x = rng.standard_normal((n, block)).astype(np.float32)
    x[np.arange(n), rng.integers(0, block, n)] = value
    return x
