"""Conformance of a codec: its bytes, its error bound and its sizes agree with each other and in both array libraries.

What it cannot know is whether the layout is the one an engine uses: for that, hold the bytes against the engine's own
(`tests/formats/test_ggml_bytes.py` shows how).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvgate.core.errors import UserError
from kvgate.formats.codec import Codec
from kvgate.formats.numerics import ScaledNumerics
from kvgate.formats.spec import CodecSpec
from kvgate.testing._need import need

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: Powers of ten that values are scaled by: from where float16 scales vanish to where they overflow.
DECADES = (-9, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6)
#: A bound that is never reached to this share is too wide to be of use.
TIGHT = 0.98
#: Policy -> what a value beyond the largest must become.
_BEYOND = {"saturate": "isfinite", "nan": "isnan", "inf": "isinf"}


@dataclass
class CodecReport:
    """What was seen, for a codec's own tests.

    Attributes:
        tightness: the largest error over its bound; None where the bound is 0 everywhere.
        changed_bytes: share of bytes that a second encoding changes, on ordinary values.
        checks: what was held, in words.
    """

    tightness: float | None = None
    changed_bytes: float = 0.0
    checks: list[str] = field(default_factory=list)


def check_codec(spec: CodecSpec, *, seed: int = 0, rows: int = 400) -> CodecReport:
    """Hold `spec` and its arithmetic to their contract.

    numpy arrays always; torch tensors too, to the same bytes, if the caller has imported torch.

    Args:
        rows: rows of random values at each order of magnitude.

    Raises:
        AssertionError: what is wrong, in one sentence.
    """
    import numpy as np

    need(spec.numerics is not None, f"{spec.name} has no arithmetic")
    codec, report, rng = Codec(spec), CodecReport(), np.random.default_rng(seed)
    dims = _dims(spec)
    with np.errstate(all="ignore"):
        for check in (_sizes, _zeros, _rows_apart, _non_finite, _bound, _again, _input_dtypes, _scales, _policies):
            check(codec, dims, rng, rows, report)
        if "torch" in sys.modules:
            _both_libraries(codec, dims, rng, rows, report)
    return report


def sample_rows(dim: int, rng: np.random.Generator, rows: int) -> Iterator[Array]:
    """float32 [n, dim], many kinds: orders of magnitude, outliers, one sign, all equal, ties, far from zero."""
    import numpy as np

    base = rng.standard_normal((rows, dim)).astype(np.float32)
    for decade in DECADES:
        yield base * np.float32(10.0**decade)
    yield base * np.exp(2 * rng.standard_normal(base.shape)).astype(np.float32)
    yield np.abs(base)
    yield -np.abs(base)
    yield base + np.float32(100.0)
    yield np.repeat(base[:8, :1], dim, axis=1)
    yield rng.integers(-16, 17, base.shape).astype(np.float32) / 2
    yield np.where(rng.random(base.shape) < 0.5, np.sign(base), base / 4).astype(np.float32)
    # Values at every distance from zero up to the largest of their row, for bounds that are reached in few places.
    yield (rng.uniform(-1, 1, base.shape) * np.exp2(rng.uniform(-4, 4, (rows, 1)))).astype(np.float32)


def _dims(spec: CodecSpec) -> tuple[int, ...]:
    """Row lengths that the codec takes: its block, and usual head sizes."""
    fits = []
    for dim in sorted({spec.block, 2 * spec.block, 64, 128, 192}):
        try:
            size = spec.row_bytes(dim)
        except UserError:
            continue
        need(spec.row_dim(size) == dim, f"{spec.name}: row_dim({size}) is {spec.row_dim(size)}, not {dim}")
        fits.append(dim)
    need(fits, f"{spec.name}: no row of its block of {spec.block} elements, or of 64, 128 or 192, has a size")
    need(spec.row_bytes(0) == 0, f"{spec.name}: a row of no elements takes {spec.row_bytes(0)} bytes")
    return tuple(fits)


def _sizes(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    for dim in dims:
        size = codec.spec.row_bytes(dim)
        for lead in ((), (3,), (2, 3, 5), (2, 3, 0)):
            x = rng.standard_normal((*lead, dim)).astype(np.float32)
            try:
                packed = codec.encode(x)
            except ValueError as wrong:
                raise AssertionError(f"{codec.name}: encode_blocks does not give block_bytes bytes: {wrong}") from wrong
            need(packed.dtype == np.uint8, f"{codec.name}: encode gives {packed.dtype}, not uint8")
            need(packed.shape == (*lead, size), f"{codec.name}: {x.shape} becomes {packed.shape}, not {(*lead, size)}")
            back = codec.decode(packed, dim=dim)
            need(back.dtype == np.float32, f"{codec.name}: decode gives {back.dtype}, not float32")
            need(back.shape == x.shape, f"{codec.name}: {x.shape} comes back as {back.shape}")
            need(codec.error_bound(x).shape == x.shape, f"{codec.name}: the bound of {x.shape} has another shape")
    report.checks.append(f"sizes of rows of {', '.join(map(str, dims))} elements agree with row_bytes")


def _zeros(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    for dim in dims:
        for zero in (0.0, -0.0):
            back = codec.roundtrip(np.full((2, dim), zero, np.float32))
            need(np.all(back == 0), f"{codec.name}: zeros decode to {back.min()} .. {back.max()}")
    report.checks.append("zeros stay zeros")


def _rows_apart(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    for dim in dims:
        x = rng.standard_normal((7, dim)).astype(np.float32) * np.float32(10.0) ** np.arange(-3, 4)[:, None]
        x = x.astype(np.float32)
        together, alone = codec.encode(x), np.stack([codec.encode(row) for row in x])
        need(np.array_equal(together, alone), f"{codec.name}: the bytes of a row depend on the rows beside it")
        back = np.stack([codec.decode(row) for row in together])
        need(_same(codec.decode(together), back), f"{codec.name}: the values of a row depend on the rows beside it")
    report.checks.append("rows do not know of each other")


def _non_finite(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    said = codec.spec.numerics.nonfinite if codec.spec.numerics else ""
    need(said, f"{codec.name} does not say what NaN and infinity become")
    for dim in dims:
        x = rng.standard_normal((9, dim)).astype(np.float32)
        want = codec.encode(x)
        for value in (np.nan, np.inf, -np.inf):
            odd = x.copy()
            odd[4, dim // 2] = value
            others = np.arange(9) != 4
            got = codec.encode(odd)
            need(np.array_equal(got[others], want[others]), f"{codec.name}: {value} in one row changes other rows")
            need(np.array_equal(got, codec.encode(odd)), f"{codec.name}: {value} gives other bytes each time")
    report.checks.append(f"NaN and infinities: {said}")


def _bound(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    for dim in dims:
        for x in sample_rows(dim, rng, max(1, rows * dims[0] // dim)):
            error = np.abs(codec.decode(codec.encode(x)).astype(np.float64) - x)
            bound = codec.error_bound(x).astype(np.float64)
            need(not np.isnan(bound).any(), f"{codec.name}: the error bound of a finite value is NaN")
            # Where the bound is infinite something overflowed, and the error may be infinite or NaN.
            worse = np.isfinite(bound) & ~(error <= bound)
            if worse.any():
                at = tuple(int(i[0]) for i in np.nonzero(worse))
                need(False, f"{codec.name}: {x[at]} is off by {error[at]:g}, more than its bound of {bound[at]:g}")
            share = error[np.isfinite(bound) & (bound > 0)] / bound[np.isfinite(bound) & (bound > 0)]
            if share.size:
                report.tightness = max(report.tightness or 0.0, float(share.max()))
    if report.tightness is not None:
        need(
            report.tightness >= TIGHT,
            f"{codec.name}: errors reach {report.tightness:.3f} of their bound, less than {TIGHT}: it is too wide",
        )
    report.checks.append("the error bound holds on every element, and is reached")


def _again(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    changed = total = 0
    for dim in dims:
        x = rng.standard_normal((rows, dim)).astype(np.float32)
        once = codec.encode(x)
        changed += int(np.count_nonzero(codec.encode(codec.decode(once)) != once))
        total += once.size
    report.changed_bytes = changed / total
    if codec.spec.numerics is not None and codec.spec.numerics.idempotent:
        need(not changed, f"{codec.name} says it is idempotent; a second encoding changes {changed} of {total} bytes")
    report.checks.append(f"a second encoding changes {report.changed_bytes:.4%} of the bytes of ordinary values")


def _input_dtypes(
    codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport
) -> None:
    import numpy as np

    x = rng.standard_normal((4, dims[0])).astype(np.float16)
    need(np.array_equal(codec.encode(x), codec.encode(x.astype(np.float32))), f"{codec.name}: float16 is not widened")
    need(codec.roundtrip(x).dtype == x.dtype, f"{codec.name}: roundtrip changes the dtype")
    turned = np.asfortranarray(x)
    need(np.array_equal(codec.encode(turned), codec.encode(x)), f"{codec.name}: bytes depend on the order of memory")
    report.checks.append("float16 and any order of memory")


def _scales(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    if not isinstance(codec.spec.numerics, ScaledNumerics):
        return
    x = rng.standard_normal((2, 3, 5, dims[-1])).astype(np.float32)
    scale = np.array([0.25, 1.0, 8.0], np.float32).reshape(3, 1, 1)
    packed = codec.encode(x, scale=scale)
    back = codec.decode(packed, scale=scale)
    for head, factor in enumerate((0.25, 1.0, 8.0)):
        alone = codec.encode(x[:, head], scale=factor)
        need(
            np.array_equal(packed[:, head], alone),
            f"{codec.name}: one scale a head gives other bytes than the head alone",
        )
        values = codec.decode(alone, scale=factor)
        need(_same(back[:, head], values), f"{codec.name}: one scale a head gives other values than the head alone")
        need(
            np.array_equal(codec.encode(x[:, head] * np.float32(4), scale=4 * factor), alone),
            f"{codec.name}: four times the values at four times the scale are other bytes",
        )
        error, bound = np.abs(values - x[:, head]), codec.error_bound(x[:, head], scale=factor)
        need(np.all(error <= bound), f"{codec.name}: the error bound does not hold at scale {factor}")
    report.checks.append("one scale for all and one a head")


def _policies(codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport) -> None:
    import numpy as np

    if not isinstance(codec.spec.numerics, ScaledNumerics) or codec.spec.numerics.unit != "element":
        return
    x = np.full((2, dims[-1]), 3e38, np.float32)
    for policy in codec.spec.numerics.overflows:
        for values in (x, -x, x * np.float32(10)):
            back = codec.decode(codec.encode(values, overflow=policy))
            need(
                getattr(np, _BEYOND[policy])(back).all(),
                f"{codec.name}: {values[0, 0]} under {policy!r} is {back[0, 0]}",
            )
    report.checks.append(f"overflow: {', '.join(codec.spec.numerics.overflows)}")


def _both_libraries(
    codec: Codec, dims: tuple[int, ...], rng: np.random.Generator, rows: int, report: CodecReport
) -> None:
    import numpy as np

    torch = sys.modules["torch"]
    for dim in dims:
        samples = list(sample_rows(dim, rng, max(1, rows // 4)))
        odd = samples[8].copy()
        odd[::3, 0], odd[1::3, dim - 1], odd[2::3, dim // 2] = np.nan, np.inf, -np.inf
        for x in (*samples, odd):
            packed, theirs = codec.encode(x), codec.encode(torch.from_numpy(x))
            need(np.array_equal(packed, theirs.numpy()), f"{codec.name}: numpy and torch give different bytes")
            back = codec.decode(theirs).numpy()
            need(_same(codec.decode(packed), back), f"{codec.name}: numpy and torch decode different values")
        noise = rng.integers(0, 256, (rows, codec.spec.row_bytes(dim)), dtype=np.uint8)
        back = codec.decode(torch.from_numpy(noise)).numpy()
        need(_same(codec.decode(noise), back), f"{codec.name}: numpy and torch read random bytes differently")
    report.checks.append("numpy and torch: the same bytes, the same values")


def _same(a: Array, b: Array) -> bool:
    """Bit for bit, except that any NaN is like another."""
    import numpy as np

    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))
