"""The GGUF reader on cut, changed and foreign files: one line, no other exception, no large allocation."""

import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tiny_gguf import F32, TinyGguf, model_entries, tiny_model

from kvgate.core.errors import UserError
from kvgate.models.geometry_from_gguf import geometry_from_gguf, tokenizer_digest, weights_dtype
from kvgate.models.read_gguf import MAX_KEPT_BYTES, read_gguf

#: The reader's own buffer is 256 KiB; a file of a few hundred bytes has no reason to cost more than two of them.
SMALL_FILE_BOUND_BYTES = 2 * 2**18

_BUILDER = TinyGguf(
    [*model_entries(), ("general.tags", ("array", "str"), ["a", "bc"]), ("general.f", "f64", 1.5)],
    [("token_embd.weight", (64, 3), F32)],
)
GOOD = _BUILDER.build()
FIELDS = list(_BUILDER.offsets)
HEADER_END = FIELDS[-1]

quick = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _outcome(path, data):
    """The refusal's line, or None if the file was read whole."""
    path.write_bytes(data)
    try:
        header = read_gguf(path)
        geometry_from_gguf(header)
        tokenizer_digest(header)
        weights_dtype(header)
    except UserError as e:
        assert "\n" not in str(e)
        return str(e)
    return None


def test_the_file_under_test_is_good(tmp_path):
    """The damage below is damage to a file that is read."""
    assert _outcome(tmp_path / "m.gguf", GOOD) is None


@pytest.mark.parametrize("at", sorted({*FIELDS, *(f + 1 for f in FIELDS), len(GOOD) - 1} - {len(GOOD)}))
def test_a_cut_at_any_field_is_refused(tmp_path, at):
    """Cut before, or one byte into, each field: the line says that the file is cut off or what it is not."""
    said = _outcome(tmp_path / "m.gguf", GOOD[:at])

    assert said is not None
    assert "cut off" in said or "announces" in said or "is not a GGUF file" in said


@quick
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(tmp_path, data):
    """Noise, bare and behind a valid beginning, is a user error or nothing at all."""
    assert data.startswith(b"GGUF") or _outcome(tmp_path / "m.gguf", data) is not None
    _outcome(tmp_path / "m.gguf", GOOD[:8] + data)
    _outcome(tmp_path / "m.gguf", GOOD[:24] + data)


@quick
@given(st.integers(0, len(GOOD) * 8 - 1))
def test_one_flipped_bit_is_read_or_refused(tmp_path, bit):
    """Nothing but UserError, and no allocation beyond the bound."""
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8

    tracemalloc.start()
    try:
        _outcome(tmp_path / "m.gguf", bytes(data))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < SMALL_FILE_BOUND_BYTES


@quick
@given(st.sampled_from(FIELDS), st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1]), st.sampled_from("IQ"))
@example(FIELDS[2], 2**64 - 1, "Q")
@example(FIELDS[3], 2**64 - 1, "Q")
def test_absurd_numbers_in_any_field_allocate_nothing(tmp_path, at, value, form):
    """A field overwritten by an extreme number is read or refused within the bound."""
    data = bytearray(GOOD)
    struct.pack_into("<" + form, data, min(at, len(GOOD) - 8), value & (2**32 - 1 if form == "I" else 2**64 - 1))

    tracemalloc.start()
    try:
        _outcome(tmp_path / "m.gguf", bytes(data))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < SMALL_FILE_BOUND_BYTES


def test_kept_metadata_is_bounded(tmp_path):
    """A file that is nothing but small arrays stops at the cap, counted with what Python spends on each element."""
    entries = [(f"k{i}", ("array", "u16"), [i] * 4096) for i in range(300)]
    path = tmp_path / "m.gguf"
    path.write_bytes(TinyGguf(entries).build())

    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=f"more than {MAX_KEPT_BYTES} bytes"):
            read_gguf(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1.25 * MAX_KEPT_BYTES


def _raw(*parts):
    return b"".join(parts)


_HEAD = _raw(b"GGUF", struct.pack("<I", 3))


def _entry(key, kind, payload):
    return _raw(struct.pack("<Q", len(key)), key, struct.pack("<I", kind), payload)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a GGUF file .it is empty"),
        (b"GG", r"is not a GGUF file .starts with b'GG'"),
        (b"PK\x03\x04" + b"\0" * 60, "a zip archive"),
        (b"\x80\x02}q\x00" + b"\0" * 60, "a Python pickle"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (struct.pack("<Q", 300) + b'{"__metadata__":{}}', "a safetensors file"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b'{"model_type": "llama"}', "JSON text"),
        (b"tjgg" + b"\0" * 60, "a GGJT file from before GGUF"),
        (TinyGguf(model_entries(), order=">").build(), "it is big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1; versions 2 and 3"),
        (_HEAD + struct.pack("<QQ", 10**12, 0), "announces 1000000000000 tensors"),
        (_HEAD + struct.pack("<QQ", 0, 10**12), "announces 1000000000000 metadata entries"),
        (
            _HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**60) + b"\0" * 64,
            "announces 1152921504606846976 bytes",
        ),
        (
            _HEAD + struct.pack("<QQ", 0, 1) + _entry(b"k", 9, struct.pack("<IQ", 4, 2**40)) + b"\0" * 64,
            "'k' announces 1099511627776 elements",
        ),
        (
            _HEAD + struct.pack("<QQ", 0, 1) + _entry(b"k", 9, struct.pack("<IQ", 9, 1)) + b"\0" * 64,
            "'k' is an array of arrays",
        ),
        (_HEAD + struct.pack("<QQ", 0, 1) + _entry(b"k", 77, b"\0" * 64), "'k' has the unknown type 77"),
        (
            _HEAD + struct.pack("<QQ", 0, 1) + _entry(b"k", 9, struct.pack("<IQ", 77, 1)) + b"\0" * 64,
            "elements of the unknown type 77",
        ),
        (TinyGguf([("a", "u8", 1), ("a", "u8", 1)]).build(), "'a' comes twice"),
        (TinyGguf([], [("t", (4,), F32), ("t", (4,), F32)]).build(), "the tensor 't' comes twice"),
        (TinyGguf([], [("t", (1,) * 5, F32)]).build(), "announces 5 dimensions"),
        (TinyGguf([], [("t", (33,), (3, 32, 20))]).build(), "rows of 33, not a multiple of Q4_1's 32"),
        (TinyGguf([("general.alignment", "u32", 3)]).build(), "general.alignment is 3"),
        (TinyGguf([("general.alignment", "u32", 0)]).build(), "general.alignment is 0"),
        (TinyGguf([("general.alignment", "str", "8")]).build(), "general.alignment is '8'"),
        (tiny_model()[:-1], r"is cut off: it has \d+ bytes, and the tensor 'output_norm.weight' ends at \d+"),
    ],
)
def test_each_kind_of_damage_has_its_line(tmp_path, data, said):
    """The line names what is wrong, or what the file is instead."""
    path = tmp_path / "m.gguf"
    path.write_bytes(data)

    with pytest.raises(UserError, match=said):
        read_gguf(path)


def test_a_file_that_shrinks_while_read_is_cut_off(tmp_path):
    """The size that was seen at the start is not believed when bytes stop coming."""
    from kvgate.models.byte_cursor import ByteCursor, Truncated

    path = tmp_path / "m"
    path.write_bytes(b"12345678")
    with path.open("rb") as file:
        cursor = ByteCursor(file, 1000)
        with pytest.raises(Truncated, match="the thing"):
            cursor.take(900, "the thing")


@pytest.mark.parametrize(
    "move",
    [
        lambda c: c.skip(9, "the thing"),
        lambda c: c.take(9, "the thing"),
        lambda c: c.skip_strings(1, 100, "the thing"),
        lambda c: c.skip_strings(1, 10, "the thing"),
    ],
)
def test_the_cursor_never_leaves_the_file(tmp_path, move):
    """Taking, skipping and walking strings past the end is refused where it happens; the position stays."""
    from kvgate.models.byte_cursor import ByteCursor, Truncated

    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", 50))
    with path.open("rb") as file:
        cursor = ByteCursor(file, 8)
        with pytest.raises(Truncated, match="the thing"):
            move(cursor)

        assert cursor.offset == 0
