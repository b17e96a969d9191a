"""Reads one tensor of a .safetensors or .npy file in slices of rows, as float32. Never the whole file, never pickle.

F32, F16 and BF16 are taken, and widened exactly; anything else is refused, because nothing is cast silently.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.models.read_safetensors import SafeTensor, SafetensorsHeader, read_safetensors

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_NPY: Final = b"\x93NUMPY"
#: Type -> codec of its own and numpy's word for what lies in the file.
_FLOATS: Final = {"F32": ("f32", "<f4"), "F16": ("f16", "<f2"), "BF16": ("bf16", "<u2")}
#: Keys that an error lists.
_LISTED: Final = 40


@dataclass(frozen=True, slots=True)
class TensorFile:
    """One tensor of a file: `data_start` is where its bytes begin, row-major, of numpy type `stored`."""

    path: Path
    key: str
    shape: tuple[int, ...]
    native: str
    stored: str
    data_start: int

    def rows(self, start: int, stop: int) -> Array:
        """float32 [stop - start, dim]: rows along the last axis in row-major order of the others."""
        import numpy as np

        kind, dim = np.dtype(self.stored), self.shape[-1]
        try:
            with self.path.open("rb") as file:
                file.seek(self.data_start + start * dim * kind.itemsize)
                raw = file.read((stop - start) * dim * kind.itemsize)
        except OSError as e:
            raise UserError(f"cannot read {self.path}: {e.strerror or e}") from None
        if len(raw) < (stop - start) * dim * kind.itemsize:
            raise UserError(f"{self.path} is cut off: it ends inside {self.key!r}", fix="get the file again")
        found = np.frombuffer(raw, kind).reshape(-1, dim)
        return widened(found, self.native)


@dataclass(frozen=True)
class ColumnMajorFile:
    """A .npy file in Fortran order: mapped, because its rows do not lie together."""

    path: Path
    key: str
    shape: tuple[int, ...]
    native: str
    mapped: Any

    def rows(self, start: int, stop: int) -> Array:
        """As `TensorFile.rows`; only the rows asked for are copied."""
        import numpy as np

        places = np.unravel_index(np.arange(start, stop), self.shape[:-1])
        return widened(np.asarray(self.mapped[places]), self.native)


def open_tensor(path: Path, key: str | None = None) -> TensorFile | ColumnMajorFile:
    """Find a tensor of floats with at least one element; its values are read later, by `rows`.

    Args:
        key: its name in a safetensors file; needed where the file holds more than one. A .npy file has no names.

    Raises:
        UserError: no such file or key, another type of file or of number, no last axis, or no elements.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"cannot read {path}: it is no file")
    try:
        with path.open("rb") as file:
            head = file.read(len(_NPY))
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror or e}") from None
    if zipfile.is_zipfile(path):
        raise UserError(f"{path} is an archive (.npz or .pt), not a tensor", fix="save it as .safetensors or .npy")
    found = _of_npy(path, key) if head == _NPY else _of_safetensors(path, key)
    if not found.shape:
        raise UserError(f"{_named(found)} is a single number", fix="give an array whose last axis is head_dim")
    if not prod(found.shape):
        raise UserError(f"{_named(found)} of shape {list(found.shape)} has no elements: there is nothing to compare")
    return found


def widened(values: Array, native: str) -> Array:
    """f32, f16, or bf16 as u16 bit patterns -> float32, exactly."""
    import numpy as np

    if native == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _of_safetensors(path: Path, key: str | None) -> TensorFile:
    header = read_safetensors(path)
    tensor = _chosen(header, key)
    if tensor.dtype not in _FLOATS:
        raise UserError(
            f"{path} holds {one_line(tensor.name, 80)!r} as {tensor.dtype}",
            allowed=_FLOATS,
            fix="convert it first: nothing is cast silently",
        )
    native, stored = _FLOATS[tensor.dtype]
    begin = header.size_bytes - header.tensor_bytes
    return TensorFile(path, tensor.name, tensor.shape, native, stored, begin + tensor.start)


def _chosen(header: SafetensorsHeader, key: str | None) -> SafeTensor:
    by_name = {t.name: t for t in header.tensors}
    if not by_name:
        raise UserError(f"{header.path} holds no tensors")
    if key is None and len(by_name) == 1:
        return header.tensors[0]
    if key in by_name:
        return by_name[key]
    # Those of a shape that may be a cache first, near names before others.
    near = get_close_matches(key or "", by_name, n=3)
    names = [*near, *(n for n in sorted(by_name) if n not in near)]
    listed = [one_line(n, 80) for n in names[:_LISTED]]
    more = len(names) - len(listed)
    said = f"{header.path} has no tensor {one_line(key, 80)!r}" if key else f"{header.path} holds {len(names)} tensors"
    raise UserError(said, allowed=[*listed, *([f"and {more} more"] if more else [])], fix="choose one with --key")


def _of_npy(path: Path, key: str | None) -> TensorFile | ColumnMajorFile:
    import numpy as np

    if key is not None:
        raise UserError(f"{path} is one array and has no tensor {one_line(key, 80)!r}", fix="leave out --key")
    try:
        with path.open("rb") as file:
            major, _ = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
            sizes, by_columns, dtype = read(file)
            start, size = file.tell(), path.stat().st_size
    except (OSError, ValueError, EOFError, SyntaxError, TypeError) as e:
        raise UserError(f"{path} is not a usable .npy file: {one_line(str(e), 200)}", fix="save it again") from None
    shape: tuple[int, ...] = tuple(int(n) for n in sizes)
    if any(n < 0 for n in shape):
        raise UserError(f"{path} is not a usable .npy file: its shape is {list(shape)}", fix="save it again")
    # Arrays of ml_dtypes' bfloat16 are written as two bytes without a type.
    names = {"f4": "f32", "f2": "f16", "V2": "bf16"}
    native = names.get(dtype.str.lstrip("<>|=")) if dtype.names is None and dtype.subdtype is None else None
    if native is None:
        raise UserError(
            f"{path} holds {dtype.name}",
            allowed=("float32", "float16", "bfloat16"),
            fix="convert it first: nothing is cast silently",
        )
    elements = prod(shape)
    if elements * dtype.itemsize > size - start:
        raise UserError(f"{path} is cut off: it has fewer bytes than {list(shape)} takes", fix="get the file again")
    stored = "<u2" if native == "bf16" else dtype.str
    if by_columns and elements and len(shape) > 1:
        mapped = np.memmap(path, np.dtype(stored), "r", start, shape, "F")
        return ColumnMajorFile(path, path.name, shape, native, mapped)
    return TensorFile(path, path.name, shape, native, stored, start)


def _named(found: TensorFile | ColumnMajorFile) -> str:
    return f"{found.path}: {one_line(found.key, 80)!r}" if found.key != found.path.name else str(found.path)
