"""The array namespace: numpy and torch agree to the bit, and each rounding rule is what it says."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from kvgate.core.errors import UserError
from kvgate.formats import packing
from kvgate.formats.xp import dtype_name, namespace, numpy_namespace

XP = numpy_namespace()


def bit_patterns(rng: np.random.Generator, n: int = 40_000) -> np.ndarray:
    """float32 of any kind: every exponent, special values, integers and halves and what lies next to them."""
    random = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    halves = np.arange(-600, 600, dtype=np.float32) / 2
    big = np.float32(2.0) ** np.arange(20, 26, dtype=np.float32)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 0.49999997, 65519.996, 65520, 6e-8, 2.9802322e-08], np.float32
    )
    near = np.concatenate([halves, big, big + 1, special])
    return np.concatenate(
        [random, near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    )


def both(call, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same call through both namespaces, the results as numpy arrays."""
    tensors = [torch.from_numpy(a.copy()) for a in arrays]
    with np.errstate(all="ignore"):
        ours, theirs = call(XP, *arrays), call(namespace(tensors[0]), *tensors)
    return ours, theirs.numpy()


def assert_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if ours.dtype == np.float32:
        same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
        assert same.all(), (ours[~same][:5], theirs[~same][:5])
    else:
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, x: xp.round_half_away(x),
        lambda xp, x: xp.round_half_even(x),
        lambda xp, x: xp.trunc(x),
        lambda xp, x: xp.floor(x),
        lambda xp, x: xp.divide(x, 127.0),
        lambda xp, x: xp.divide(x, x[::-1].copy() if isinstance(x, np.ndarray) else x.flip(0)),
        lambda xp, x: xp.reciprocal_or_zero(x),
        lambda xp, x: xp.minimum(x, 3.0),
        lambda xp, x: xp.maximum(x, -3.0),
        lambda xp, x: xp.clip(x, -2.5, 7.0),
        lambda xp, x: xp.copysign(0.5, x),
        lambda xp, x: xp.where(x > 0, x, 1.0),
        lambda xp, x: xp.where(xp.isnan(x), 0.0, xp.abs(x)),
        lambda xp, x: xp.to_f16(x),
        lambda xp, x: xp.to_bf16(x),
        lambda xp, x: xp.bytes_f16(x),
        lambda xp, x: xp.bytes_f32(x),
        lambda xp, x: xp.round_f16(x),
        lambda xp, x: xp.half_ulp_f16(x),
        lambda xp, x: xp.power_below(x),
        lambda xp, x: xp.exponent(x),
        lambda xp, x: xp.cast(xp.isfinite(x), "u8"),
        lambda xp, x: xp.cast(xp.clip(xp.where(xp.isnan(x), 0.0, x), -100, 100), "i8"),
    ],
)
def test_numpy_and_torch_agree_on_any_float(call, rng):
    """The two libraries give the same bits for any float32."""
    assert_same(*both(call, bit_patterns(rng)))


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, x: xp.max(x),
        lambda xp, x: xp.min(x),
        lambda xp, x: xp.absmax(x),
        lambda xp, x: xp.first_extreme(x),
        lambda xp, x: xp.first_min(xp.abs(x) * xp.copysign(1.0, x)),
        lambda xp, x: xp.first_min(x * x),
        lambda xp, x: xp.argmax(x),
        lambda xp, x: xp.sum_in_order(x),
        lambda xp, x: xp.bucketize(xp.where(xp.isnan(x), 0.0, x), (-1.0, 0.5, 2.0), up=True),
        lambda xp, x: xp.bucketize(xp.where(xp.isnan(x), 0.0, x), (-1.0, 0.5, 2.0), up=False),
        lambda xp, x: xp.in_columns(x),
        lambda xp, x: xp.take_along(x, xp.argmax(x)),
        lambda xp, x: xp.repeat(x, 3),
        lambda xp, x: xp.concat([x, xp.in_columns(x)]),
    ],
)
@pytest.mark.parametrize("columns", [False, True])
def test_numpy_and_torch_agree_on_lines(call, columns, rng):
    """The same for what runs along a line, in both orders of memory."""
    x = rng.choice(np.array([-2, -1, -0.0, 0.0, 0.5, 1, 2], np.float32), (500, 32))
    x[300:] = rng.standard_normal((200, 32))
    x[7, 3] = np.nan

    ours, theirs = both(lambda xp, a: call(xp, xp.in_columns(a) if columns else a), x)
    with XP.quiet():
        plain = call(XP, x)

    assert_same(np.ascontiguousarray(ours), np.ascontiguousarray(theirs))
    assert_same(np.ascontiguousarray(ours), np.ascontiguousarray(plain))


def test_round_half_away_is_roundf(rng):
    """Halves go away from zero; just below a half, and where the spacing is one, nothing is added."""
    x = bit_patterns(rng)
    x = x[np.isfinite(x)]
    exact = np.trunc(x.astype(np.float64) + np.copysign(0.5, x.astype(np.float64)))

    assert np.array_equal(XP.round_half_away(x), exact.astype(np.float32))
    assert XP.round_half_away(np.array([0.49999997, -0.5, 2.5, 8388609.0], np.float32)).tolist() == [0, -1, 3, 8388609]
    # Adding a plain half is wrong at the first and the last of these.
    plain = np.trunc(np.array([0.49999997, 8388609.0], np.float32) + np.float32(0.5))
    assert plain.tolist() != [0, 8388609]


def test_float16_is_ieee_and_has_one_nan(rng):
    """All 65,536 patterns are read exactly; what is written is numpy's rounding, with one NaN."""
    patterns = np.arange(65536, dtype=np.uint16).view(np.int16)
    values = patterns.view(np.float16).astype(np.float32)

    assert_same(XP.from_f16(patterns), values)
    written = XP.to_f16(values)
    number = ~np.isnan(values)
    assert np.array_equal(written[number], patterns[number])
    assert set(written[~number].tolist()) == {0x7E00}
    x = bit_patterns(rng)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(np.float16).view(np.int16)
        assert np.array_equal(XP.to_f16(x)[~np.isnan(x)], want[~np.isnan(x)])


def test_half_a_place_of_float16_is_what_rounding_may_move(rng):
    """The bound is met by each tie, is constant below 2**-14, and infinite from where float16 is."""
    patterns = np.arange(0x7C00, dtype=np.uint16)
    values = patterns.view(np.float16).astype(np.float64)
    ties = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    moved = np.abs(ties - XP.round_f16(ties).astype(np.float64))

    assert np.array_equal(XP.half_ulp_f16(ties), moved)
    edges = np.array([65504, 65519.996, 65520, np.inf, np.nan, 0, 1e-30], np.float32)
    assert XP.half_ulp_f16(edges).tolist() == [16, 16, np.inf, np.inf, np.inf, 2.0**-25, 2.0**-25]


def test_bfloat16_is_that_of_ml_dtypes(rng):
    """Rounded half to even like ml_dtypes and torch, with one NaN; all patterns are read exactly."""
    x = bit_patterns(rng)
    number = ~np.isnan(x)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(ml_dtypes.bfloat16).view(np.int16)

    assert np.array_equal(XP.to_bf16(x)[number], want[number])
    assert set(XP.to_bf16(x[~number]).tolist()) == {0x7FC0}
    patterns = np.arange(65536, dtype=np.uint16).view(np.int16)
    assert_same(XP.from_bf16(patterns), patterns.view(ml_dtypes.bfloat16).astype(np.float32))


def test_e8m0_is_that_of_ml_dtypes():
    """All 256 exponents, the NaN included."""
    codes = np.arange(256, dtype=np.uint8)

    ours, theirs = both(lambda xp, c: xp.from_e8m0(c), codes)

    assert_same(ours, theirs)
    assert_same(ours, codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))


def test_powers_of_two_reach_down_to_the_subnormals():
    """2**e exactly, for every exponent that float32 has; and back."""
    e = np.arange(-149, 128, dtype=np.int32)

    ours, theirs = both(lambda xp, a: xp.power_of_two(a), e)

    assert ours.tolist() == [2.0 ** int(k) for k in e]
    assert_same(ours, theirs)
    assert np.array_equal(XP.exponent(ours[e >= -126]), e[e >= -126])
    assert XP.exponent(np.array([0, 1e-40, np.inf, np.nan], np.float32)).tolist() == [-127, -127, 128, 128]


def test_the_first_extreme_decides():
    """Of equal magnitudes the first one is taken, with its sign; zeros give +0."""
    x = np.array([[1, -2, 2, 0], [3, -2, -3, 0], [-3, 1, 3, 0], [-0.0, -0.0, 0, -0.0]], np.float32)

    found = XP.first_extreme(x)

    assert found.ravel().tolist() == [-2, 3, -3, 0]
    assert not np.signbit(found[3, 0])


def test_sum_in_order_is_a_plain_loop(rng):
    """One float32 after another; numpy's own sum is another number."""
    x = (rng.standard_normal((200, 32)) * 10.0 ** rng.integers(-4, 4, (200, 32))).astype(np.float32)
    want = []
    for row in x:
        total = np.float32(0)
        for value in row:
            total = np.float32(total + value)
        want.append(total)

    assert np.array_equal(XP.sum_in_order(x).ravel(), np.array(want, np.float32))
    assert not np.array_equal(x.sum(axis=1), np.array(want, np.float32))


def test_a_division_is_not_a_product_with_a_reciprocal():
    """x/127 correctly rounded; the product with 1/127 differs in the last place of one in some values."""
    x = np.arange(1, 2000, dtype=np.float32)
    exact = (x.astype(np.float64) / 127).astype(np.float32)

    ours, theirs = both(lambda xp, a: xp.divide(a, 127.0), x)

    assert np.array_equal(ours, exact)
    assert np.array_equal(theirs, exact)
    assert not np.array_equal(x * np.float32(1 / 127), exact)


@pytest.mark.parametrize("columns", [False, True])
def test_packing_is_undone(columns, rng):
    """Halves, pairs and bits come back; the bytes are the same from both libraries and orders of memory."""
    nibbles = rng.integers(0, 16, (50, 32), dtype=np.uint8)
    bits = rng.integers(0, 2, (50, 32), dtype=np.uint8)

    def turned(xp, a):
        return xp.in_columns(a) if columns else a

    halves = both(lambda xp, q: xp.contiguous(packing.pack_halves(turned(xp, q))), nibbles)
    pairs = both(lambda xp, q: xp.contiguous(packing.pack_pairs(turned(xp, q))), nibbles)
    packed_bits = both(lambda xp, q: xp.contiguous(xp.pack_bits(turned(xp, q))), bits)

    for ours, theirs in (halves, pairs, packed_bits):
        assert np.array_equal(ours, theirs)
    assert np.array_equal(halves[0], nibbles[:, :16] | nibbles[:, 16:] << 4)
    assert np.array_equal(pairs[0], nibbles[:, ::2] | nibbles[:, 1::2] << 4)
    assert np.array_equal(packed_bits[0], np.packbits(bits, axis=1, bitorder="little"))
    for unpack, packed, want in (
        (lambda xp, p: packing.unpack_halves(p, xp), halves[0], nibbles),
        (lambda xp, p: packing.unpack_pairs(p, xp), pairs[0], nibbles),
        (lambda xp, p: xp.unpack_bits(p), packed_bits[0], bits),
        (lambda xp, p: packing.unpack_bits(p.reshape(5, 10, 4), xp).reshape(50, 32), packed_bits[0], bits),
    ):
        for back in both(unpack, packed):
            assert np.array_equal(back, want)


@pytest.mark.parametrize("kind", ["i16", "i32", "f32", "i64"])
def test_a_slice_of_one_line_can_be_viewed_wider(kind):
    """One line, from its third byte on, is contiguous in torch and starts where a wider kind may not."""
    line = np.arange(2 + 16, dtype=np.uint8).reshape(1, -1)

    ours, theirs = both(lambda xp, a: xp.view(xp.contiguous(a[:, 2:]), kind), line)

    assert np.array_equal(ours.view(np.uint8), line[:, 2:])
    assert np.array_equal(theirs.view(np.uint8), line[:, 2:])


def test_the_namespace_follows_the_array():
    """By library and device; anything else is refused in one line."""
    assert namespace(np.zeros(1)) is XP
    assert namespace(torch.zeros(1)) is namespace(torch.ones(2))
    assert namespace(torch.zeros(1)).on_processor
    with pytest.raises(UserError, match="not a tensor on the meta device"):
        namespace(torch.zeros(1, device="meta"))
    assert dtype_name(torch.zeros(1, dtype=torch.bfloat16)) == dtype_name(np.zeros(1, ml_dtypes.bfloat16)) == "bfloat16"
    with pytest.raises(UserError, match="numpy arrays and torch tensors, not float"):
        namespace(math.pi)
