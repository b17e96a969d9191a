"""OCP microscaling: E2M1 and E8M0 code by code, whole blocks against ml_dtypes, bounds, special blocks."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from low_bit_checks import assert_same_on_torch, over_bound, rows

import kvgate
from kvgate.core.errors import UserError
from kvgate.formats.e2m1 import decode_e2m1, encode_e2m1
from kvgate.formats.xp import namespace

E2M1_VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
#: Largest exponent and value of the elements, and their ml_dtypes.
ELEMENTS = {"mxfp4": (2, 6.0, ml_dtypes.float4_e2m1fn), "mxfp8": (8, 448.0, ml_dtypes.float8_e4m3fn)}


def by_rule(name: str, x: np.ndarray) -> np.ndarray:
    """OCP MX 6.3 for finite float32 blocks [n, 32], in float64 and with ml_dtypes' rounding."""
    emax, largest, dtype = ELEMENTS[name]
    out = []
    for block in x.astype(np.float64):
        amax = np.abs(block).max()
        exponent = math.frexp(amax)[1] - 1 if amax else -127
        shared = min(max(exponent - emax, -127), 127)
        codes = np.clip(block / 2.0**shared, -largest, largest).astype(dtype).view(np.uint8)
        data = codes[0::2] | codes[1::2] << 4 if name == "mxfp4" else codes
        out.append(np.concatenate([[np.uint8(shared + 127)], data]))
    return np.array(out, np.uint8)


def test_all_16_codes_of_e2m1():
    """Every code is the value in the specification's table, and comes back as itself."""
    codes = np.arange(16, dtype=np.uint8)
    values = decode_e2m1(codes, namespace(codes))

    np.testing.assert_array_equal(values, np.float32(E2M1_VALUES + [-v for v in E2M1_VALUES]))
    np.testing.assert_array_equal(values, codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    np.testing.assert_array_equal(encode_e2m1(values, namespace(values)), codes)


def test_every_tie_of_e2m1_goes_to_the_even_code():
    """Middles, their neighbours on both sides, what saturates, and NaN; torch gives the same."""
    middles = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    expected = [0, 2, 2, 4, 4, 6, 6]
    np.testing.assert_array_equal(encode_e2m1(middles, namespace(middles)), expected)

    near = np.concatenate([np.nextafter(middles, np.float32(s)) for s in (0, 9)] + [np.float32([6, 7, 1e30, 0, 1e-45])])
    near = np.concatenate([near, -near])
    np.testing.assert_array_equal(
        encode_e2m1(near, namespace(near)), np.clip(near, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    )
    special = np.float32([np.nan, -np.nan, np.inf, -np.inf])
    for x in (near, special):
        t = torch.from_numpy(x)
        np.testing.assert_array_equal(encode_e2m1(t, namespace(t)).numpy(), encode_e2m1(x, namespace(x)))
    np.testing.assert_array_equal(encode_e2m1(special, namespace(special)), [7, 7, 7, 15])


@pytest.mark.parametrize("name", ELEMENTS)
def test_all_256_scales_of_e8m0(name):
    """Each exponent byte means 2**(byte - 127), 255 is NaN; the smallest ones are subnormal float32."""
    scales = np.arange(256, dtype=np.uint8)
    one = np.uint8(0x22 if name == "mxfp4" else 0x38)
    size = kvgate.codecs[name].spec.block_bytes
    packed = np.full((256, size), one, np.uint8)
    packed[:, 0] = scales

    values = kvgate.codecs[name].decode(packed)

    expected = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(values, np.broadcast_to(expected[:, None], values.shape))
    np.testing.assert_array_equal(kvgate.codecs[name].decode(torch.from_numpy(packed)).numpy(), values)


@pytest.mark.parametrize("name", ELEMENTS)
def test_blocks_follow_the_rule(name, rng):
    """Random blocks of all sizes, bytes from numpy and torch."""
    x = rows(rng, (500, 32), spread=20)

    np.testing.assert_array_equal(kvgate.codecs[name].encode(x), by_rule(name, x))
    assert_same_on_torch(name, x)


SPECIAL = {
    "zeros": np.zeros(32),
    "negative zeros": -np.zeros(32),
    "all equal": np.full(32, 7.3),
    "one sign": np.linspace(10, 11, 32),
    "subnormal": np.linspace(-1e-44, 1e-44, 32),
    "below the smallest scale": np.linspace(-1e-38, 1e-38, 32),
    "smallest": np.r_[np.float32(1e-45), np.zeros(31)],
    "largest": np.r_[np.float32(3.4028235e38), np.zeros(31)],
    "one loud": np.r_[1e9, np.full(31, 1e-9)],
    "powers of two": 2.0 ** np.arange(-16, 16),
    "saturates": np.r_[7.99, np.full(31, 1.0)],
}


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_blocks(name, kind):
    """Zeros, equal and one-signed blocks, subnormals and extremes follow the same rule and keep their bound."""
    x = SPECIAL[kind].astype(np.float32).reshape(1, 32)

    np.testing.assert_array_equal(kvgate.codecs[name].encode(x), by_rule(name, x))
    assert (over_bound(name, x) <= 1).all()
    assert_same_on_torch(name, x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ELEMENTS)
def test_a_block_with_a_nonfinite_value_is_nan_as_a_whole(name, bad):
    """The block's scale says NaN; other blocks are untouched."""
    x = np.ones((2, 32), np.float32)
    x[0, 5] = bad
    packed = kvgate.codecs[name].encode(x)

    assert packed[0, 0] == 255
    back = kvgate.codecs[name].decode(packed)
    assert np.isnan(back[0]).all() and (back[1] == 1).all()
    np.testing.assert_array_equal(kvgate.codecs[name].encode(torch.from_numpy(x)).numpy(), packed)


blocks = arrays(np.float32, (2, 32), elements=st.floats(-(2.0**126), 2.0**126, width=32))


@pytest.mark.parametrize("name", ELEMENTS)
@given(x=blocks)
def test_no_element_is_further_than_the_bound(name, x):
    """The bound holds for any finite block."""
    assert (over_bound(name, x) <= 1).all()


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_bound_is_reached(name):
    """By rounding at every tie, and by saturation."""
    emax, _, dtype = ELEMENTS[name]
    grid = np.arange(0x80 if name == "mxfp8" else 8, dtype=np.uint8)
    grid = grid.view(dtype).astype(np.float64)
    grid = grid[np.isfinite(grid)]
    middles = (grid[:-1] + grid[1:]) / 2
    for at in range(0, len(middles), 31):
        some = middles[at : at + 31]
        x = np.zeros((1, 32), np.float32)
        x[0, : len(some)] = some
        x[0, 31] = 2.0 ** (emax + 1) - 2.0 ** (emax - 7)  # nearly twice the largest power of two: saturates
        assert (over_bound(name, x)[0, : len(some)] > 0.98).all()
        assert over_bound(name, x)[0, 31] > 0.98


@pytest.mark.parametrize("name", ELEMENTS)
def test_encoding_again_changes_nothing(name, rng):
    """Microscaling is idempotent: the largest code keeps the shared exponent."""
    codec = kvgate.codecs[name]
    once = codec.encode(rows(rng, (300, 64), spread=20))

    np.testing.assert_array_equal(codec.encode(codec.decode(once)), once)


def swapped(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed[..., :1], packed[..., 1:] >> 4 | packed[..., 1:] << 4], axis=-1)


def shifted(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed[..., :1] + 1, packed[..., 1:]], axis=-1)


def moved(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([np.roll(packed[..., :1], 1, axis=0), packed[..., 1:]], axis=-1)


@pytest.mark.parametrize("mutant", [swapped, shifted, moved])
def test_mutants_break_the_bound(mutant, rng):
    """Swapped nibbles, a scale one exponent up, another block's scale: the bound notices each."""
    x = rows(rng, (64, 32))
    codec = kvgate.codecs["mxfp4"]

    back = codec.decode(mutant(codec.encode(x)))
    assert (np.abs(x - back) > codec.error_bound(x)).mean() > 0.2


def test_a_row_must_be_whole_blocks():
    """The refusal names the block and the nearest rows that fit."""
    with pytest.raises(UserError, match=r"mxfp8 stores blocks of 32 elements.*nearest: 64 or 96"):
        kvgate.codecs["mxfp8"].encode(np.ones((2, 80), np.float32))
    with pytest.raises(UserError, match="no row takes 34 bytes"):
        kvgate.codecs["mxfp8"].decode(np.ones((2, 34), np.uint8))
