"""Texts for the fidelity suite: folder = category, file = document. Our own, or the user's by `--corpus DIR`.

Knows nothing about tokens. Order is by category and file name, so that a preset that takes the first two documents of
each category always takes the same two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from kvgate.core.errors import UserError

SUFFIXES = (".txt", ".md")
#: A document beyond this is read no further than its size: it would be cut at the context anyway.
MAX_DOCUMENT_BYTES = 8 * 2**20
#: A folder beyond these is no corpus but a disk.
MAX_DOCUMENTS, MAX_CORPUS_BYTES = 10_000, 2**30


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
        UserError: no such folder, no text file in it, too much in it, a file that is not UTF-8 or cannot be read, a
            name that is not UTF-8.
    """
    if folder is None:
        return _shipped()
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"corpus {folder} {kind}", fix="give a folder with one sub-folder of .txt files per category")
    documents, skipped, total_bytes = [], [], 0
    for path in _text_files(folder):
        name = _name(path, folder)
        try:
            size_bytes = path.stat().st_size
            if size_bytes > MAX_DOCUMENT_BYTES:
                skipped.append(f"{name}: larger than 8 MiB; split it")
                continue
            total_bytes += size_bytes
            if total_bytes > MAX_CORPUS_BYTES:
                raise UserError(f"corpus {folder} holds over {MAX_CORPUS_BYTES >> 20} MiB", fix="give a sample")
            documents.append(Document(name, _category(name), _decode(path.read_bytes(), path)))
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


def _text_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    try:
        for path in folder.rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
                found.append(path)
            if len(found) > MAX_DOCUMENTS:
                raise UserError(f"corpus {folder} holds over {MAX_DOCUMENTS:,} texts", fix="give a sample")
    except OSError as e:
        raise UserError(f"corpus {folder} cannot be read: {e.strerror}", fix="give a folder of text files") from e
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _name(path: Path, folder: Path) -> str:
    """The path inside the corpus; it names the document in the store and the report."""
    name = path.relative_to(folder).as_posix()
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as e:
        raise UserError(f"the name of corpus file {name!r} is not valid UTF-8", fix="rename it") from e
    return name


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise UserError(f"corpus file {path} is not UTF-8 (byte {e.start})", fix="convert it, or move it away") from e


def _category(name: str) -> str:
    """The top folder, in the characters that a metric label may hold."""
    top, slash, _ = name.partition("/")
    return re.sub(r"[^\w.-]+", "_", top) if slash else ""
