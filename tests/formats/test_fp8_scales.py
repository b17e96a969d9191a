"""FP8 with scales: per tensor and per head, the direction that vLLM stores, bounds, and scales that are refused."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from low_bit_checks import assert_same_on_torch, golden, over_bound, rows

import kvgate
from kvgate.core.errors import UserError
from kvgate.formats import scales
from kvgate.formats.numbers import FLOAT_SPECS
from kvgate.formats.scales import LayerScale, check_scales

NAMES = ["fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "fp8_e5m2fnuz"]
E4M3 = FLOAT_SPECS["e4m3fn"]


def as_vllm_stores(x: np.ndarray, scale: np.ndarray | np.float32) -> np.ndarray:
    """fp8(x / scale), the dequantization scale, saturating: the rule of vLLM's reshape_and_cache."""
    y = np.clip((x / scale).astype(np.float32), -448, 448)
    return y.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


@pytest.mark.parametrize("scale", [1.0, 0.0231, 3.7, 2.0**-10])
def test_stored_is_x_over_scale(scale, rng):
    """One scale for the tensor: bytes are fp8(x / scale), values are the code times the scale."""
    x = rows(rng, (2, 3, 5, 64))
    packed = kvgate.codecs["fp8_e4m3"].encode(x, scale=scale)

    np.testing.assert_array_equal(packed, as_vllm_stores(x, np.float32(scale)))
    np.testing.assert_array_equal(
        kvgate.codecs["fp8_e4m3"].decode(packed, scale=scale),
        packed.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale),
    )
    assert_same_on_torch("fp8_e4m3", x, scale=scale)


def test_each_head_has_its_own_scale(rng):
    """(kv_heads, 1, 1) scales: each head is stored with its own, and only with its own."""
    x = rows(rng, (2, 4, 9, 32))
    per_head = np.float32([0.02, 0.5, 1.0, 7.0]).reshape(4, 1, 1)
    packed = kvgate.codecs["fp8_e4m3"].encode(x, scale=per_head)

    np.testing.assert_array_equal(packed, as_vllm_stores(x, per_head))
    for head in range(4):
        alone = kvgate.codecs["fp8_e4m3"].encode(x[:, head], scale=float(per_head[head, 0, 0]))
        np.testing.assert_array_equal(packed[:, head], alone)
    assert_same_on_torch("fp8_e4m3", x, scale=per_head)


MUTANTS = {
    "reciprocal": lambda s: 1 / s,
    "another head's": lambda s: np.roll(s, 1, axis=0),
    "shifted by one place": lambda s: s * np.float32(2),
    "fnuz doubled": lambda s: np.float32([scales.for_fnuz(v) for v in s.ravel()]).reshape(s.shape),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_scale_breaks_bytes_and_bound(mutant, rng):
    """The comparisons above see a scale that is inverted, shifted, or another head's."""
    x = rows(rng, (4, 16, 64), spread=0.5)
    per_head = np.abs(x).max(axis=(1, 2), keepdims=True) / np.float32(448)
    wrong = MUTANTS[mutant](per_head).astype(np.float32)
    codec = kvgate.codecs["fp8_e4m3"]

    assert (codec.encode(x, scale=wrong) != as_vllm_stores(x, per_head)).mean() > 0.2
    back = codec.decode(codec.encode(x, scale=per_head), scale=wrong)
    assert (np.abs(x - back) > codec.error_bound(x, scale=per_head)).mean() > 0.2


values = arrays(np.float32, (3, 8), elements=st.floats(-(2.0**100), 2.0**100, width=32))
factors = arrays(np.float32, (3, 1), elements=st.floats(2.0**-60, 2.0**60, width=32))


@pytest.mark.parametrize("policy", ["saturate", "nan"])
@pytest.mark.parametrize("name", NAMES)
@given(x=values, scale=factors)
def test_no_element_is_further_than_the_bound(name, policy, x, scale):
    """The bound holds for any values and any scale; it is infinite only where the policy throws the value away."""
    assert (over_bound(name, x, scale=scale, overflow=policy) <= 1).all()
    if policy == "saturate":
        assert np.isfinite(kvgate.codecs[name].error_bound(x, scale=scale)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_reached(name, rng):
    """Within 2 %, by rounding (in the normal and the subnormal range) and by saturation alike."""
    spec = kvgate.codecs[name].spec.numerics.number
    grid = np.float64(spec.values[: spec.max_code + 1])
    middles = ((grid[:-1] + grid[1:]) / 2 * 0.25).astype(np.float32)

    reached = over_bound(name, middles, scale=0.25)
    assert (reached > 0.98).all() and (reached <= 1).all()
    assert over_bound(name, np.float32([spec.max * 3]), scale=0.25)[0] > 0.98


@pytest.mark.parametrize("name", NAMES)
def test_encoding_again_changes_nothing(name, rng):
    """encode(decode(b)) is b, whatever the scales."""
    x = rows(rng, (64, 128))
    scale = np.exp(rng.uniform(-9, 9, (64, 1))).astype(np.float32)
    codec = kvgate.codecs[name]
    once = codec.encode(x, scale=scale)

    np.testing.assert_array_equal(codec.encode(codec.decode(once, scale=scale), scale=scale), once)


@pytest.mark.parametrize("bad", [0.0, -0.5, float("nan"), float("inf")])
def test_an_unusable_scale_is_refused_with_its_place(bad):
    """Zero, negative, NaN and infinity are refused, by the element that holds them."""
    x = np.ones((3, 2, 8), np.float32)
    with pytest.raises(UserError, match=r"fp8_e4m3 is .*scales are positive and finite"):
        kvgate.codecs["fp8_e4m3"].encode(x, scale=bad)
    per_head = np.ones((3, 1, 1), np.float32)
    per_head[2] = bad
    with pytest.raises(UserError, match=r"element \(2, 0, 0\)"):
        kvgate.codecs["fp8_e4m3"].encode(x, scale=per_head)
    with pytest.raises(UserError, match=r"element \(2, 0, 0\)"):
        kvgate.codecs["fp8_e4m3"].decode(torch.ones(3, 2, 8, dtype=torch.uint8), scale=torch.from_numpy(per_head))


def test_scales_that_do_not_fit_are_refused():
    """A scale must broadcast against the rows, and lie where the values do."""
    x = np.ones((3, 2, 8), np.float32)
    with pytest.raises(UserError, match="does not fit"):
        kvgate.codecs["fp8_e4m3"].encode(x, scale=np.ones((4, 1, 1), np.float32))
    with pytest.raises(UserError, match="must be a number or an array like the values"):
        kvgate.codecs["fp8_e4m3"].encode(x, scale=torch.ones(3, 1, 1))
    with pytest.raises(UserError, match="no overflow policy 'inf'"):
        kvgate.codecs["fp8_e4m3"].encode(x, overflow="inf")


def test_an_amax_whose_scale_vanishes_gives_none():
    """1e-44 is a float32, but a 448th of it is not: that scale would be 0."""
    with pytest.raises(UserError, match="1e-44 gives no scale"):
        scales.scale_for(1e-44, FLOAT_SPECS["e4m3fn"])


def test_a_scale_is_amax_over_the_largest_code():
    """The convention of compressed-tensors' KV scales; nothing is made of an amax that was not observed."""
    assert scales.scale_for(448.0, E4M3) == 1.0
    assert scales.scale_for(8.87, E4M3) == pytest.approx(0.0198, rel=1e-3)
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UserError, match="gives no scale"):
            scales.scale_for(bad, E4M3)


@pytest.mark.parametrize("strategy", ["tensor", "attn_head"])
def test_the_convention_is_that_of_compressed_tensors(strategy):
    """Its scales are amax / 448 in the shapes that we take, and its codes and values are ours, head by head."""
    data = golden("compressed_tensors_kv")
    x, scale = data["x"], data[f"scale_{strategy}"]
    observed = data[f"amax_{strategy}"].reshape(scale.shape)
    codec = kvgate.codecs["fp8_e4m3"]

    for amax, found in zip(observed.ravel(), scale.ravel(), strict=True):
        if amax > 0:
            assert np.float32(scales.scale_for(float(amax), E4M3)) == found
        else:
            assert found == np.finfo(np.float32).eps  # a head of zeros: positive, so that nothing is divided by zero
    packed = codec.encode(x, scale=scale)
    np.testing.assert_array_equal(packed, data[f"codes_{strategy}"])
    np.testing.assert_array_equal(codec.decode(packed, scale=scale), data[f"values_{strategy}"])
    if strategy == "attn_head":
        assert (codec.encode(x, scale=np.roll(scale, 1, axis=0)) != packed).mean() > 0.5


def test_fnuz_takes_twice_the_scale():
    """With it, fnuz codes hold the same values as E4M3FN's, up to vLLM's 224 of 240."""
    codes = np.arange(0x77, dtype=np.uint8)  # 0x77 is 240 in E4M3FN, 120 in fnuz
    plain = kvgate.codecs["fp8_e4m3"].decode(codes, scale=0.3)

    np.testing.assert_array_equal(kvgate.codecs["fp8_e4m3fnuz"].decode(codes, scale=scales.for_fnuz(0.3)), plain)


def half_zero(layers: int) -> list[LayerScale]:
    """A published failure: every decoder layer's scales are exactly zero, every encoder layer's are fine."""
    return [LayerScale(n, side, (0.02 if n < layers // 2 else 0.0,)) for n in range(layers) for side in ("k", "v")]


def test_bad_scales_are_counted_and_named():
    """Half a file of zeros: a spot check of layer 0 would pass."""
    with pytest.raises(UserError, match=r"60 of 120 KV scales cannot be used: layer 30 k is 0, .* and 56 more"):
        check_scales(half_zero(60), dict.fromkeys(range(60), 8))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (LayerScale(1, "v", (-0.1,)), "1 of 4 .*layer 1 v is -0.1"),
        (LayerScale(1, "v", (float("nan"),)), "layer 1 v is nan"),
        (LayerScale(1, "v", (0.1, 0.2, float("inf"), 0.1)), "layer 1 v is inf at head 2"),
        (LayerScale(1, "v", (1e-50,)), "layer 1 v is 1e-50"),
        (LayerScale(1, "v", (1e39,)), r"layer 1 v is 1e\+39"),
        (LayerScale(1, "v", (0.1, 0.2)), "layer 1 v has 2 values for 4 KV heads"),
        (LayerScale(0, "k", (0.1,)), "layer 0 k is given twice"),
        (LayerScale(7, "v", (0.1,)), "scale of layer 7 v, but no such layer"),
        (None, "1 of 4 KV scales are absent: layer 1 v.*engines take 1.0"),
    ],
)
def test_each_kind_of_bad_scale_is_refused(wrong, said):
    """Wrong value, wrong shape, twice, too many, too few."""
    good = [LayerScale(0, "k", (0.1,)), LayerScale(0, "v", (0.1, 0.2, 0.3, 0.4)), LayerScale(1, "k", (0.3,))]
    with pytest.raises(UserError, match=said):
        check_scales(good if wrong is None else [*good, wrong], {0: 4, 1: 4})


def test_good_scales_are_found_by_layer_and_side():
    """One number or one a head, in any order."""
    good = [
        LayerScale(n, side, (0.1,) * count) for n, side, count in ((1, "v", 4), (0, "k", 1), (1, "k", 4), (0, "v", 1))
    ]

    assert check_scales(good, {0: 4, 1: 4})[1, "v"].values == (0.1,) * 4


def test_a_single_scale_works_on_all_ranks_of_arrays():
    """Vectors and empty arrays are rows too."""
    codec = kvgate.codecs["fp8_e5m2"]
    for shape in ((8,), (0, 8), (2, 0), (1, 1, 1, 4)):
        x = np.ones(shape, np.float32)
        assert codec.decode(codec.encode(x, scale=2.0), scale=2.0).shape == shape
