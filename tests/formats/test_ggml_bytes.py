"""The block formats against ggml's own functions, to the byte: reference, decoder, and the engine's CPU path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ggml_blocks import blocks, with_one
from ggml_oracle import NAMES, ggml

import kvgate

pytestmark = pytest.mark.usefixtures("_has_library")

#: Formats whose scale is a float16, in which a NaN of the input stays visible.
FLOAT16_SCALE = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@pytest.fixture(scope="module")
def _has_library() -> None:
    pytest.importorskip("xllamacpp")
    pytest.importorskip("cffi")


def same_values(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bit for bit, any NaN like another."""
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))


def first_difference(x: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> str:
    """The block that differs first, for the message of a failed test."""
    bad = np.nonzero((ours != theirs).any(axis=1))[0]
    return f"{bad.size} of {len(x)} blocks, first {x[bad[0]].tolist()}: {ours[bad[0]]} is not {theirs[bad[0]]}"


def comparable(name: str, x: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Blocks that the reference defines: iq4_nl leaves the indices of the block before in one below 1e-15, and its NaN
    scale, where sums overflow, has the processor's sign."""
    if name != "iq4_nl":
        return np.ones(len(x), bool)
    scale = theirs[:, :2].copy().view(np.float16)[:, 0]
    return (np.abs(x).max(axis=1) >= 1e-15) & ~np.isnan(scale)


@pytest.mark.parametrize("name", NAMES)
def test_encodes_as_the_reference_does(name, rng):
    """Every byte of every finite block is that of quantize_row_*_ref, from numpy and from torch."""
    codec = kvgate.codecs[name]

    for kind, x in blocks(codec.spec.block, rng):
        ours, theirs = codec.encode(x), ggml().quantize(name, x, codec.spec.block_bytes)
        use = comparable(name, x, theirs)
        assert np.array_equal(ours[use], theirs[use]), (kind, first_difference(x[use], ours[use], theirs[use]))
        assert np.array_equal(codec.encode(torch.from_numpy(x)).numpy(), ours), kind


@pytest.mark.parametrize("name", NAMES)
def test_decodes_as_ggml_does(name, rng):
    """Random bytes, every scale byte included, decode to the bits of dequantize_row_*."""
    spec = kvgate.codecs[name].spec
    packed = rng.integers(0, 256, (20_000, spec.block_bytes), dtype=np.uint8)
    packed[:256, 0] = packed[256:512, 1] = np.arange(256)

    ours, theirs = kvgate.codecs[name].decode(packed), ggml().dequantize(name, packed, spec.block)

    assert same_values(ours, theirs).all()


def test_the_blocks_reach_every_code(rng):
    """The blocks above use each code of each format: a code that is never made would never be compared."""
    for name, codes in (("q8_0", 255), ("q4_0", 16), ("iq4_nl", 16), ("ggml_mxfp4", 15), ("ggml_nvfp4", 15)):
        spec = kvgate.codecs[name].spec
        start = {"ggml_mxfp4": 1, "ggml_nvfp4": 4}.get(name, 2)
        seen: set[int] = set()
        for _, x in blocks(spec.block, rng, n=500):
            data = kvgate.codecs[name].encode(x)[:, start:]
            seen |= set(
                (data.view(np.int8) if name == "q8_0" else np.concatenate([data & 15, data >> 4])).ravel().tolist()
            )
        assert len(seen) == codes, name  # E2M1's -0 is never written


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_an_infinity_gives_the_bytes_of_the_reference(name, value, rng):
    """C leaves the cast undefined; we write what x86 gives. iq4_nl's scale is NaN, of the processor's sign there."""
    codec = kvgate.codecs[name]
    x = with_one(value, codec.spec.block, rng)

    ours, theirs = codec.encode(x), ggml().quantize(name, x, codec.spec.block_bytes)

    if name == "iq4_nl":
        assert np.isnan(codec.decode(ours)).all()
        assert np.isnan(ggml().dequantize(name, theirs, 32)).all()
    else:
        assert np.array_equal(ours, theirs), first_difference(x, ours, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_is_seen_or_becomes_zero(name, rng):
    """A float16 scale becomes NaN and with it the block; E2M1 formats have none, and store 0 as the reference does."""
    codec = kvgate.codecs[name]
    x = with_one(np.nan, codec.spec.block, rng)

    ours = codec.encode(x)

    if name in FLOAT16_SCALE:
        assert np.isnan(codec.decode(ours)).all()
        # The reference hides it: most of its blocks decode to numbers.
        assert not np.isnan(ggml().dequantize(name, ggml().quantize(name, x, codec.spec.block_bytes), 32)).all()
    else:
        assert np.array_equal(ours, ggml().quantize(name, x, codec.spec.block_bytes))
        assert np.array_equal(ours, codec.encode(np.nan_to_num(x, nan=0.0)))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "q8_0"])
def test_the_engine_quantizes_its_cache_with_the_reference(name, rng):
    """`from_float` of ggml's CPU backend gives the reference's bytes for every format but q8_0."""
    spec = kvgate.codecs[name].spec
    for _, x in blocks(spec.block, rng, n=300):
        theirs = ggml().quantize(name, x, spec.block_bytes)
        use = comparable(name, x, theirs)
        assert np.array_equal(ggml().quantize_engine(name, x, spec.block_bytes)[use], theirs[use])


def test_the_engines_q8_0_rounds_half_to_even_with_another_reciprocal(rng):
    """The AVX2 path multiplies by 127/max and rounds half to even; its codes differ from ours by at most one."""
    codec = kvgate.codecs["q8_0"]
    x = rng.standard_normal((20_000, 32)).astype(np.float32)
    halves = (rng.integers(-254, 255, (2000, 32)) / 2).astype(np.float32)
    halves[:, 0] = 127

    changed = []
    for values in (x, halves):
        theirs, ours = ggml().quantize_engine("q8_0", values, 34), codec.encode(values)
        even = np.rint(values * (np.float32(127) / np.abs(values).max(axis=1, keepdims=True)))
        assert np.array_equal(theirs[:, 2:].view(np.int8), even.astype(np.int8))
        assert np.array_equal(theirs[:, :2], ours[:, :2])
        step = np.abs(theirs[:, 2:].view(np.int8).astype(int) - ours[:, 2:].view(np.int8))
        assert step.max() == 1
        changed.append(float(step.mean()))
    # Rare on real values, half of the ties on whole and half steps.
    assert changed[0] < 1e-4
    assert 0.2 < changed[1] < 0.3


def test_q8_1_is_the_operand_of_dot_products(rng):
    """The reference's bytes: q8_0's codes, and the sum of codes times the unrounded scale."""
    x = np.concatenate([b for _, b in blocks(32, rng, n=500)])

    assert np.array_equal(kvgate.codecs["q8_1"].encode(x), ggml().quantize("q8_1", x, 36))


def test_mxfp4_exponents_follow_a_rounded_logarithm():
    """Next to every power of two, down to the subnormals, the exponent is that of floorf(log2f(x)) in C."""
    exact = np.ldexp(1.0, np.arange(-149, 128))[:, None] * (1 - np.arange(-4, 80) * 2.0**-24)
    values = np.unique(exact.astype(np.float32))
    x = np.zeros((values.size, 32), np.float32)
    x[:, 5] = values

    ours, theirs = kvgate.codecs["ggml_mxfp4"].encode(x), ggml().quantize("ggml_mxfp4", x, 17)

    assert np.array_equal(ours, theirs), first_difference(x, ours, theirs)
    # Just below 64 the logarithm rounds to 6: one place of a float32 is too little for it.
    assert kvgate.codecs["ggml_mxfp4"].encode(np.full(32, np.nextafter(np.float32(64), 0)))[0] == 127 + 6 - 2


def test_e2m1_midpoints_go_toward_zero_and_nvfp4_scales_half_up():
    """Every midpoint of E2M1 takes the smaller code; ggml_nvfp4 sends every scale from 248 on to 448."""
    midpoints = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    x = np.zeros((1, 32), np.float32)
    x[0, :7], x[0, 8:15], x[0, 20] = midpoints, -midpoints, 6

    back = kvgate.codecs["ggml_mxfp4"].roundtrip(x)

    assert back[0, :7].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4]
    assert back[0, 8:15].tolist() == [0, -0.5, -1, -1.5, -2, -3, -4]
    assert not np.signbit(back[0, 8])
    amax = np.array([247.9, 248, 300, 448, 1e6], np.float32) * 6
    scales = np.zeros((5, 64), np.float32)
    scales[:, 0] = amax
    assert kvgate.codecs["ggml_nvfp4"].encode(scales)[:, 0].tolist() == [0x77, 0x7E, 0x7E, 0x7E, 0x7E]
    assert np.array_equal(kvgate.codecs["ggml_nvfp4"].encode(scales), ggml().quantize("ggml_nvfp4", scales, 36))
