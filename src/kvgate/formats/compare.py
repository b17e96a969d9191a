"""How far values come back from where they were: sums over slices, in float64, and the figures made of them.

With x the values and y what comes back, both float32, over all elements:

    SQNR        10 log10(sum x**2 / sum (x - y)**2) in dB; "exact" where y = x throughout
    max error   max |x - y|, and where
    lost        finite x that came back as NaN or infinity; there is no SQNR then
    clipped     share of finite x beyond the range that their scale spans, by more than half the step at its end
    zeroed      share of finite x other than 0 that came back as 0

Elements of x that are NaN or infinite are counted and left out of everything else. A channel is one element of head_dim
of one head (of all batches and tokens), or one element of the last axis where there are fewer than three axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, inf, log10, prod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Rows(Protocol):
    """A tensor that is read in slices: float32 rows along its last axis, in row-major order of the others."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def native(self) -> str:
        """The codec of its own dtype: f32, f16 or bf16."""
        ...

    def rows(self, start: int, stop: int) -> Array:
        """float32 [stop - start, dim], exactly what the file says."""
        ...


@dataclass(frozen=True, slots=True)
class Distance:
    """Figures of some elements.

    Attributes:
        elements: finite ones, which everything here is about.
        sqnr_db: None where `note` says why: "exact", "lost", "no signal" (all x are 0, and some y are not), "empty".
        max_error: over what came back finite. max_abs: of x.
    """

    elements: int
    sqnr_db: float | None
    note: str
    max_error: float
    max_abs: float
    lost: int


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel; `head` is None where the tensor has fewer than three axes."""

    head: int | None
    channel: int
    distance: Distance


@dataclass(frozen=True, slots=True)
class Comparison:
    """All figures of one tensor under one codec.

    Attributes:
        at: index of the largest error; None where nothing is off.
        x_nan, x_inf: elements of x that are no numbers. y_nan, y_inf: of y.
        clipped, zeroed: shares of finite elements; None where the codec's codes do not show its range.
    """

    distance: Distance
    at: tuple[int, ...] | None
    x_nan: int
    x_inf: int
    y_nan: int
    y_inf: int
    clipped: float | None
    zeroed: float
    channels: tuple[Channel, ...]


class Tally:
    """Sums of a comparison, slice by slice.

    Args:
        shape: of the whole tensor; its last axis is the channels', the third from the end the heads'.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        import numpy as np

        self.shape, self.dim = shape, shape[-1]
        self.tokens = shape[-2] if len(shape) > 1 else 1
        self.heads = shape[-3] if len(shape) > 2 else 1
        size = (self.heads, self.dim)
        self._signal, self._noise = np.zeros(size), np.zeros(size)
        self._max_error, self._max_abs = np.zeros(size), np.zeros(size)
        self._count, self._lost = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._no_numbers = [0, 0, 0, 0]
        self._clipped, self._clips_known, self._zeroed = 0, True, 0
        self._worst, self._worst_at = 0.0, -1

    def add(self, start: int, x: Array, y: Array, clipped: Array | None) -> None:
        """Rows [n, dim] of x and y, the first of them row `start` of the tensor; which of x are clipped, if known."""
        import numpy as np

        if not len(x):
            return
        wide, finite = x.astype(np.float64), np.isfinite(x)
        both = finite & np.isfinite(y)
        x_nan, y_nan = int(np.isnan(x).sum()), int(np.isnan(y).sum())
        for i, n in enumerate((x_nan, int((~finite).sum()) - x_nan, y_nan, int(np.isinf(y).sum()))):
            self._no_numbers[i] += n
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(both, np.abs(wide - y), 0.0)
        signal = np.where(finite, wide, 0.0)
        # Neighbouring rows of one head are one run; sums of runs go to their heads.
        cuts, heads = self._runs(start, len(x))
        for total, part in ((self._signal, signal * signal), (self._noise, error * error)):
            np.add.at(total, heads, np.add.reduceat(part, cuts, axis=0))
        for most, part in ((self._max_error, error), (self._max_abs, np.abs(signal))):
            np.maximum.at(most, heads, np.maximum.reduceat(part, cuts, axis=0))
        for count, part in ((self._count, finite), (self._lost, finite & ~both)):
            np.add.at(count, heads, np.add.reduceat(part.astype(np.int64), cuts, axis=0))
        self._zeroed += int((both & (y == 0) & (x != 0)).sum())
        self._clips_known &= clipped is not None
        self._clipped += 0 if clipped is None else int((clipped & finite).sum())
        most_here = float(error.max(initial=0.0))
        if most_here > self._worst:
            self._worst, self._worst_at = most_here, start * self.dim + int(error.argmax())

    def result(self) -> Comparison:
        """The figures of all that was added."""
        total = self._distance(slice(None), slice(None))
        n = total.elements
        x_nan, x_inf, y_nan, y_inf = self._no_numbers
        channels = tuple(
            Channel(h if len(self.shape) > 2 else None, c, self._distance(h, c))
            for h in range(self.heads)
            for c in range(self.dim)
        )
        return Comparison(
            total,
            None if self._worst_at < 0 else _place(self._worst_at, self.shape),
            x_nan,
            x_inf,
            y_nan,
            y_inf,
            (self._clipped / n if n else 0.0) if self._clips_known else None,
            self._zeroed / n if n else 0.0,
            channels,
        )

    def _runs(self, start: int, n: int) -> tuple[Array, Array]:
        """Where runs of rows of one head begin in a slice, and whose they are."""
        import numpy as np

        first = np.arange(start // self.tokens, (start + n - 1) // self.tokens + 1)
        return np.maximum(first * self.tokens - start, 0), first % self.heads

    def _distance(self, head: int | slice, channel: int | slice) -> Distance:
        import numpy as np

        def total(of: Array) -> float:
            return fsum(np.ravel(of[head, channel]).tolist())

        elements, lost = int(total(self._count)), int(total(self._lost))
        sqnr_db, note = sqnr(total(self._signal), total(self._noise), elements, lost)
        error, size = (float(np.max(of[head, channel], initial=0.0)) for of in (self._max_error, self._max_abs))
        return Distance(elements, sqnr_db, note, error, size, lost)


def sqnr(signal: float, noise: float, elements: int, lost: int) -> tuple[float | None, str]:
    """10 log10(signal / noise), or None and why there is none."""
    if not elements:
        return None, "empty"
    if lost:
        return None, "lost"
    if not noise:
        return None, "exact"
    return (10 * (log10(signal) - log10(noise)), "") if signal else (None, "no signal")


def worst_channels(found: Comparison, count: int) -> tuple[Channel, ...]:
    """Channels with the lowest SQNR first; those that lost elements before all others, exact and empty ones last."""

    def order(c: Channel) -> tuple[float, float]:
        d = c.distance
        return {"lost": -inf, "no signal": -inf, "": d.sqnr_db or 0.0}.get(d.note, inf), -d.max_error

    return tuple(sorted(found.channels, key=order)[:count])


def row_count(shape: tuple[int, ...]) -> int:
    """Rows along the last axis."""
    return prod(shape[:-1])


def _place(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    place: list[int] = []
    for size in reversed(shape):
        place.insert(0, flat % size)
        flat //= size
    return tuple(place)


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """A numpy array as `Rows`: float32 or float16, at least one axis."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def native(self) -> str:
        return {"float32": "f32", "float16": "f16"}[self.array.dtype.name]

    def rows(self, start: int, stop: int) -> Array:
        import numpy as np

        return self.array.reshape(-1, self.shape[-1])[start:stop].astype(np.float32)
