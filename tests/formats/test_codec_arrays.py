"""`kvgate.codecs`: shapes, libraries, dtypes, chunks, memory, and every refusal."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import kvgate
from kvgate.core.errors import UserError
from kvgate.formats import codec as machinery
from kvgate.formats.spec import CodecSpec, UnknownCodec, codec, codecs

BLOCKS = ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "ggml_mxfp4", "ggml_nvfp4"]
OURS = [*BLOCKS, "q8_1", "f32", "f16", "bf16"]


def finite_rows(dim: int) -> st.SearchStrategy[np.ndarray]:
    """float32 [1..3, dim] with any finite values."""
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
    mild = st.floats(-64, 64, width=32)
    shape = st.tuples(st.integers(1, 3), st.just(dim))
    return hnp.arrays(np.float32, shape, elements=floats) | hnp.arrays(np.float32, shape, elements=mild)


@pytest.mark.parametrize("name", OURS)
@given(data=st.data())
def test_no_element_is_further_off_than_the_bound(name, data):
    """Whatever the finite values, each decoded element lies within its bound; NaN only where the bound is infinite."""
    one = kvgate.codecs[name]
    x = data.draw(finite_rows(one.spec.block if one.spec.block > 1 else 8))

    with np.errstate(all="ignore"):
        error = np.abs(one.decode(one.encode(x)).astype(np.float64) - x)
    bound = one.error_bound(x)

    assert not np.isnan(bound).any()
    assert np.all((error <= bound) | np.isinf(bound))


@pytest.mark.parametrize("name", OURS)
@given(data=st.data())
def test_numpy_and_torch_give_the_same_bytes(name, data):
    """Any float32 whatever, NaN and infinities included, is packed to the same bytes from both libraries."""
    one = kvgate.codecs[name]
    dim = one.spec.block if one.spec.block > 1 else 8
    x = data.draw(hnp.arrays(np.uint32, (2, dim), elements=st.integers(0, 2**32 - 1))).view(np.float32)
    if name == "f32":
        x = np.where(np.isnan(x), np.float32(np.nan), x)

    assert np.array_equal(one.encode(x), one.encode(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("name", OURS)
def test_a_cache_keeps_its_shape(name, rng):
    """(batch, kv_heads, tokens, head_dim) becomes (batch, kv_heads, tokens, row_bytes), and each row is its own."""
    one = kvgate.codecs[name]
    x = rng.standard_normal((2, 3, 5, 128)).astype(np.float32)

    packed = one.encode(x)

    assert packed.shape == (2, 3, 5, one.spec.row_bytes(128))
    assert np.array_equal(packed[1, 2, 3], one.encode(x[1, 2, 3]))
    assert one.decode(packed).shape == x.shape
    assert np.array_equal(one.decode(packed)[0, 1, 4], one.decode(packed[0, 1, 4]))


@pytest.mark.parametrize("name", OURS)
def test_chunks_do_not_show(name, rng, monkeypatch):
    """Bytes, values and bounds are those of the whole array whatever the chunk, also a chunk smaller than a block."""
    one = kvgate.codecs[name]
    x = rng.standard_normal((37, 128)).astype(np.float32)
    packed, back, bound = one.encode(x), one.decode(one.encode(x)), one.error_bound(x)

    for size in (1, 100, 1000):
        monkeypatch.setattr(machinery, "CHUNK_ELEMENTS", size)
        monkeypatch.setattr(machinery, "TORCH_CHUNK_ELEMENTS", size)
        for array in (x, torch.from_numpy(x)):
            assert np.array_equal(one.encode(array), packed)
            assert np.array_equal(one.decode(one.encode(array)), back)
            assert np.array_equal(one.error_bound(array), bound)
            assert np.array_equal(one.roundtrip(array), back)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("shape", [(0, 128), (2, 0, 64), (0,), (3, 0)])
def test_nothing_is_packed_into_nothing(name, shape):
    """No tokens, or rows of no elements, give no bytes and come back as nothing."""
    one = kvgate.codecs[name]
    for x in (np.empty(shape, np.float32), torch.empty(shape)):
        packed = one.encode(x)
        assert tuple(packed.shape) == (*shape[:-1], one.spec.row_bytes(shape[-1]))
        assert tuple(one.decode(packed).shape) == shape
        assert tuple(one.roundtrip(x).shape) == tuple(one.error_bound(x).shape) == shape


def test_arrays_need_not_be_contiguous(rng):
    """Transposed, strided, reversed and Fortran-ordered arrays are packed as their copies are."""
    one = kvgate.codecs["q4_0"]
    x = rng.standard_normal((64, 6, 64)).astype(np.float32)
    for view in (x.transpose(1, 2, 0), x[::2, :, ::-1], np.asfortranarray(x), x[:, 1]):
        assert np.array_equal(one.encode(view), one.encode(view.copy()))
    tensor = torch.from_numpy(x).permute(1, 2, 0)
    assert torch.equal(one.encode(tensor), one.encode(tensor.contiguous()))
    packed = one.encode(x)
    assert np.array_equal(one.decode(packed.transpose(1, 0, 2)), one.decode(packed).transpose(1, 0, 2))
    assert np.array_equal(one.decode(packed[::2]), one.decode(packed)[::2])


@pytest.mark.parametrize("name", OURS)
def test_16_bit_values_are_widened_exactly(name, rng):
    """float16 and bfloat16 give the bytes of the same values in float32; roundtrip keeps the dtype."""
    one = kvgate.codecs[name]
    x = rng.standard_normal((7, 64)).astype(np.float32)
    for array in (
        x.astype(np.float16),
        x.astype(ml_dtypes.bfloat16),
        torch.from_numpy(x).half(),
        torch.from_numpy(x).bfloat16(),
        x.astype(">f4"),
    ):
        wide = array.float().numpy() if isinstance(array, torch.Tensor) else array.astype(np.float32)
        assert np.array_equal(np.asarray(one.encode(array)), one.encode(wide))
        assert one.roundtrip(array).dtype == array.dtype
        assert one.decode(one.encode(array)).dtype == (torch.float32 if isinstance(array, torch.Tensor) else np.float32)


def test_gradients_are_left_out():
    """A tensor that requires a gradient is packed; what comes back requires none."""
    x = torch.randn(2, 32, requires_grad=True)

    assert not kvgate.codecs["q8_0"].roundtrip(x).requires_grad


@pytest.mark.parametrize("name", [*BLOCKS, "f16", "bf16"])
def test_temporaries_stay_small(name):
    """Beside the result, less memory than the input is in use at any time, both ways."""
    one = kvgate.codecs[name]
    x = np.ones((4, 8, 512, 128), np.float32)
    for _ in range(2):  # the first round fills caches of constants
        packed = one.encode(x)
        tracemalloc.start()
        one.encode(x)
        up = tracemalloc.get_traced_memory()[1] - packed.nbytes
        tracemalloc.reset_peak()
        one.decode(packed)
        down = tracemalloc.get_traced_memory()[1] - x.nbytes
        tracemalloc.stop()

    assert up < x.nbytes / 2
    assert down < x.nbytes / 2


X = np.zeros((2, 64), np.float32)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c["q8_0"].encode(np.zeros((2, 80), np.float32)), r"blocks of 32.*80 is not.*nearest: 64 or 96.*f16"),
        (lambda c: c["q8_0"].encode(np.zeros((2, 16), np.float32)), r"nearest: 32\)"),
        (lambda c: c["ggml_nvfp4"].encode(np.zeros(96, np.float32)), r"blocks of 64.*nearest: 64 or 128"),
        (lambda c: c["q8_0"].encode(X.astype(np.float64)), "float32, float16 or bfloat16, not float64.*convert"),
        (lambda c: c["q8_0"].encode(X.astype(np.int32)), "not int32"),
        (lambda c: c["q8_0"].encode(X.astype(np.complex64)), "not complex64"),
        (lambda c: c["f32"].encode(X > 0), "not bool"),
        (lambda c: c["q4_0"].encode(torch.zeros(2, 64, dtype=torch.float64)), "not float64"),
        (lambda c: c["q4_0"].encode(torch.zeros(2, 64, dtype=torch.int8)), "not int8"),
        (lambda c: c["q4_0"].encode([[0.0] * 64]), "numpy arrays and torch tensors, not list"),
        (lambda c: c["q4_0"].encode(None), "not NoneType"),
        (lambda c: c["q4_0"].encode(np.float32(1)), "not float32"),
        (lambda c: c["q4_0"].encode(np.zeros((), np.float32)), r"at least one dimension \[..., dim\]"),
        (lambda c: c["q4_0"].encode(X, scale=1.0), "finds its own scales"),
        (lambda c: c["q4_0"].encode(X, overflow="inf"), "no overflow policy 'inf'; allowed: saturate"),
        (lambda c: c["q4_0"].decode(np.zeros((2, 36), np.int8)), "decodes uint8 bytes, not int8"),
        (lambda c: c["q4_0"].decode(np.zeros((2, 36), np.float32)), "not float32"),
        (lambda c: c["q4_0"].decode(torch.zeros(2, 36, dtype=torch.int32)), "not int32"),
        (lambda c: c["q4_0"].decode(b"12345678"), "not bytes"),
        (lambda c: c["q4_0"].decode(np.zeros((2, 37), np.uint8)), "32 elements in 18 bytes; no row takes 37 bytes"),
        (lambda c: c["q4_0"].decode(np.zeros((2, 36), np.uint8), dim=32), "32 elements takes 18 bytes in q4_0; got 36"),
        (lambda c: c["q4_0"].decode(np.zeros((2, 36), np.uint8), dim=40), "blocks of 32"),
        (lambda c: c["q4_0"].decode(np.uint8(3)), "not uint8"),
        (lambda c: c["q4_0"].decode(np.zeros((), np.uint8)), "at least one dimension"),
        (lambda c: c["q4-0"], r"unknown codec 'q4-0'; allowed: .*did you mean 'q4_0'\?"),
        (lambda c: c["bfloat"], r"did you mean 'bf16'\?"),
        (lambda c: c["fp8_e4m3fm"], r"did you mean 'fp8_e4m3'\?"),
        (lambda c: c[8], "unknown codec 8; allowed"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=0.0), r"the scale of fp8_e4m3 is 0; scales are positive and finite"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=-1), "is -1; scales"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=float("nan")), "is nan; scales"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=float("inf")), "is inf; scales"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=1e-60), "is 0; scales"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=10**400), "is inf; scales"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=np.float64(0)), "is 0; scales"),
        (
            lambda c: c["fp8_e4m3"].encode(X, scale=np.array([[1], [0]], np.float32)),
            r"of element \(1, 0\) of fp8_e4m3 is 0",
        ),
        (lambda c: c["fp8_e4m3"].decode(X.astype(np.uint8), scale=-1.0), "is -1; scales"),
        (
            lambda c: c["fp8_e4m3"].encode(X, scale=np.ones(3, np.float32)),
            r"shape \(3,\) does not fit.*\(kv_heads, 1, 1\)",
        ),
        (lambda c: c["fp8_e4m3"].encode(X, scale=np.ones((2, 2, 1), np.float32)), "does not fit"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=np.ones((2, 1))), "must be float32, float16 or bfloat16, not float64"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=torch.ones(2, 1)), "an array like the values.*numpy"),
        (lambda c: c["fp8_e4m3"].encode(torch.zeros(2, 64), scale=np.ones((2, 1), np.float32)), "torch tensor on cpu"),
        (lambda c: c["fp8_e4m3"].encode(X, scale="1"), "must be a number or an array"),
        (lambda c: c["fp8_e4m3"].encode(X, scale=True), "must be a number or an array"),
        (lambda c: c["fp8_e4m3"].encode(X, overflow="clip"), "no overflow policy 'clip'; allowed: saturate, nan"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(call, said):
    """The message names the thing, what is allowed, and the fix."""
    with pytest.raises(UserError, match=said) as refused:
        call(kvgate.codecs)

    assert "\n" not in str(refused.value)


def test_mixed_devices_are_refused():
    """A scale on another device than the values is named with the device of the values."""
    with pytest.raises(UserError, match="torch tensor on cpu"):
        kvgate.codecs["fp8_e4m3"].encode(torch.zeros(2, 64), scale=torch.ones(2, 1, device="meta"))


def test_a_codec_without_arithmetic_says_so():
    """A codec of which only the size is known is refused by name, not by an attribute error."""
    bare = CodecSpec(name="bare", block=1, block_bytes=1, description="", source=codec("f16").source)

    with pytest.raises(UserError, match=r"bare has a size here but no arithmetic; allowed: .*q4_0"):
        machinery.Codec(bare).encode(X)


def test_codecs_is_a_mapping():
    """It lists the codecs with arithmetic, knows what it holds, and an unknown name is a KeyError too."""
    assert set(OURS) <= set(kvgate.codecs)
    assert set(kvgate.codecs) == {c.name for c in codecs() if c.numerics}
    assert "q4_0" in kvgate.codecs
    assert "q4" not in kvgate.codecs
    assert kvgate.codecs.get("q4") is None
    assert len(kvgate.codecs) == len(list(kvgate.codecs))
    with pytest.raises(KeyError):
        kvgate.codecs["q4"]
    assert issubclass(UnknownCodec, UserError)


def test_torch_is_never_imported_for_the_caller():
    """Encoding numpy arrays imports no torch, and importing the codecs imports no numpy."""
    code = (
        "import sys, kvgate; c = kvgate.codecs['q8_0']; assert 'numpy' not in sys.modules\n"
        "import numpy; c.roundtrip(numpy.ones((2, 32), 'f')); assert 'torch' not in sys.modules"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", sorted(kvgate.codecs))
def test_rows_without_elements_are_rows(name):
    """(3, 0) in, (3, 0) out, both ways, for every codec."""
    codec = kvgate.codecs[name]
    x = np.zeros((3, 0), np.float32)

    assert codec.encode(x).shape == codec.error_bound(x).shape == codec.roundtrip(x).shape == (3, 0)
    assert codec.decode(np.zeros((3, 0), np.uint8)).shape == (3, 0)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.ma.array(np.ones((2, 64), np.float32), mask=True), "no masked arrays"),
        (torch.empty(2, 64, device="meta"), "not a tensor on the meta device"),
        (torch.ones(2, 64).to_sparse(), "not a tensor sparse_coo"),
    ],
)
def test_arrays_without_all_their_values_are_refused(x, says):
    """A mask would be lost, and the others have nothing to store."""
    with pytest.raises(UserError, match=says):
        kvgate.codecs["q8_0"].encode(x)
