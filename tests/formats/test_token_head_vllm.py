"""vLLM's per-token-head layouts: bytes of its kernels, the rotation, the hidden zero point, bounds, special rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from low_bit_checks import assert_same_on_torch, bf16, golden, over_bound, rows, to_bf16

import kvgate
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats import random_signs
from kvgate.formats.spec import by_spelling, codec
from kvgate.formats.xp import namespace

NAMES = {"int8_per_token_head": "int8", "fp8_per_token_head": "fp8", "int4_per_token_head": "int4"}


def scales_of(packed: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(packed[..., -4:]).view(np.float32)[..., 0]


@pytest.mark.parametrize("dim", [64, 80, 96, 128])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_vllms_kernels(name, dim):
    """Codes and scales of each head of each token; rows of zeros, equal, one-signed, tiny and loud ones among them."""
    data = golden("vllm_token_head")
    x = bf16(data[f"x_{dim}"])

    packed = kvgate.codecs[name].encode(x)

    np.testing.assert_array_equal(packed[..., :-4], data[f"{NAMES[name]}_codes_{dim}"])
    np.testing.assert_array_equal(scales_of(packed).view(np.int32), data[f"{NAMES[name]}_scales_{dim}"].view(np.int32))
    assert_same_on_torch(name, x)
    given_bf16 = torch.from_numpy(data[f"x_{dim}"].view(np.int16)).view(torch.bfloat16)
    np.testing.assert_array_equal(kvgate.codecs[name].encode(given_bf16).numpy(), packed)


@pytest.mark.parametrize("dim", [64, 80, 96, 128])
def test_the_rotation_is_vllms(dim):
    """Signs and butterfly of `single_rht`, block by block where the head is no power of two."""
    data = golden("vllm_token_head")
    x = bf16(data[f"x_{dim}"]).reshape(-1, dim)

    np.testing.assert_array_equal(
        to_bf16(random_signs.rotate(x, namespace(x))), bf16(data[f"int4_rotated_{dim}"]).reshape(-1, dim)
    )


def test_the_signs_are_torchs():
    """Drawn again: torch's CPU generator with vLLM's seed, for every block up to 1,024."""
    block = 1
    while block <= random_signs.LONGEST_BLOCK:
        gen = torch.Generator(device="cpu").manual_seed(0x9E3779B9)
        drawn = 2.0 * torch.bernoulli(torch.full((block,), 0.5), generator=gen) - 1.0
        np.testing.assert_array_equal(np.float32(random_signs._sign_values(block)), drawn.numpy())
        block *= 2


@pytest.mark.parametrize("dim", [2, 64, 80, 96, 128, 256])
def test_rotation_without_quantization_leaves_scores(dim, rng):
    """<R q, R k> / b is <q, k>, and rotating back gives the row, to 1e-6 relative."""
    q, k = rng.standard_normal((2, 50, dim)).astype(np.float32)
    xp, block = namespace(q), random_signs.block_of(dim)

    turned = random_signs.rotate(q, xp).astype(np.float64) * random_signs.rotate(k, xp).astype(np.float64)
    exact = (q.astype(np.float64) * k).sum(-1)
    size = np.linalg.norm(q, axis=-1) * np.linalg.norm(k, axis=-1)
    assert (np.abs(turned.sum(-1) / block - exact) <= 1e-6 * size).all()
    back = random_signs.rotate_back(random_signs.rotate(q, xp), xp)
    assert np.abs(back - q).max() <= 1e-6 * np.abs(q).max()


def test_heads_that_the_signs_do_not_reach_are_refused():
    """A block beyond the stored signs is named, and so is an odd head."""
    with pytest.raises(UserError, match="rotates blocks of 2048"):
        kvgate.codecs["int4_per_token_head"].encode(np.ones((1, 2048), np.float32))
    with pytest.raises(UserError, match="blocks of 2 elements, and a head of 63"):
        kvgate.codecs["int4_per_token_head"].encode(np.ones((1, 63), np.float32))


def test_the_zero_point_hides_in_the_scale(rng):
    """The four low bits of the scale are the zero point, and the scale with them is what decodes."""
    x = rows(rng, (200, 64), spread=0.5)
    name = "int4_per_token_head"
    packed = kvgate.codecs[name].encode(x)
    scale = scales_of(packed)
    zero = scale.view(np.int32) & 15

    y = to_bf16(random_signs.rotate(x, namespace(x)))
    clean = np.maximum((y.max(-1) - y.min(-1)) / np.float32(15), np.float32(1e-6))
    np.testing.assert_array_equal(scale.view(np.int32) >> 4, clean.view(np.int32) >> 4)
    np.testing.assert_array_equal(zero, np.clip(np.trunc(-y.min(-1) / clean + np.float32(0.5)), 0, 15))
    codes = np.stack([packed[:, :-4] & 15, packed[:, :-4] >> 4], -1).reshape(200, 64)
    values = ((codes - zero[:, None]).astype(np.float32) * scale[:, None]).astype(np.float32)
    np.testing.assert_array_equal(
        kvgate.codecs[name].decode(packed), random_signs.rotate_back(values, namespace(values))
    )


tensors = arrays(np.float32, (3, 8), elements=st.floats(-(2.0**90), 2.0**90, width=32))


@pytest.mark.parametrize("name", NAMES)
@given(x=tensors)
def test_no_element_is_further_than_the_bound(name, x):
    """The bound holds for any finite rows."""
    assert (over_bound(name, x) <= 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_holds_on_many_rows(name, rng):
    """Long rows of all sizes, equal and one-signed ones among them."""
    x = rows(rng, (2000, 128), spread=8)
    x[:200] = x[:200, :1]
    x[200:400] = np.abs(x[200:400]) + 10

    assert (over_bound(name, x) <= 1).all()


def test_the_bound_is_reached_by_integers_and_floats():
    """Half a step on both sides of every code; E4M3's ties."""
    codes = np.arange(-126, 127) + 0.5
    x = np.r_[codes, 127][None].astype(np.float32)
    assert (over_bound("int8_per_token_head", x)[0, :-1] > 0.98).all()

    grid = np.float64(kvgate.codecs["fp8_e4m3"].decode(np.arange(0x7F, dtype=np.uint8)))
    x = np.r_[(grid[:-1] + grid[1:]) / 2, 448][None].astype(np.float32)
    assert (over_bound("fp8_per_token_head", x)[0, :-1] > 0.98).all()


@pytest.mark.parametrize("target", [[7.5, -7.5, 0.49609375, 0.5], [7.5, 0.49609375, -7.5, 0.5]])
def test_the_bound_of_rotated_rows_is_reached(target):
    """Four values that rotate to ties, or within 1/256 of one: in one element the errors add up."""
    signs = np.float64(random_signs._sign_values(4))
    h = np.float64([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    y = np.float64(target)
    x = (h @ y / 4 * signs)[None].astype(np.float32)
    assert (random_signs.rotate(x, namespace(x)) == y).all()

    assert over_bound("int4_per_token_head", x).max() > 0.98


@pytest.mark.parametrize("name", NAMES)
def test_special_rows(name):
    """Zeros store the smallest scale; tiny rows are lost to it; equal rows of any sign come back within the bound."""
    zeros = np.zeros((1, 64), np.float32)
    packed = kvgate.codecs[name].encode(zeros)
    assert scales_of(packed)[0] == pytest.approx(1e-6, rel=1e-5)
    assert (kvgate.codecs[name].decode(packed) == 0).all()
    assert_same_on_torch(name, -zeros)
    for value in (7.3, -7.3, 1e-9, 3e4):
        x = np.full((1, 64), value, np.float32)
        assert (over_bound(name, x) <= 1).all()
        assert_same_on_torch(name, x)


def test_one_signed_rows_lose_their_offset_in_four_bits():
    """The zero point is clamped at 0: two values that rotate to one sign and a narrow span decode to 15 steps of it."""
    x = np.float32([[10.5, 0.25]])  # rotates to 10.25 and 10.75: a span of 0.5
    y = random_signs.rotate(x, namespace(x))
    assert sorted(np.abs(y[0])) == [10.25, 10.75] and len(set(np.sign(y[0]))) == 1

    back = kvgate.codecs["int4_per_token_head"].roundtrip(x)

    assert np.abs(back).max() <= 0.6
    assert kvgate.codecs["int4_per_token_head"].error_bound(x).max() > 9


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_nonfinite_value_makes_its_row_nan(name, bad):
    """The whole row, and no other one; numpy and torch write the same bytes."""
    x = np.ones((2, 64), np.float32)
    x[0, 5] = bad
    packed = kvgate.codecs[name].encode(x)

    back = kvgate.codecs[name].decode(packed)
    assert np.isnan(back[0]).all()
    assert np.isfinite(back[1]).all()
    assert np.isnan(kvgate.codecs[name].decode(torch.from_numpy(packed)).numpy()[0]).all()
    np.testing.assert_array_equal(kvgate.codecs[name].encode(torch.from_numpy(x)).numpy()[1], packed[1])


@pytest.mark.parametrize("name", ["int8_per_token_head", "fp8_per_token_head"])
def test_encoding_again_changes_nothing(name, rng):
    """Codes and scales stay, whatever the rows."""
    x = rows(rng, (3000, 128), spread=8)
    codec_ = kvgate.codecs[name]
    once = codec_.encode(x)

    np.testing.assert_array_equal(codec_.encode(codec_.decode(once)), once)


@pytest.mark.parametrize("steps", [127, 448])
def test_a_scale_survives_its_own_largest_value(steps):
    """For all 2**23 fractions of float32: the scale of a row of a / steps is a / steps again, hence the test above."""
    a = np.arange(127 << 23, 128 << 23, dtype=np.int32).view(np.float32)
    scale = a / np.float32(steps)

    np.testing.assert_array_equal((scale * np.float32(steps)) / np.float32(steps), scale)


def test_encoding_rotated_rows_again_moves_them(rng):
    """Rotation there and back rounds: some codes change, and the error stays what it was within a few percent."""
    x = to_bf16(rows(rng, (1000, 128), spread=0.3))
    codec_ = kvgate.codecs["int4_per_token_head"]
    values = codec_.roundtrip(x)
    first = ((values - x).astype(np.float64) ** 2).sum()
    for _ in range(10):
        values = codec_.roundtrip(values)
    tenth = ((values - x).astype(np.float64) ** 2).sum()

    assert not codec_.spec.numerics.idempotent
    assert first <= tenth <= 1.1 * first


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_vllms(name):
    """K and V of a head, each with its scale: dk + dv + 8 bytes, or half of that and 8; known without numpy."""
    one, layer = codec(name), LayerGeometry(0, "full_attention", 8, 128, 64)
    half = 2 if name.startswith("int4") else 1

    assert one.slot_bytes(layer, "k") == 8 * (128 // half + 4)
    assert one.slot_bytes(layer, "v") == 8 * (64 // half + 4)
    assert by_spelling("vllm", name) == name


def swap(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed[..., :-4] >> 4 | packed[..., :-4] << 4, packed[..., -4:]], axis=-1)


def other_head(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed[..., :-4], np.roll(packed[..., -4:], 1, axis=0)], axis=-1)


def no_zero_point(packed: np.ndarray) -> np.ndarray:
    out = packed.copy()
    out[..., -4] &= 0xF0
    return out


@pytest.mark.parametrize(
    ("mutant", "name"),
    [(other_head, n) for n in NAMES] + [(swap, "int4_per_token_head"), (no_zero_point, "int4_per_token_head")],
)
def test_mutants_break_the_bound(mutant, name, rng):
    """Another head's scale, swapped nibbles, a zero point that is not read."""
    x = rng.standard_normal((4, 256, 64)).astype(np.float32) * np.float32([0.01, 1, 30, 900]).reshape(4, 1, 1)
    codec_ = kvgate.codecs[name]

    broken = np.abs(x - codec_.decode(mutant(codec_.encode(x)))) > codec_.error_bound(x)
    assert broken.any(-1).mean() > 0.9


def test_rows_left_rotated_break_the_bound(rng):
    """Values that are not rotated back are seen."""
    x = rng.standard_normal((64, 64)).astype(np.float32)
    codec_ = kvgate.codecs["int4_per_token_head"]
    rotated = random_signs.rotate(codec_.roundtrip(x), namespace(x)) / np.float32(8)

    assert (np.abs(x - rotated) > codec_.error_bound(x)).mean() > 0.3
