"""FP8 casts: every code, tie, float16 and bfloat16, under every overflow policy, against ml_dtypes and torch."""

import ml_dtypes
import numpy as np
import pytest
import torch

import kvgate
from kvgate.formats.fp8_numbers import decode_fp8, encode_fp8
from kvgate.formats.numbers import FLOAT_SPECS, encode_float
from kvgate.formats.xp import namespace

NAMES = {"fp8_e4m3": "e4m3fn", "fp8_e4m3fnuz": "e4m3fnuz", "fp8_e5m2": "e5m2", "fp8_e5m2fnuz": "e5m2fnuz"}
POLICIES = [
    (n, p) for n, s in NAMES.items() for p in ("saturate", "nan", "inf") if p != "inf" or FLOAT_SPECS[s].has_inf
]
#: The first magnitude that rounds beyond the largest code; E4M3FN's 464 is a tie that goes back to 448.
OVERFLOWS_FROM = {
    "e4m3fn": np.nextafter(np.float32(464), np.float32(500)),
    "e4m3fnuz": 248,
    "e5m2": 61440,
    "e5m2fnuz": 61440,
}
EVERY = np.arange(65536, dtype=np.uint32)


def every_16_bit(kind: str) -> np.ndarray:
    """All 65,536 values of float16 or bfloat16, as float32."""
    if kind == "float16":
        return EVERY.astype(np.uint16).view(np.float16).astype(np.float32)
    return (EVERY << 16).view(np.float32)


def by_ml_dtypes(x: np.ndarray, spec: str, policy: str) -> np.ndarray:
    """ml_dtypes' bytes with the policy put on top: its own casts overflow to NaN, or to infinity for E5M2."""
    largest = np.float32(FLOAT_SPECS[spec].max)
    over = np.abs(x) >= np.float32(OVERFLOWS_FROM[spec])
    with np.errstate(all="ignore"):
        codes = np.where(over, np.copysign(largest, x), x).astype(getattr(ml_dtypes, f"float8_{spec}")).view(np.uint8)
    sign = np.where(np.signbit(x), 0x80, 0).astype(np.uint8)
    if policy == "nan":
        codes = np.where(over, 0x80 if "fnuz" in spec else sign | (0x7F if spec == "e4m3fn" else 0x7E), codes)
    if policy == "inf":
        codes = np.where(over, sign | 0x7C, codes)
    # One NaN is written, whatever its sign and payload were.
    return np.where(np.isnan(x), FLOAT_SPECS[spec].nan_code, codes).astype(np.uint8)


@pytest.mark.parametrize(("name", "spec"), NAMES.items())
def test_all_256_codes_decode_as_both_oracles_say(name, spec):
    """Every code's value is that of ml_dtypes and of torch, signed zeros and infinities included."""
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)

    ours = kvgate.codecs[name].decode(codes)

    expected = codes.view(getattr(ml_dtypes, f"float8_{spec}")).astype(np.float32)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(np.signbit(ours)[~np.isnan(ours)], np.signbit(expected)[~np.isnan(ours)])
    theirs = torch.from_numpy(codes).view(getattr(torch, f"float8_{spec}")).float().numpy()
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(kvgate.codecs[name].decode(torch.from_numpy(codes)).numpy(), ours)


@pytest.mark.parametrize(("name", "spec"), NAMES.items())
def test_all_codes_that_are_numbers_come_back(name, spec):
    """encode(decode(code)) is the code, for each code that is a number."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes[np.isfinite(FLOAT_SPECS[spec].values)]
    codec = kvgate.codecs[name]

    np.testing.assert_array_equal(codec.encode(codec.decode(numbers)), numbers)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "policy"), POLICIES)
def test_every_16_bit_value_casts_as_ml_dtypes_does(name, policy, kind):
    """All 65,536 inputs, from numpy and torch, under each policy."""
    x = every_16_bit(kind)
    expected = by_ml_dtypes(x, NAMES[name], policy)

    np.testing.assert_array_equal(kvgate.codecs[name].encode(x, overflow=policy), expected)
    given = torch.from_numpy(EVERY.astype(np.uint16).view(np.int16)).view(getattr(torch, kind))
    np.testing.assert_array_equal(kvgate.codecs[name].encode(given, overflow=policy).numpy(), expected)


@pytest.mark.parametrize(("name", "policy"), POLICIES)
def test_every_tie_and_its_neighbours(name, policy):
    """Between all pairs of neighbouring codes: the middle, and one step of float32 to either side of it."""
    spec = FLOAT_SPECS[NAMES[name]]
    grid = np.unique([v for v in spec.values if np.isfinite(v)])
    beyond = spec.max + (spec.max - grid[-2]) / 2
    middles = np.concatenate([(grid[:-1] + grid[1:]) / 2, [beyond, -beyond]]).astype(np.float32)
    up, down = np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))
    x = np.concatenate([middles, up, down])
    expected = by_ml_dtypes(x, spec.name, policy)

    np.testing.assert_array_equal(kvgate.codecs[name].encode(x, overflow=policy), expected)
    np.testing.assert_array_equal(kvgate.codecs[name].encode(torch.from_numpy(x), overflow=policy).numpy(), expected)


@pytest.mark.parametrize(("name", "policy"), POLICIES)
def test_the_quick_ways_are_the_definition(name, policy, rng):
    """Table and torch's cast give the bytes of `encode_float` for any float32, NaNs and infinities among them."""
    spec = FLOAT_SPECS[NAMES[name]]
    x = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.float32)
    # Random bits hold few values near the codes: as many again around them.
    near = (rng.standard_normal(1 << 18) * np.exp(4 * rng.standard_normal(1 << 18))).astype(np.float32)
    x = np.concatenate([x, near, np.float32([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45])])

    with np.errstate(all="ignore"):
        exact = encode_float(x, spec, namespace(x), policy)
        np.testing.assert_array_equal(encode_fp8(x, spec, namespace(x), policy), exact)
    t = torch.from_numpy(x)
    np.testing.assert_array_equal(encode_fp8(t, spec, namespace(t), policy).numpy(), exact)


def test_a_table_that_drops_its_rest_is_noticed(rng):
    """Cutting the low bits off without the odd rest breaks ties: the test above would fail."""
    spec = FLOAT_SPECS["e4m3fn"]
    tie = np.float32([1.0625, 1.0625 + 2**-22, 1.1875 - 2**-22])
    cut = (tie.view(np.int32) >> 18 << 18).view(np.float32)

    assert (encode_fp8(tie, spec, namespace(tie)) != encode_fp8(cut, spec, namespace(cut))).any()


@pytest.mark.parametrize(
    ("name", "x", "saturate", "nan", "inf"),
    [
        ("fp8_e4m3", 464.0, 0x7E, 0x7E, None),
        ("fp8_e4m3", 465.0, 0x7E, 0x7F, None),
        ("fp8_e4m3", -np.inf, 0xFE, 0xFF, None),
        ("fp8_e4m3", -0.0, 0x80, 0x80, None),
        ("fp8_e4m3fnuz", 247.9, 0x7F, 0x7F, None),
        ("fp8_e4m3fnuz", -248.0, 0xFF, 0x80, None),
        ("fp8_e4m3fnuz", -0.0, 0x00, 0x00, None),
        ("fp8_e4m3fnuz", -1e-9, 0x00, 0x00, None),
        ("fp8_e5m2", 61439.0, 0x7B, 0x7B, 0x7B),
        ("fp8_e5m2", 61440.0, 0x7B, 0x7E, 0x7C),
        ("fp8_e5m2", -np.inf, 0xFB, 0xFE, 0xFC),
        ("fp8_e5m2fnuz", 61440.0, 0x7F, 0x80, None),
        ("fp8_e4m3", np.nan, 0x7F, 0x7F, None),
        ("fp8_e5m2", -np.nan, 0x7E, 0x7E, 0x7E),
    ],
)
def test_what_overflows_follows_the_policy(name, x, saturate, nan, inf):
    """Each policy has its own code for what lies beyond the largest; infinities overflow too."""
    given = np.float32([x])
    expected = {"saturate": saturate, "nan": nan, "inf": inf}

    for policy in kvgate.codecs[name].spec.numerics.overflows:
        assert kvgate.codecs[name].encode(given, overflow=policy)[0] == expected[policy], policy
        assert kvgate.codecs[name].encode(torch.from_numpy(given), overflow=policy)[0] == expected[policy], policy


def test_torch_is_not_needed_for_its_own_types(monkeypatch):
    """A torch without an FP8 type gets the same bytes by arithmetic."""
    monkeypatch.setattr("kvgate.formats.fp8_numbers._torch_dtype", lambda name: None)
    x = torch.from_numpy(every_16_bit("float16"))
    spec = FLOAT_SPECS["e5m2fnuz"]

    np.testing.assert_array_equal(
        encode_fp8(x, spec, namespace(x)).numpy(), by_ml_dtypes(x.numpy(), "e5m2fnuz", "saturate")
    )
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(decode_fp8(codes, spec, namespace(codes)).numpy(), np.float32(spec.values))
