"""Bytes of a model's weights: from tensor headers, else from the index, else unknown; never parameters times a dtype.

Files that hold the same weights again are left out: `consolidated*`, `original/`, adapters, further shard sets. Bytes
on disk are what is loaded only if the engine keeps the stored format; engines that repack or dequantize need more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.text import one_line
from kvgate.models.read_gguf import GgufHeader
from kvgate.models.read_json import read_json_object, whole_number
from kvgate.models.read_safetensors import read_safetensors

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
#: An index names every tensor; those of the largest models (a million tensors) are under 100 MB.
MAX_INDEX_BYTES: Final = 128 << 20
MAX_FILES: Final = 4096
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,250}\.safetensors")
_SHARD: Final = re.compile(r"(?P<prefix>.+)-(?P<no>\d{1,6})-of-(?P<of>\d{1,6})\.safetensors")
#: The same weights in another layout, or no weights of the model.
_LEFT_OUT: Final = ("consolidated", "adapter_", "training_args", "optimizer")


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of all tensors, how they were counted, and where that was read."""

    bytes: int
    how: str
    source: Source


def weights_bytes(path: Path) -> Weights | None:
    """Bytes of the weights in a model's folder; None where none lie there.

    Raises:
        UserError: files are there and lie, are cut off, or are incomplete.
    """
    index = path / INDEX_NAME
    if index.is_file():
        return _from_index(path, index)
    names = _files(path)
    return _sum_headers(path, names) if names else None


def weights_files(path: Path) -> tuple[str, ...]:
    """Names of the safetensors files that an engine loads from a model's folder; empty where there are none.

    Raises:
        UserError: the index lies, or a file that it names is not there.
    """
    index = path / INDEX_NAME
    if not index.is_file():
        return _files(path)
    names = index_shards(read_json_object(index, max_bytes=MAX_INDEX_BYTES), str(index))
    missing = next((name for name in names if not (path / name).is_file()), None)
    if missing is not None:
        raise UserError(f"{path} has no {missing}, which {INDEX_NAME} names", fix="download it")
    return names


def gguf_weights(headers: Iterable[GgufHeader]) -> Weights:
    """Bytes of the tensor tables of a GGUF file, or of all its parts.

    Raises:
        UserError: a tensor of a type whose size is not known.
    """
    all_headers = tuple(headers)
    for header in all_headers:
        for tensor in header.tensors:
            if tensor.n_bytes is None:
                raise UserError(
                    f"{header.path} has tensors of {tensor.type_name}, whose size kvgate does not know",
                    fix="give the bytes of the weights yourself: --weights",
                )
    count = sum(len(h.tensors) for h in all_headers)
    parts = f" in {len(all_headers)} parts" if len(all_headers) > 1 else ""
    how = f"{count:,} tensors of the GGUF tensor table{parts}"
    return Weights(sum(h.tensor_bytes for h in all_headers), how, Source("file", str(all_headers[0].path)))


def _from_index(folder: Path, index: Path) -> Weights:
    """Tensor ranges of the shards that the index names; its own total where no shard lies there."""
    values = read_json_object(index, max_bytes=MAX_INDEX_BYTES)
    shards = index_shards(values, str(index))
    here = [name for name in shards if (folder / name).is_file()]
    metadata = values.get("metadata")
    total = whole_number(metadata, "total_size") if isinstance(metadata, dict) else None
    if len(here) == len(shards):
        return _sum_headers(folder, shards)
    if here or total is None:
        missing = next(name for name in shards if name not in here)
        raise UserError(
            f"{folder} has {len(here)} of the {len(shards)} files that {INDEX_NAME} names: {missing} is missing",
            fix="download it, or give the bytes of the weights yourself: --weights",
        )
    return Weights(total, f"total_size of {INDEX_NAME} (the files themselves are not here)", Source("file", str(index)))


def index_shards(values: dict[str, object], what: str) -> tuple[str, ...]:
    """Names of the files in an index, each once, in name order; all of them plain names inside the folder.

    Raises:
        UserError: no map of tensors to files, or a name that leaves the folder.
    """
    listed = values.get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise UserError(f"{what} has no weight_map", fix="get the file again")
    found: set[str] = set()
    for name in listed.values():
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise UserError(
                f"{what} names the file {one_line(repr(name), 80)}, which is no plain safetensors name in its folder",
                fix="get the file again from where you trust it",
            )
        found.add(name)
    if len(found) > MAX_FILES:
        raise UserError(f"{what} names {len(found):,} files; at most {MAX_FILES:,} are read")
    return tuple(sorted(found))


def _files(folder: Path) -> tuple[str, ...]:
    """The files of one copy of the weights, without an index.

    Raises:
        UserError: a shard set with holes, or several sets of which none is `model`.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".safetensors"))
    except OSError as e:
        raise UserError(f"cannot read the folder {folder}: {e.strerror or e}") from None
    names = [n for n in names if (folder / n).is_file()]
    # A folder of `consolidated` files alone has its weights there.
    names = [n for n in names if not n.startswith(_LEFT_OUT)] or [n for n in names if n.startswith(_LEFT_OUT[0])]
    if SINGLE_NAME in names:
        return (SINGLE_NAME,)
    sets: dict[tuple[str, int], set[int]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match:
            sets.setdefault((match["prefix"], int(match["of"])), set()).add(int(match["no"]))
    if not sets:
        if len(names) > 1:
            raise UserError(
                f"{folder} has several safetensors files and no {INDEX_NAME}: {', '.join(names[:4])}",
                fix="add the index, or give the bytes of the weights yourself: --weights",
            )
        return tuple(names)
    return _one_set(folder, names, sets)


def _one_set(folder: Path, names: list[str], sets: dict[tuple[str, int], set[int]]) -> tuple[str, ...]:
    own = [key for key in sets if key[0] == "model"]
    if len(own or sets) > 1:
        raise UserError(
            f"{folder} has several sets of shards: {', '.join(sorted(f'{p} of {n}' for p, n in sets)[:4])}",
            fix=f"keep one of them, or add {INDEX_NAME}",
        )
    prefix, count = (own or list(sets))[0]
    numbers = sets[prefix, count]
    missing = next((n for n in range(1, count + 1) if n not in numbers), None) if count <= MAX_FILES else 1
    if missing is not None:
        raise UserError(
            f"{folder} has {len(numbers)} of {count} shards: number {missing} is missing", fix="download it"
        )
    return tuple(n for n in names if (m := _SHARD.fullmatch(n)) and (m["prefix"], int(m["of"])) == (prefix, count))


def _sum_headers(folder: Path, names: Iterable[str]) -> Weights:
    """Bytes of all tensors; one that two files repeat is counted once.

    Raises:
        UserError: two files that disagree about a tensor.
    """
    seen: dict[str, int] = {}
    files = 0
    for name in names:
        files += 1
        for tensor in read_safetensors(folder / name).tensors:
            if seen.setdefault(tensor.name, tensor.n_bytes) != tensor.n_bytes:
                raise UserError(
                    f"{folder / name} has the tensor {one_line(tensor.name, 80)!r} in another size than a file before"
                )
    how = f"{len(seen):,} tensors in the headers of {files} safetensors file{'s' if files > 1 else ''}"
    return Weights(sum(seen.values()), how, Source("file", str(folder)))
