"""Writes small safetensors files for tests, byte by byte; independent of the reader and of the safetensors package."""

import json
import struct

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}


def entries(*tensors):
    """Header entries of (name, dtype, shape), laid out one behind the other."""
    found, at = {}, 0
    for name, dtype, shape in tensors:
        size = BYTES[dtype]
        for d in shape:
            size *= d
        found[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return found


def pack(header, data_bytes=None, *, length=None):
    """A file: `header` as JSON or raw bytes; `length` lies about the header's size."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    if data_bytes is None:
        data_bytes = max((e["data_offsets"][1] for k, e in header.items() if k != "__metadata__"), default=0)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + b"\x11" * data_bytes


def tiny(*tensors):
    """A whole file of (name, dtype, shape)."""
    return pack(entries(*tensors))
