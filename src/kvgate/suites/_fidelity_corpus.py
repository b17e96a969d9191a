"""Texts for the fidelity suite: folder = category, file = document. Our own, or the user's by `--corpus DIR`.

Knows nothing about tokens. Order is by category and file name, so that a preset that takes the first two documents of
each category always takes the same two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.suites._encoding import how_to_convert

SUFFIXES = (".txt", ".md")
#: A document beyond this is read no further than its size: it would be cut at the context anyway.
MAX_DOCUMENT_BYTES = 8 * 2**20
#: A folder beyond these is no corpus but a disk.
MAX_DOCUMENTS, MAX_CORPUS_BYTES = 10_000, 2**30
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Document:
    """One text. `name` is its path inside the corpus, `category` its top folder ("" at the top)."""

    name: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents in order, and what was left out, one reason a line. `where` names the corpus in messages."""

    where: str
    documents: tuple[Document, ...]
    skipped: tuple[str, ...] = ()

    def at_most(self, per_category: int | None, categories: int) -> int | None:
        """Documents to take of each category: a preset's number times its categories, spread over those there are.

        A person's corpus of one folder gets as many documents as the six categories that come with kvgate.
        """
        if per_category is None:
            return None
        there = len({d.category for d in self.documents}) or 1
        return max(per_category, -(-per_category * categories // there))


def read_corpus(folder: Path | None) -> Corpus:
    """The user's corpus, or the one that comes with kvgate.

    Raises:
        UserError: no such folder, no text file in it, too much in it, a file that is not UTF-8 text or cannot be
            read, a folder that cannot be looked into, a name that is not UTF-8 or holds a line break.
    """
    if folder is None:
        return _shipped()
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"corpus {folder} {kind}", fix="give a folder with one sub-folder of .txt files per category")
    files, skipped = _text_files(folder)
    documents, total_bytes = [], 0
    for path in files:
        name = _name(path, folder)
        try:
            size_bytes = path.stat().st_size
            if size_bytes > MAX_DOCUMENT_BYTES:
                skipped.append(f"{name}: larger than 8 MiB; split it")
                continue
            total_bytes += size_bytes
            if total_bytes > MAX_CORPUS_BYTES:
                raise UserError(f"corpus {folder} holds over {MAX_CORPUS_BYTES >> 20} MiB", fix="give a sample")
            text = _decode(path.read_bytes(), path)
            if text.strip():
                documents.append(Document(name, _category(name), text))
            else:
                skipped.append(f"{name}: empty")
        except OSError as e:
            raise UserError(f"corpus file {path} cannot be read: {e.strerror}", fix="check its permissions") from e
    if not documents and not skipped:
        raise UserError(f"corpus {folder} holds no text file", allowed=SUFFIXES, fix="put texts into category folders")
    if not documents:
        raise UserError(f"corpus {folder} holds no usable text: {skipped[0]}")
    return Corpus(str(folder), tuple(documents), tuple(skipped))


def _shipped() -> Corpus:
    root = files("kvgate.suites") / "data" / "corpus"
    documents = []
    for category in sorted(_children(root), key=lambda t: t.name):
        for file in sorted(_children(category), key=lambda t: t.name):
            name = f"{category.name}/{file.name}"
            documents.append(Document(name, category.name, file.read_bytes().decode("utf-8")))
    return Corpus("kvgate's own corpus", tuple(documents))


def _children(folder: Traversable) -> Iterator[Traversable]:
    for child in folder.iterdir():
        if child.is_dir() or child.name.endswith(SUFFIXES):
            yield child


def _text_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Text files below a folder, in order, and what was not looked into."""
    found: list[Path] = []
    links: list[str] = []

    def refuse(e: OSError) -> None:
        raise e

    try:
        for at, folders, names in os.walk(folder, onerror=refuse):
            here = Path(at)
            folders[:] = [name for name in folders if not name.startswith(".")]
            links += [_name(here / name, folder) for name in folders if (here / name).is_symlink()]
            visible = (here / name for name in names if not name.startswith("."))
            # A pipe or a device is no text, whatever it is called.
            found += [path for path in visible if path.suffix.lower() in SUFFIXES and path.is_file()]
            if len(found) > MAX_DOCUMENTS:
                raise UserError(f"corpus {folder} holds over {MAX_DOCUMENTS:,} texts", fix="give a sample")
    except OSError as e:
        raise UserError(
            f"corpus folder {e.filename or folder} cannot be read: {e.strerror}", fix="make it readable, or move it"
        ) from e
    ordered = sorted(found, key=lambda path: path.relative_to(folder).as_posix())
    return ordered, [f"{name}: a link to a folder, which is not followed; copy it" for name in sorted(links)]


def _name(path: Path, folder: Path) -> str:
    """The path inside the corpus; it names the document in the store and the report."""
    name = path.relative_to(folder).as_posix()
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as e:
        raise UserError(f"the name of corpus file {name!r} is not valid UTF-8", fix="rename it") from e
    if _CONTROL.search(name):
        raise UserError(f"the name of corpus file {name!r} holds a line break or a control character", fix="rename it")
    return name


def _decode(data: bytes, path: Path) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        # The decoder counts from behind a byte order mark.
        start = e.start + len(data) - len(e.object)
        said, fix = how_to_convert(data, path)
        line = _line_of(data, start)
        raise UserError(f"corpus file {path} is not UTF-8 (byte {start}) on line {line}{said}", fix=fix) from e
    at = data.find(b"\0")
    if at >= 0:
        said, fix = how_to_convert(data, path)
        raise UserError(f"corpus file {path} has a NUL byte on line {_line_of(data, at)}: no text{said}", fix=fix)
    return text


def _line_of(data: bytes, at: int) -> int:
    """Number of the line that holds byte `at`, as an editor counts."""
    return len((data[:at] + b"x").splitlines())


def _category(name: str) -> str:
    """The top folder, in the characters that a metric label may hold."""
    top, slash, _ = name.partition("/")
    return re.sub(r"[^\w.-]+", "_", top) if slash else ""
