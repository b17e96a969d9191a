"""Safetensors headers: byte ranges of real files, and every way in which a header can lie."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tiny_safetensors import entries, pack, tiny

from kvgate.core.errors import UserError
from kvgate.models.read_safetensors import DTYPE_BITS, read_safetensors


def _read(tmp_path, data):
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    return read_safetensors(path)


def _refusal(tmp_path, data):
    with pytest.raises(UserError) as caught:
        _read(tmp_path, data)
    message = str(caught.value)
    assert "\n" not in message and "m.safetensors" in message
    return message


def test_ranges_of_a_file_that_the_library_wrote(tmp_path):
    """Names, types, shapes and bytes are those that the format's own package has written."""
    arrays = {
        "a": np.ones((3, 5), np.float32),
        "b": np.ones((7,), np.float16),
        "c": np.ones((2, 2), np.int8),
        "empty": np.ones((0, 4), np.float32),
        "scalar": np.array(1.0, np.float32),
    }
    save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "np"})

    header = read_safetensors(tmp_path / "m.safetensors")

    assert {t.name: (t.shape, t.n_bytes) for t in header.tensors} == {k: (v.shape, v.nbytes) for k, v in arrays.items()}
    assert header.tensor_bytes == sum(v.nbytes for v in arrays.values())


def test_packed_four_bit_types_are_counted_in_bits(tmp_path):
    """Two F4 elements share a byte: 6 elements take 3."""
    header = {"w": {"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}}

    assert _read(tmp_path, pack(header)).tensor_bytes == 3
    assert DTYPE_BITS["F4"] == 4


def test_metadata_is_no_tensor(tmp_path):
    """The free text of the header is not counted."""
    header = {"__metadata__": {"format": "pt"}, **entries(("w", "BF16", (4,)))}

    assert [t.name for t in _read(tmp_path, pack(header)).tensors] == ["w"]


def _with(**change):
    header = entries(("w", "F32", (2, 3)))
    header["w"].update(change)
    return header


@pytest.mark.parametrize(
    ("data", "named"),
    [
        pytest.param(b"", "it is empty", id="empty"),
        pytest.param(b"\x05\0\0", "not a safetensors file", id="shorter than a length"),
        pytest.param(b"PK\x03\x04" + b"\0" * 20, "zip archive", id="another kind of file"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer", id="a pointer"),
        pytest.param(b"GGUF" + b"\3" + b"\0" * 40, "not a safetensors file", id="GGUF"),
        pytest.param(pack(entries(("w", "F32", (2,))), length=10**18), "not a safetensors file", id="a huge length"),
        pytest.param(pack(entries(("w", "F32", (2,))), length=60_000_000), "cut off", id="longer than the file"),
        pytest.param(pack(entries(("w", "F32", (2,))), length=1), "cut off", id="no room for an object"),
        pytest.param(pack(entries(("w", "F32", (2,))), length=9), "not JSON", id="a length inside the header"),
        pytest.param(pack(b'{"w":', 0), "not JSON", id="cut JSON"),
        pytest.param(pack(b'{"w": NaN}', 0), "NaN", id="NaN"),
        pytest.param(pack(b'{"a": {}, "a": {}}', 0), "twice", id="a name twice"),
        pytest.param(pack(b'{"w": {"dtype": "\xff"}}', 0), "UTF-8", id="no UTF-8"),
        pytest.param(pack(b'{"w":' * 100_000 + b"1" + b"}" * 100_000, 0), "nested", id="nested deeply"),
        pytest.param(pack(b'{"w": 5}', 0), "no object", id="no object"),
        pytest.param(pack(_with(dtype="F33"), 24), "unknown dtype", id="an unknown type"),
        pytest.param(pack(_with(dtype=None)), "unknown dtype", id="no type"),
        pytest.param(pack(_with(shape=[2, -3])), "no usable shape", id="a negative dimension"),
        pytest.param(pack(_with(shape=[2, True])), "no usable shape", id="a boolean dimension"),
        pytest.param(pack(_with(shape=[2, 3.0])), "no usable shape", id="a fractional dimension"),
        pytest.param(pack(_with(shape=[10**30])), "no usable shape", id="a dimension beyond 63 bits"),
        pytest.param(pack(_with(shape=[1] * 1000)), "no usable shape", id="a thousand dimensions"),
        pytest.param(pack(_with(shape=None)), "no usable shape", id="no shape"),
        pytest.param(pack(_with(shape=[2**62, 2**62])), "claims 24 bytes", id="a shape beyond its bytes"),
        pytest.param(pack(_with(dtype="BF16")), "claims 24 bytes", id="half the width"),
        pytest.param(pack(_with(data_offsets=[0]), 24), "no usable data_offsets", id="one offset"),
        pytest.param(pack(_with(data_offsets=[24, 0]), 24), "claims -24 bytes", id="an end before the start"),
        pytest.param(pack(_with(data_offsets=[8, 32])), "gap", id="a gap"),
        pytest.param(pack(entries(("w", "F32", (2, 3))), 20), "cut off", id="data cut"),
        pytest.param(pack(entries(("w", "F32", (2, 3))), 32), "belong to no tensor", id="data left over"),
        pytest.param(
            pack({**entries(("a", "F32", (2,))), "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}),
            "overlaps",
            id="an overlap",
        ),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, data, named):
    """One line names the file and what is wrong with it."""
    assert named in _refusal(tmp_path, data)


def test_a_file_that_is_not_there(tmp_path):
    """A missing file is a sentence too."""
    with pytest.raises(UserError, match="cannot read"):
        read_safetensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize("announced", [2**63, 2**40, 60 << 20])
def test_no_allocation_in_proportion_to_a_length_that_lies(tmp_path, announced):
    """An announced header of exabytes costs no memory: it is held against the file first."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(pack(entries(("w", "F32", (2,))), length=announced))
    tracemalloc.start()
    with pytest.raises(UserError):
        read_safetensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1 << 20


def test_several_gigabytes_are_read_only_in_their_header(tmp_path):
    """A sparse file of 6 GB is sized from its first bytes."""
    header = {"w": {"dtype": "U8", "shape": [6 << 30], "data_offsets": [0, 6 << 30]}}
    path = tmp_path / "m.safetensors"
    data = pack(header, 0)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + (6 << 30))

    assert read_safetensors(path).tensor_bytes == 6 << 30


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_random_bytes_are_only_ever_refused(tmp_path, data):
    """Whatever the bytes: an answer or a UserError."""
    _answer(tmp_path, data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from(["dtype", "shape", "data_offsets", None]),
    value=_JSON,
    extra=st.integers(0, 64),
    length=st.none() | st.integers(0, 2**64 - 1),
)
def test_changed_headers_are_only_ever_refused(tmp_path, field, value, extra, length):
    """Any value in any field, any length: an answer or a UserError."""
    header = entries(("a", "F32", (2, 3)), ("b", "BF16", (4,)))
    if field is None:
        header["b"] = value
    else:
        header["b"][field] = value
    _answer(tmp_path, pack(json.dumps(header).encode(), 24 + extra, length=length))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 400), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_damaged_files_are_only_ever_refused(tmp_path, at, byte, cut):
    """One wrong byte anywhere, or an end anywhere: an answer or a UserError."""
    data = bytearray(tiny(("a", "F32", (2, 3)), ("b", "BF16", (4,)), ("c", "U8", (9,))))
    data[at % len(data)] = byte
    _answer(tmp_path, bytes(data)[: len(data) - cut % len(data)])


def _answer(tmp_path, data):
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(data)
    try:
        assert read_safetensors(path).tensor_bytes <= len(data)
    except UserError as e:
        assert "\n" not in str(e)
