"""Small floating-point formats: every code, every rounding tie, every special value, against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from kvgate.formats.numbers import FLOAT_SPECS, decode_float, encode_float
from kvgate.formats.xp import namespace, numpy_namespace

XP = numpy_namespace()
THEIRS = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2": ml_dtypes.float8_e5m2,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
#: What ml_dtypes does with what is too large.
POLICY = {"ieee": "inf", "fn": "nan", "fnuz": "nan", "finite": "saturate"}


@pytest.mark.parametrize("name", THEIRS)
def test_every_code_has_its_value(name):
    """The values computed from exponent, fraction, bias and specials are ml_dtypes' for all codes."""
    spec = FLOAT_SPECS[name]
    codes = np.arange(1 << spec.bits, dtype=np.uint8)
    theirs = codes.view(THEIRS[name]).astype(np.float32)

    assert np.array_equal(np.array(spec.values, np.float32), theirs, equal_nan=True)
    assert np.array_equal(decode_float(codes, spec, XP), theirs, equal_nan=True)
    assert np.array_equal(np.signbit(decode_float(codes, spec, XP)[theirs == 0]), np.signbit(theirs[theirs == 0]))


@pytest.mark.parametrize("name", THEIRS)
def test_limits_are_computed(name):
    """Largest, smallest normal and smallest subnormal are those of ml_dtypes' finfo."""
    spec, info = FLOAT_SPECS[name], ml_dtypes.finfo(THEIRS[name])

    assert spec.max == float(info.max)
    assert spec.min_normal == float(info.smallest_normal)
    assert spec.min_subnormal == float(info.smallest_subnormal)
    assert spec.values[spec.max_code] == spec.max


def candidates(name: str, rng: np.random.Generator) -> np.ndarray:
    """Every code's value, every midpoint of two neighbours, the floats next to each, all of float16, any bits."""
    finite = np.unique([v for v in FLOAT_SPECS[name].values if np.isfinite(v)])
    beyond = finite[-1] + (finite[-1] - finite[-2]) * np.array([0.5, 1, 2, 1e6])
    points = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, beyond, -beyond]).astype(np.float32)
    return np.concatenate(
        [
            points,
            np.nextafter(points, np.float32(np.inf)),
            np.nextafter(points, np.float32(-np.inf)),
            np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32),
            rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32),
        ]
    )


@pytest.mark.parametrize("name", THEIRS)
def test_rounding_is_half_to_even(name, rng):
    """Every tie, both sides of it, and what overflows: ml_dtypes' codes, from numpy and from torch."""
    spec, x = FLOAT_SPECS[name], candidates(name, rng)
    policy = POLICY[spec.specials]

    tensor = torch.from_numpy(x)
    with XP.quiet():
        ours = encode_float(x, spec, XP, policy)
        theirs = x.astype(THEIRS[name]).view(np.uint8)

    number = ~np.isnan(x)
    assert np.array_equal(ours[number], theirs[number])
    assert np.array_equal(ours, encode_float(tensor, spec, namespace(tensor), policy).numpy())
    nan_code = 0 if spec.nan_code is None else spec.nan_code
    assert set((ours[~number] & (0x7F if spec.specials in ("fn", "ieee") else 0xFF)).tolist()) == {nan_code}


@pytest.mark.parametrize("name", THEIRS)
def test_saturation_keeps_the_largest(name, rng):
    """Under "saturate" whatever rounds beyond the largest becomes it, infinities too; nothing else changes."""
    spec, x = FLOAT_SPECS[name], candidates(name, rng)
    x = x[~np.isnan(x)]

    back = decode_float(encode_float(x, spec, XP), spec, XP)
    free = decode_float(encode_float(x, spec, XP, POLICY[spec.specials]), spec, XP)

    assert np.isfinite(back).all()
    assert np.array_equal(back, np.where(np.isfinite(free), free, np.copysign(spec.max, x)))


def test_a_policy_that_a_format_lacks_is_an_error():
    """E4M3FN has no infinity, E2M1 no NaN."""
    with pytest.raises(ValueError, match="e4m3fn has no inf"):
        encode_float(np.ones(1, np.float32), FLOAT_SPECS["e4m3fn"], XP, "inf")
    with pytest.raises(ValueError, match="e2m1 has no nan"):
        encode_float(np.ones(1, np.float32), FLOAT_SPECS["e2m1"], XP, "nan")
