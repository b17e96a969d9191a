"""int8 with a scale from outside: rounding at every tie, saturation, bound, the scale's direction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from low_bit_checks import assert_same_on_torch, over_bound, rows

import kvgate
from kvgate.formats.spec import by_spelling


def test_every_code_and_every_tie():
    """All 256 codes come back; halves go to even; what lies beyond saturates."""
    codec = kvgate.codecs["int8"]
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(codec.decode(codes, scale=0.5), codes.view(np.int8) * np.float32(0.5))
    np.testing.assert_array_equal(codec.encode(codec.decode(codes, scale=0.3), scale=0.3), codes)

    ties = np.arange(-130, 130).astype(np.float32) + np.float32(0.5)
    expected = np.clip(np.rint(ties), -128, 127).astype(np.int8).view(np.uint8)
    np.testing.assert_array_equal(codec.encode(ties), expected)
    special = np.float32([np.nan, np.inf, -np.inf, -0.0])
    assert codec.encode(special).view(np.int8).tolist() == [0, 127, -128, 0]
    assert_same_on_torch("int8", np.concatenate([ties, special]))


def test_stored_is_x_over_scale(rng):
    """The scale is the dequantization scale, one for the tensor or one a head."""
    x = rows(rng, (3, 40, 64), spread=0.5)
    per_head = np.abs(x).max((1, 2), keepdims=True) / np.float32(127)
    packed = kvgate.codecs["int8"].encode(x, scale=per_head)

    assert np.abs(packed.view(np.int8) - x / per_head).max() <= 0.5 + 1e-4
    assert_same_on_torch("int8", x, scale=per_head)
    for wrong in (1 / per_head, np.roll(per_head, 1, 0), per_head * 2):
        back = kvgate.codecs["int8"].decode(packed, scale=wrong.astype(np.float32))
        assert (np.abs(x - back) > kvgate.codecs["int8"].error_bound(x, scale=per_head)).mean() > 0.2


@given(
    x=arrays(np.float32, (3, 8), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    scale=st.floats(2.0**-60, 2.0**60, width=32),
)
def test_no_element_is_further_than_the_bound(x, scale):
    """The bound holds for any values and any scale."""
    assert (over_bound("int8", x, scale=scale) <= 1).all()


def test_the_bound_is_reached():
    """Half a step on both sides of each code, and by clipping."""
    x = np.r_[np.arange(-127, 127) + 0.5, 900, -900].astype(np.float32)

    assert (over_bound("int8", x) > 0.98).all()


def test_only_tensorrt_calls_it_so():
    """vLLM's int8 is per token and head."""
    assert by_spelling("trtllm", "int8") == "int8"
    with pytest.raises(Exception, match="int8_per_token_head"):
        by_spelling("vllm", "int8")
