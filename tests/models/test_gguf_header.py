"""The GGUF reader on good files, with the gguf package as oracle on a real one."""

import hashlib
import struct

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from tiny_gguf import F32, Q4_1, TinyGguf, tiny_model

from kvgate.core.errors import UserError
from kvgate.models.geometry_from_gguf import template_digest, tokenizer_digest, weights_dtype
from kvgate.models.ggml_types import FILE_TYPES, TENSOR_TYPES
from kvgate.models.read_gguf import MAX_KEPT_ELEMENTS, SkippedArray, read_gguf

EVERY_TYPE = [
    ("n.u8", "u8", 255),
    ("n.i8", "i8", -128),
    ("n.u16", "u16", 65535),
    ("n.i16", "i16", -32768),
    ("n.u32", "u32", 2**32 - 1),
    ("n.i32", "i32", -(2**31)),
    ("n.f32", "f32", 0.5),
    ("n.yes", "bool", 1),
    ("n.no", "bool", 0),
    ("n.u64", "u64", 2**64 - 1),
    ("n.i64", "i64", -(2**63)),
    ("n.f64", "f64", 0.1),
    ("n.str", "str", "grüße\n"),
    ("n.arr", ("array", "i32"), [1, -2, 3]),
    ("n.strs", ("array", "str"), ["", "b"]),
    ("n.empty", ("array", "f32"), []),
]


def _read(tmp_path, data):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return read_gguf(path)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_is_read(tmp_path, version):
    """All scalar types, strings and arrays come back as written, in versions 2 and 3."""
    header = _read(tmp_path, TinyGguf(EVERY_TYPE, version=version).build())

    assert header.version == version
    for key, kind, value in EVERY_TYPE:
        expected = tuple(value) if isinstance(kind, tuple) else bool(value) if kind == "bool" else value
        assert header.meta[key] == expected
        assert type(header.meta[key]) is type(expected)


def test_the_tensor_table_has_sizes(tmp_path):
    """Names, types, shapes, offsets and bytes; the data begins at the alignment."""
    header = _read(
        tmp_path,
        TinyGguf(
            [("general.alignment", "u32", 64)],
            [("a", (64, 3), Q4_1), ("b", (5,), F32), ("c", (), F32)],
            align=64,
        ).build(),
    )

    assert [(t.name, t.type_name, t.shape, t.offset, t.n_bytes) for t in header.tensors] == [
        ("a", "Q4_1", (64, 3), 0, 120),
        ("b", "F32", (5,), 128, 20),
        ("c", "F32", (), 192, 4),
    ]
    assert header.tensor_bytes == 144
    assert header.main_tensor_type == "Q4_1"
    assert header.data_start % 64 == 0
    assert header.data_start + 192 + 64 == header.size_bytes


def test_a_tensor_type_from_the_future_is_listed(tmp_path):
    """A type that the table does not know has no size and stops nothing; the engine decides."""
    header = _read(tmp_path, TinyGguf([], [("a", (64,), (999, 1, 1))]).build())

    assert (header.tensors[0].type_name, header.tensors[0].n_bytes) == ("type 999", None)
    assert header.main_tensor_type == "type 999"


@pytest.mark.parametrize("element", ["str", "f32"])
def test_long_arrays_are_counted_not_kept(tmp_path, element):
    """An array over the limit is a count; what comes after it is still read, also across buffer borders."""
    n = 40_000
    values = [f"token {i}" * (i % 40) for i in range(n)] if element == "str" else [0.0] * n
    data = TinyGguf([("tokenizer.ggml.tokens", ("array", element), values), ("after", "u32", 7)]).build()

    header = _read(tmp_path, data)

    assert header.meta["tokenizer.ggml.tokens"] == SkippedArray(n)
    assert header.meta["after"] == 7


def test_one_long_string_in_a_long_array_is_skipped(tmp_path):
    """A string larger than the read buffer does not stop the walk."""
    values = ["x"] * MAX_KEPT_ELEMENTS + ["y" * 700_000, "z"]
    header = _read(tmp_path, TinyGguf([("t", ("array", "str"), values), ("after", "u32", 7)]).build())

    assert header.meta == {"t": SkippedArray(len(values)), "after": 7}


def test_value_digests_hash_the_bytes_of_the_file(tmp_path):
    """Each tokenizer value is identified by its raw bytes; other keys are not hashed."""
    header = _read(tmp_path, TinyGguf([("tokenizer.x", "u32", 7), ("other", "u32", 7)]).build())

    assert header.value_digests == {"tokenizer.x": hashlib.sha256(struct.pack("<I", 7)).hexdigest()}


def test_tokenizer_and_template_are_told_apart(tmp_path):
    """A new chat template changes the template's digest only; a new token changes the tokenizer's only."""

    def both(token, template):
        extra = [("tokenizer.ggml.model", "str", token), ("tokenizer.chat_template", "str", template)]
        header = _read(tmp_path, tiny_model(extra=extra))
        return tokenizer_digest(header), template_digest(header)

    base, other_template, other_token = both("bpe", "A"), both("bpe", "B"), both("spm", "A")

    assert base[0] == other_template[0] != other_token[0]
    assert base[1] == other_token[1] != other_template[1]
    assert base[1] == hashlib.sha256(b"A").hexdigest()


def test_a_file_without_tokenizer_has_no_digests(tmp_path):
    """Unknown is None, not the digest of nothing."""
    header = _read(tmp_path, TinyGguf([("a", "u32", 1)]).build())

    assert tokenizer_digest(header) is None
    assert template_digest(header) is None
    assert weights_dtype(header) == "unknown"


@pytest.mark.parametrize(("kind", "name"), [(15, "Q4_K_M"), (15 | 1024, "Q4_K_M"), (7777, "Q4_1"), (0, "F32")])
def test_weights_dtype_is_the_files_word(tmp_path, kind, name):
    """general.file_type names the mix, also when guessed; an unknown number falls back on the tensors."""
    header = _read(tmp_path, tiny_model(extra=[("general.file_type", "u32", kind)]))

    assert weights_dtype(header) == name


def test_type_tables_are_ggmls(tmp_path):
    """Numbers, names and sizes equal the gguf package's; Q8_1 is 36 bytes in ggml, 40 in that package."""
    theirs = {t.value: (t.name, *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}
    theirs[9] = ("Q8_1", 32, 36)

    for number, mine in TENSOR_TYPES.items():
        # An older gguf package may lack the newest types; what both know must agree.
        assert number > 39 or number in theirs
        assert tuple(mine) == theirs.get(number, tuple(mine))
    for kind in LlamaFileType:
        if kind.name != "GUESSED":
            assert FILE_TYPES[kind.value] == kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")


def test_a_real_file_equals_the_oracle(smollm2):
    """Metadata and tensor table of SmolLM2 are what the gguf package reads."""
    header, oracle = read_gguf(smollm2), GGUFReader(smollm2)
    theirs = {k: f for k, f in oracle.fields.items() if not k.startswith("GGUF.")}

    assert set(header.meta) == set(theirs)
    for key, value in header.meta.items():
        field = theirs[key]
        if isinstance(value, SkippedArray):
            assert value.count == len(field.data)
        elif field.types[0] is GGUFValueType.ARRAY:
            assert list(value) == field.contents()
        else:
            assert value == field.contents()
    assert [(t.name, t.type_name, t.shape, t.n_bytes) for t in header.tensors] == [
        (t.name, t.tensor_type.name, tuple(int(d) for d in t.shape), int(t.n_bytes)) for t in oracle.tensors
    ]
    assert header.data_start == oracle.data_offset
    assert [header.data_start + t.offset for t in header.tensors] == [int(t.data_offset) for t in oracle.tensors]
    assert header.tensor_bytes == int(np.sum([t.n_bytes for t in oracle.tensors])) == 96_576_768
    assert weights_dtype(header) == "Q4_1"
    assert template_digest(header) == hashlib.sha256(theirs["tokenizer.chat_template"].contents().encode()).hexdigest()


def test_a_missing_file_is_one_line(tmp_path):
    """The path and the system's reason."""
    with pytest.raises(UserError, match=r"cannot read .*nothing.gguf: No such file"):
        read_gguf(tmp_path / "nothing.gguf")
