"""Reads a safetensors header: names, types and byte ranges of the tensors, never the tensors.

Layout: length of the header (u64, little endian) | header, JSON | data. Every tensor says dtype, shape and its range in
the data; ranges follow each other without gap or overlap and end with the file. A header that says something else than
its file or itself is refused. Source: the format's own description and safetensors 0.6 `safetensors/src/tensor.rs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.models.foreign_file import HEAD_BYTES, describe
from kvgate.models.read_json import parse_json_object

#: The format's own bound is 100,000,000 bytes; the largest header seen (many experts in one file) is under 20 MB.
MAX_HEADER_BYTES: Final = 64 << 20
_MAX_DIMS: Final = 16
_METADATA: Final = "__metadata__"

#: Bits of one element.
DTYPE_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "U64": 64,
    "I64": 64,
}


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor: `start` and `end` count from the start of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def n_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What one file says before its data."""

    path: Path
    tensors: tuple[SafeTensor, ...]
    size_bytes: int

    @property
    def tensor_bytes(self) -> int:
        return sum(t.n_bytes for t in self.tensors)


def read_safetensors(path: Path) -> SafetensorsHeader:
    """Read the header of a safetensors file.

    Raises:
        UserError: not such a file, cut off, or a header that does not fit its file; one line that says which.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(HEAD_BYTES)
            length = _header_length(path, head, size)
            file.seek(8)
            data = file.read(length)
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from None
    if len(data) < length:
        raise UserError(f"{path} is cut off: it ends inside its header", fix="get the file again")
    entries = parse_json_object(data, f"the header of {path}", fix="get the file again")
    tensors = tuple(_tensor(path, name, entry) for name, entry in entries.items() if name != _METADATA)
    _check_ranges(path, tensors, size - 8 - length)
    return SafetensorsHeader(path, tensors, size)


def _header_length(path: Path, head: bytes, size: int) -> int:
    """The announced length, held against the file's size before anything is read."""
    length = int.from_bytes(head[:8], "little")
    if len(head) < 9 or head[8:9] != b"{" or length > MAX_HEADER_BYTES:
        # A length beyond the bound usually is another kind of file; its first bytes say which.
        raise UserError(f"{path} is not a safetensors file ({describe(head)})", fix="give the model's own files")
    if length < 2 or length > size - 8:
        raise UserError(
            f"{path} is cut off: it announces a header of {length:,} bytes and has {size:,}", fix="get the file again"
        )
    return length


def _bad(path: Path, what: str) -> UserError:
    return UserError(f"{path} is not a usable safetensors file: {what}", fix="get the file again")


def _tensor(path: Path, name: str, entry: object) -> SafeTensor:
    shown = one_line(name, 80)
    if not isinstance(entry, Mapping):
        raise _bad(path, f"the tensor {shown!r} is no object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _bad(path, f"the tensor {shown!r} has the unknown dtype {one_line(repr(dtype), 40)}")
    if not _counts(shape) or not isinstance(shape, list) or len(shape) > _MAX_DIMS:
        raise _bad(path, f"the tensor {shown!r} has no usable shape")
    if not _counts(offsets) or not isinstance(offsets, list) or len(offsets) != 2:
        raise _bad(path, f"the tensor {shown!r} has no usable data_offsets")
    start, end = offsets
    bits = DTYPE_BITS[dtype]
    for dim in shape:
        bits *= dim
    if (end - start) * 8 != bits:
        raise _bad(path, f"the tensor {shown!r} is {dtype} {shape} and claims {end - start:,} bytes")
    return SafeTensor(name, dtype, tuple(shape), start, end)


def _counts(value: object) -> bool:
    """Whether it is a list of whole numbers from 0 to 2**63 - 1."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def _check_ranges(path: Path, tensors: tuple[SafeTensor, ...], data_bytes: int) -> None:
    """Ranges must follow each other from 0 to the end of the file."""
    at = 0
    for tensor in sorted(tensors, key=lambda t: (t.start, t.end)):
        if tensor.start != at:
            what = "overlaps another" if tensor.start < at else "leaves a gap before it"
            raise _bad(path, f"the tensor {one_line(tensor.name, 80)!r} {what}")
        at = tensor.end
    if at > data_bytes:
        raise UserError(
            f"{path} is cut off: its tensors take {at:,} bytes and {data_bytes:,} are there", fix="get the file again"
        )
    if at < data_bytes:
        raise _bad(path, f"{data_bytes - at:,} bytes belong to no tensor")
