"""Reads a GGUF header: metadata and tensor table, no weights, no numpy.

Layout (v2, v3; little endian): "GGUF" | version u32 | tensors u64 | entries u64 | entries | tensor table | pad | data.
Big arrays (a tokenizer's tokens) are counted and skipped; values under "tokenizer." are hashed as they lie in the file.
Knows nothing about architectures; see `models/geometry_from_gguf.py`. Source: docs/gguf.md of ggml, version 3.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.models.byte_cursor import ByteCursor, Truncated
from kvgate.models.foreign_file import HEAD_BYTES, describe
from kvgate.models.ggml_types import TENSOR_TYPES

MAX_ENTRIES: Final = 65_536
MAX_TENSORS: Final = 65_536
MAX_NAME_BYTES: Final = 65_535
MAX_STRING_BYTES: Final = 1 << 24
#: Strings, arrays and names kept in memory, all together, with what Python spends on each.
MAX_KEPT_BYTES: Final = 1 << 26
_OBJECT_BYTES: Final = 64
MAX_KEPT_ELEMENTS: Final = 4096
MAX_DIMS: Final = 4
#: The largest vocabularies have a quarter of a million tokens and half a million merges.
MAX_STRINGS: Final = 1 << 22

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<B"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
#: Smallest possible entry (empty key, one-byte value) and tensor record; bounds for announced counts.
_MIN_ENTRY_BYTES, _MIN_TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """An array that was counted but not kept."""

    count: int


Value = Scalar | tuple[Scalar, ...] | SkippedArray


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table; `n_bytes` is None for a type this table does not know.

    `offset` counts from the start of the data section.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int | None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says before its weights.

    Attributes:
        meta: metadata by key. value_digests: sha256 of the raw value of each key under "tokenizer.".
        tensors: the tensor table. data_start: offset of the data section. size_bytes: of the whole file.
    """

    path: Path
    version: int
    meta: Mapping[str, Value]
    value_digests: Mapping[str, str]
    tensors: tuple[Tensor, ...]
    data_start: int
    size_bytes: int

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors of known type; the weights in memory before any repacking."""
        return sum(t.n_bytes or 0 for t in self.tensors)

    @property
    def main_tensor_type(self) -> str:
        """The type that holds most elements; "unknown" for a file without tensors."""
        elements: Counter[str] = Counter()
        for t in self.tensors:
            elements[t.type_name] += _product(t.shape)
        return elements.most_common(1)[0][0] if elements else "unknown"


def read_gguf(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        UserError: not a GGUF file, truncated, or announcing sizes that cannot be; one line that says which.
    """
    try:
        with path.open("rb") as file:
            size_bytes = path.stat().st_size
            cursor = ByteCursor(file, size_bytes)
            try:
                return _Reading(path, cursor).header()
            except Truncated as e:
                raise UserError(
                    f"{path} is cut off or damaged: {size_bytes} bytes end inside {e.what}",
                    fix="get the file again",
                ) from None
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from None


class _Reading:
    """One pass over one file."""

    def __init__(self, path: Path, cursor: ByteCursor) -> None:
        self.path, self.cursor, self.kept_bytes = path, cursor, 0
        self.digests: dict[str, str] = {}

    def header(self) -> GgufHeader:
        version = self.version()
        n_tensors = self.count("tensors", MAX_TENSORS, _MIN_TENSOR_BYTES)
        n_entries = self.count("metadata entries", MAX_ENTRIES, _MIN_ENTRY_BYTES)
        meta: dict[str, Value] = {}
        for _ in range(n_entries):
            key = self.text(MAX_NAME_BYTES, "a metadata key")
            if key in meta:
                raise self.bad(f"the metadata key {key!r} comes twice")
            meta[key] = self.value(key)
        tensors = self.tensors(n_tensors)
        start = self.data_start(meta)
        self.check_data(tensors, start)
        return GgufHeader(self.path, version, meta, self.digests, tensors, start, self.cursor.size_bytes)

    def bad(self, what: str) -> UserError:
        return UserError(f"{self.path} is not a usable GGUF file: {what}")

    def version(self) -> int:
        head = self.cursor.take(min(HEAD_BYTES, self.cursor.size_bytes), "the first bytes")
        if head[:4] != b"GGUF":
            raise UserError(f"{self.path} is not a GGUF file ({describe(head)})", fix="give the path of a .gguf file")
        self.cursor.rewind(4)
        version = int(self.cursor.number(_U32, "the version"))
        if version in (0x02000000, 0x03000000):
            raise self.bad("it is big-endian, and this machine's engine reads little-endian files")
        if version not in (2, 3):
            raise self.bad(f"version {version}; versions 2 and 3 can be read")
        return version

    def count(self, what: str, cap: int, min_bytes: int) -> int:
        n = int(self.cursor.number(_U64, f"the number of {what}"))
        if n > cap or n * min_bytes > self.cursor.left_bytes:
            raise self.bad(f"it announces {n} {what} in {self.cursor.size_bytes} bytes")
        return n

    def text(self, max_bytes: int, what: str) -> str:
        size = int(self.cursor.number(_U64, what))
        if size > max_bytes:
            raise self.bad(f"{what} announces {size} bytes; at most {max_bytes} are read")
        if size > self.cursor.left_bytes:
            raise Truncated(what)
        self.keep(size + _OBJECT_BYTES)
        # Tokens of some models are cut inside a character; a lone byte must not make a file unreadable.
        return self.cursor.take(size, what).decode("utf-8", errors="replace")

    def keep(self, n_bytes: int) -> None:
        self.kept_bytes += n_bytes
        if self.kept_bytes > MAX_KEPT_BYTES:
            raise self.bad(f"its metadata takes more than {MAX_KEPT_BYTES} bytes")

    def value(self, key: str) -> Value:
        kind = int(self.cursor.number(_U32, f"the type of {key!r}"))
        start = self.cursor.offset
        value = self.array(key) if kind == _ARRAY else self.scalar(kind, key)
        if key.startswith("tokenizer."):
            self.digests[key] = self.cursor.sha256(start, self.cursor.offset)
        return value

    def scalar(self, kind: int, key: str) -> Scalar:
        if kind == _STRING:
            return self.text(MAX_STRING_BYTES, f"the value of {key!r}")
        if kind not in _NUMBERS:
            raise self.bad(f"{key!r} has the unknown type {kind}")
        number: int | float = self.cursor.number(_NUMBERS[kind], f"the value of {key!r}")
        return bool(number) if kind == _BOOL else number

    def array(self, key: str) -> Value:
        kind = int(self.cursor.number(_U32, f"the element type of {key!r}"))
        if kind == _ARRAY:
            raise self.bad(f"{key!r} is an array of arrays")
        if kind != _STRING and kind not in _NUMBERS:
            raise self.bad(f"{key!r} has elements of the unknown type {kind}")
        count = int(self.cursor.number(_U64, f"the length of {key!r}"))
        element_bytes = 8 if kind == _STRING else _NUMBERS[kind].size
        if count * element_bytes > self.cursor.left_bytes:
            raise self.bad(f"{key!r} announces {count} elements in {self.cursor.size_bytes} bytes")
        what = f"the elements of {key!r}"
        if count <= MAX_KEPT_ELEMENTS:
            self.keep(count * _OBJECT_BYTES)
            return tuple(self.scalar(kind, key) for _ in range(count))
        if kind == _STRING:
            if count > MAX_STRINGS:
                raise self.bad(f"{key!r} announces {count} strings, and at most {MAX_STRINGS} are read past")
            self.cursor.skip_strings(count, MAX_STRING_BYTES, what)
        else:
            self.cursor.skip(count * element_bytes, what)
        return SkippedArray(count)

    def tensors(self, count: int) -> tuple[Tensor, ...]:
        found: dict[str, Tensor] = {}
        for _ in range(count):
            tensor = self.tensor()
            if tensor.name in found:
                raise self.bad(f"the tensor {tensor.name!r} comes twice")
            found[tensor.name] = tensor
        return tuple(found.values())

    def tensor(self) -> Tensor:
        name = self.text(MAX_NAME_BYTES, "a tensor's name")
        n_dims = int(self.cursor.number(_U32, f"the tensor {name!r}"))
        if n_dims > MAX_DIMS:
            raise self.bad(f"the tensor {name!r} announces {n_dims} dimensions")
        shape = tuple(int(self.cursor.number(_U64, f"the tensor {name!r}")) for _ in range(n_dims))
        kind = int(self.cursor.number(_U32, f"the tensor {name!r}"))
        offset = int(self.cursor.number(_U64, f"the tensor {name!r}"))
        known = TENSOR_TYPES.get(kind)
        if known is None:
            return Tensor(name, f"type {kind}", shape, offset, None)
        row = shape[0] if shape else 1
        if row % known.block:
            raise self.bad(f"the tensor {name!r} has rows of {row}, not a multiple of {known.name}'s {known.block}")
        return Tensor(name, known.name, shape, offset, _product(shape) // known.block * known.block_bytes)

    def data_start(self, meta: Mapping[str, Value]) -> int:
        align = meta.get("general.alignment", 32)
        if not isinstance(align, int) or isinstance(align, bool) or align < 1 or align & (align - 1) or align > 2**20:
            raise self.bad(f"general.alignment is {align!r}")
        return -(-self.cursor.offset // align) * align

    def check_data(self, tensors: tuple[Tensor, ...], start: int) -> None:
        for t in tensors:
            end = start + t.offset + (t.n_bytes or 0)
            if end > self.cursor.size_bytes:
                raise UserError(
                    f"{self.path} is cut off: it has {self.cursor.size_bytes} bytes, and the tensor {t.name!r} "
                    f"ends at {end}",
                    fix="get the file again",
                )


def _product(shape: tuple[int, ...]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n
