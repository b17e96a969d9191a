"""NVFP4 as vLLM caches it: bytes of its reference, direction of the scale, pages, 4-over-6, bounds, special blocks."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from low_bit_checks import assert_same_on_torch, bf16, golden, over_bound, rows

import kvgate
from kvgate.core.errors import UserError
from kvgate.formats.nvfp4_pages import from_side, to_side

CODECS = ["nvfp4", "nvfp4_4over6"]
VALUES = np.float64([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def codes_of(data: np.ndarray) -> np.ndarray:
    """Nibbles of packed bytes, low one first."""
    return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


def one_block(x: np.ndarray, k_scale: float, divisors: tuple[float, ...]) -> tuple[bytes, int]:
    """A block of 16 by the rule, step by step in float32: data and scale of the divisor that loses least."""
    f = np.float32
    g = f(1) / f(k_scale)
    best = None
    for divisor in divisors:
        with np.errstate(all="ignore"):
            wanted = min(f(g * f(np.abs(x).max() * f(f(1) / f(divisor)))), f(448))
        s = f(wanted).astype(ml_dtypes.float8_e4m3fn)
        inverse = f(0) if f(s) == 0 else f(f(1) / f(f(s) * f(f(1) / g)))
        q = np.clip(x * inverse, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        back = f(0) if inverse == 0 else f(f(1) / inverse)
        d = (q.astype(f) * back).astype(f) - x
        total = f(0)
        for i in range(0, 16, 2):
            total = f(total + f(f(d[i] * d[i]) + f(d[i + 1] * d[i + 1])))
        if best is None or total < best[0]:
            codes = q.view(np.uint8)
            best = (total, (codes[0::2] | codes[1::2] << 4).tobytes(), int(s.view(np.uint8)))
    return best[1], best[2]


@pytest.mark.parametrize("which", ["unit", "small", "large"])
def test_bytes_are_those_of_vllms_reference(which):
    """Scales and codes of `ref_nvfp4_quant`, with its global scale the reciprocal of ours."""
    data = golden("vllm_nvfp4")
    x, k_scale = bf16(data["x"]), data[f"k_scale_{which}"]

    packed = kvgate.codecs["nvfp4"].encode(x, scale=float(k_scale))

    np.testing.assert_array_equal(packed[:, 64:], data[f"scales_{which}"])
    np.testing.assert_array_equal(VALUES[codes_of(packed[:, :64])], data[f"values_{which}"])
    assert_same_on_torch("nvfp4", x, scale=float(k_scale))


def test_rounding_is_vllms(rng):
    """E2M1 rounds like vLLM's `cast_to_fp4` on a grid of eighths, ties included."""
    data = golden("vllm_nvfp4")
    grid = data["grid"].astype(np.float32)
    x = np.zeros((len(grid), 16), np.float32)
    x[:, 0], x[:, 1] = grid, np.where(np.abs(grid) <= 6, 6, 0)  # a 6 beside it: the block's scale is 1

    back = kvgate.codecs["nvfp4"].decode(kvgate.codecs["nvfp4"].encode(x))

    inside = np.abs(grid) <= 6
    np.testing.assert_array_equal(back[inside, 0], data["grid_values"][inside])


@pytest.mark.parametrize("k_scale", [1.0, 0.01, 33.0])
def test_the_scale_is_a_dequantization_scale(k_scale, rng):
    """A tensor k times as large with k as its scale has the same bytes, and comes back k times as large."""
    x = rows(rng, (40, 64), spread=0.5)
    codec = kvgate.codecs["nvfp4"]
    # A power of two keeps every rounding where it was.
    factor = 2.0 ** round(np.log2(k_scale))

    np.testing.assert_array_equal(codec.encode(x * np.float32(factor), scale=factor), codec.encode(x))
    packed = codec.encode(x, scale=k_scale)
    step = packed[:, 32:].view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(k_scale)
    expected = VALUES[codes_of(packed[:, :32])].astype(np.float32).reshape(40, 4, 16) * step[..., None]
    np.testing.assert_array_equal(codec.decode(packed, scale=k_scale), expected.reshape(40, 64))


@pytest.mark.parametrize(("name", "divisors"), [("nvfp4", (6.0,)), ("nvfp4_4over6", (6.0, 4.0))])
@pytest.mark.parametrize("k_scale", [1.0, 0.0231])
def test_blocks_follow_the_rule(name, divisors, k_scale, rng):
    """Each block by the rule in plain float32 steps; 4-over-6 takes amax/4 where that loses less, and only there."""
    x = rows(rng, (300, 16))
    x[0], x[1], x[2] = 0, 7.3, np.linspace(10, 11, 16)

    packed = kvgate.codecs[name].encode(x, scale=k_scale)

    expected = [one_block(block, k_scale, divisors) for block in x]
    assert [row[:8].tobytes() for row in packed] == [data for data, _ in expected]
    assert packed[:, 8].tolist() == [scale for _, scale in expected]
    assert_same_on_torch(name, x, scale=k_scale)


def test_four_over_six_loses_less(rng):
    """Never a larger squared error than amax/6, and a smaller one in a share of blocks; both choices occur."""
    x = rows(rng, (2000, 16), spread=0.2)
    plain, better = kvgate.codecs["nvfp4"], kvgate.codecs["nvfp4_4over6"]
    loss = [((c.roundtrip(x).astype(np.float64) - x) ** 2).sum(-1) for c in (plain, better)]

    assert (loss[1] <= loss[0] * (1 + 1e-6)).all()
    changed = (plain.encode(x) != better.encode(x)).any(-1)
    assert 0.1 < changed.mean() < 0.9
    assert (loss[1] < loss[0])[changed].mean() > 0.99


def test_each_head_has_its_own_scale(rng):
    """One scale a head, as calibration by head gives them."""
    x = rows(rng, (3, 5, 64), spread=0.5)
    per_head = np.float32([0.01, 1.0, 30.0]).reshape(3, 1, 1)

    packed = kvgate.codecs["nvfp4"].encode(x, scale=per_head)

    for head in range(3):
        np.testing.assert_array_equal(
            packed[head], kvgate.codecs["nvfp4"].encode(x[head], scale=float(per_head[head, 0, 0]))
        )
    assert_same_on_torch("nvfp4", x, scale=per_head)


tensors = arrays(np.float32, (2, 32), elements=st.floats(-(2.0**80), 2.0**80, width=32))


@pytest.mark.parametrize("name", CODECS)
@given(x=tensors, scale=st.floats(2.0**-40, 2.0**40, width=32))
def test_no_element_is_further_than_the_bound(name, x, scale):
    """The bound holds for any finite values and any scale."""
    assert (over_bound(name, x, scale=scale) <= 1).all()


REACHED = {
    "every tie": (["nvfp4"], [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] * 2, [0, 1, 2, 3, 4, 5, 6]),
    "a tie of amax/4": (["nvfp4_4over6"], [16, 14] + [0] * 14, [1]),
    "a scale at its end": (CODECS, [1e9] + [0] * 15, [0]),
    "a scale that is zero": (CODECS, [1e-4] + [0] * 15, [0]),
}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, (names, _, _) in REACHED.items() for n in names])
def test_the_bound_is_reached(kind, name):
    """At ties, by saturation of a scale that is at its end, and where a block's scale rounds to zero."""
    _, block, at = REACHED[kind]

    assert (over_bound(name, np.float32([block]))[0, at] > 0.98).all()


SPECIAL = {
    "zeros": (np.zeros(16), 0.0),
    "negative zeros": (-np.zeros(16), 0.0),
    "all equal": (np.full(16, 6.0), 6.0),
    "too small for a scale": (np.full(16, 1e-4), 0.0),
    "subnormal scale": (np.full(16, 6 * 2.0**-9), 6 * 2.0**-9),
    "too large": (np.full(16, 1e30), 2688.0),
    "infinite": (np.full(16, np.inf), 2688.0),
}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_blocks(name, kind):
    """What each becomes is stated: zero below the smallest scale, 6 * 448 beyond the largest."""
    x, expected = SPECIAL[kind]
    x = x.astype(np.float32).reshape(1, 16)

    np.testing.assert_array_equal(kvgate.codecs[name].roundtrip(x), np.full((1, 16), expected, np.float32))
    assert_same_on_torch(name, x)
    assert_same_on_torch(name, -x)


@pytest.mark.parametrize("name", CODECS)
def test_a_nan_becomes_the_largest_code_and_leaves_its_block_alone(name):
    """As on the GPU: a maximum overlooks it, and the conversion makes it 6."""
    x = np.linspace(-6, 6, 16, dtype=np.float32).reshape(1, 16)
    x[0, 3] = np.nan
    back = kvgate.codecs[name].roundtrip(x)

    assert back[0, 3] > 0 and np.isfinite(back).all()
    assert back[0, 15] == 6
    assert_same_on_torch(name, x)


def test_encoding_again_is_stated():
    """Where scales are normal numbers nothing moves; below, a scale may fall, and the codec says so."""
    codec = kvgate.codecs["nvfp4"]
    rng = np.random.default_rng(5)
    x = rng.standard_normal((500, 64)).astype(np.float32)
    once = codec.encode(x)
    np.testing.assert_array_equal(codec.encode(codec.decode(once)), once)

    small = x * np.float32(0.01)
    once = codec.encode(small)
    assert (codec.encode(codec.decode(once)) != once).any(axis=-1).mean() > 0.05
    assert not codec.spec.numerics.idempotent


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_pages_are_vllms(order):
    """Data and scales of a page's rows lie where vLLM's views look for them."""
    data = golden("vllm_nvfp4")
    sides = data[f"page_{order}"].reshape(2, -1)
    for page in range(2):
        rows_ = from_side(sides[page], 3, 16, order)
        seen = np.concatenate([data[f"page_data_{order}"][page], data[f"page_scales_{order}"][page]], axis=-1)
        np.testing.assert_array_equal(rows_, seen if order == "HND" else seen.swapaxes(0, 1))
        np.testing.assert_array_equal(to_side(rows_, order), sides[page])
        np.testing.assert_array_equal(to_side(torch.from_numpy(rows_.copy()), order).numpy(), sides[page])


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_shuffled_scales_lie_where_the_kernel_looks(dim, order, rng):
    """Compute capability 10: scale (t, s) at token 4 (t div 4) + s div (S/4), group 4 (s mod (S/4)) + t mod 4."""
    heads, tokens, groups = 2, 8, dim // 16
    packed = rng.integers(0, 256, (heads, tokens, dim * 9 // 16), dtype=np.uint8)
    side = to_side(packed, order, shuffled=True)
    data_bytes = heads * tokens * dim // 2
    shape = (heads, tokens, groups) if order == "HND" else (tokens, heads, groups)
    scales = side[data_bytes:].reshape(shape)
    scales = scales if order == "HND" else scales.swapaxes(0, 1)

    for t in range(tokens):
        for s in range(groups):
            at = 4 * (t // 4) + s // (groups // 4), 4 * (s % (groups // 4)) + t % 4
            np.testing.assert_array_equal(scales[:, at[0], at[1]], packed[:, t, dim // 2 + s])
    np.testing.assert_array_equal(side[:data_bytes], to_side(packed, order)[:data_bytes])
    np.testing.assert_array_equal(from_side(side, heads, tokens, order, shuffled=True), packed)


def test_pages_that_do_not_fit_are_refused(rng):
    """No rows, no whole side, or nothing to shuffle by fours."""
    with pytest.raises(UserError, match="rows \\[kv_heads, tokens"):
        to_side(np.zeros((2, 8), np.uint8))
    with pytest.raises(UserError, match="do not hold 3 heads of 16 tokens"):
        from_side(np.zeros(100, np.uint8), 3, 16)
    with pytest.raises(UserError, match="shuffled by fours"):
        to_side(np.zeros((2, 6, 36), np.uint8), shuffled=True)


@pytest.mark.parametrize(
    ("rows", "order", "says"),
    [
        (np.zeros((2, 8, 36), np.float32), "HND", "uint8 bytes, not float32"),
        (np.zeros((2, 8, 36), np.int8), "HND", "uint8 bytes, not int8"),
        (np.zeros((2, 8, 36), np.uint8), "NDH", "no order 'NDH'; allowed: HND, NHD"),
    ],
)
def test_what_is_no_page_is_refused_both_ways(rows, order, says):
    """Values instead of bytes, and orders that no cache has."""
    with pytest.raises(UserError, match=says):
        to_side(rows, order)
    with pytest.raises(UserError, match=says):
        from_side(rows.reshape(-1), 2, 8, order)


def test_a_side_is_one_run_of_bytes():
    """Two axes, or heads and tokens below zero whose product is not."""
    with pytest.raises(UserError, match="one run of bytes"):
        from_side(np.zeros((36, 16), np.uint8), 2, 8)
    with pytest.raises(UserError, match="do not hold -2 heads of -8 tokens"):
        from_side(np.zeros(36 * 16, np.uint8), -2, -8)


def swap(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed[..., :32] >> 4 | packed[..., :32] << 4, packed[..., 32:]], axis=-1)


def shift(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed[..., :32], packed[..., 32:] + 8], axis=-1)


def other_block(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed[..., :32], np.roll(packed[..., 32:], 1, axis=-1)], axis=-1)


@pytest.mark.parametrize("mutant", [swap, shift, other_block])
def test_mutants_break_the_bound(mutant, rng):
    """Swapped nibbles, a scale twice as large, a neighbour's scale."""
    x = rows(rng, (64, 64), spread=0.5)
    x[:, 16:32] *= 9
    codec = kvgate.codecs["nvfp4"]

    assert (np.abs(x - codec.decode(mutant(codec.encode(x)))) > codec.error_bound(x)).mean() > 0.1


def test_an_inverted_scale_breaks_the_bound(rng):
    """The direction of the global scale is seen by the bound."""
    x = rows(rng, (64, 64), spread=0.5)
    codec = kvgate.codecs["nvfp4"]

    back = codec.decode(codec.encode(x, scale=0.05), scale=20.0)
    assert (np.abs(x - back) > codec.error_bound(x, scale=0.05)).mean() > 0.5
