"""What a file that is not GGUF is instead, from its first bytes, in words for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class _Magic(NamedTuple):
    start: bytes
    words: str


_MAGICS: Sequence[_Magic] = (
    _Magic(b"version https://git-lfs", "a Git LFS pointer: the weights were not downloaded, run git lfs pull"),
    _Magic(b"PK\x03\x04", "a zip archive, such as a wheel or a PyTorch checkpoint"),
    _Magic(b"\x80\x02", "a Python pickle, such as an old PyTorch checkpoint"),
    _Magic(b"\x1f\x8b", "a gzip archive: unpack it first"),
    _Magic(b"\xfd7zXZ", "an xz archive: unpack it first"),
    _Magic(b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    _Magic(b"lmgg", "a GGML file from before GGUF: convert it again"),
    _Magic(b"fmgg", "a GGMF file from before GGUF: convert it again"),
    _Magic(b"tjgg", "a GGJT file from before GGUF: convert it again"),
    _Magic(b"\x89HDF\r\n", "an HDF5 file"),
    _Magic(b"\x7fELF", "a program"),
    _Magic(b"#!", "a script"),
    _Magic(b"%PDF", "a PDF"),
)
#: The longest prefix that `describe` looks at.
HEAD_BYTES = 64


def describe(head: bytes) -> str:
    """Words for a file that starts with `head` (up to HEAD_BYTES bytes): 'starts with b"PK": a zip archive'."""
    if not head:
        return "it is empty"
    seen = f"starts with {head[:4]!r}"
    for magic in _MAGICS:
        if head.startswith(magic.start):
            return f"{seen}: {magic.words}"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**30:
        return f"{seen}: a safetensors file; llama.cpp needs it converted to GGUF"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"{seen}: a web page, perhaps saved instead of the download"
    if text.startswith((b"{", b"[")):
        return f"{seen}: JSON text"
    return seen
