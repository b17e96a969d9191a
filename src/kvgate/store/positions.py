"""Scored positions as bytes: zlib of little-endian columns, one after the other, 34 bytes a position.

Columns compress better than rows, because neighbours in a column look alike. The checksum is of the columns before
compression, so that it does not depend on the zlib of a machine.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvgate.core.errors import StoreError
from kvgate.core.observation import POSITION_FIELDS, PositionBlock
from kvgate.store.columns import inflate

if TYPE_CHECKING:
    from kvgate.core.observation import Positions

#: At most this many positions in a row of the table.
MOST_POSITIONS = 1024
_DTYPE = np.dtype(POSITION_FIELDS)


class Packed(NamedTuple):
    """One row: data, checksum of the columns in it."""

    data: bytes
    sha256: str


def columns_bytes(data: Positions) -> bytes:
    """The columns one after the other, in the order of POSITION_FIELDS."""
    return b"".join(np.ascontiguousarray(data[name]).tobytes() for name, _ in POSITION_FIELDS)


def pack(data: Positions) -> Packed:
    """Positions [n] of dtype POSITION_FIELDS as one row."""
    raw = columns_bytes(data)
    return Packed(zlib.compress(raw), hashlib.sha256(raw).hexdigest())


def unpack(blob: bytes, n: int, sha256: str, where: str) -> Positions:
    """The positions back, read-only.

    Raises:
        StoreError: damaged bytes or a wrong checksum; `where` names the row.
    """
    try:
        raw = inflate(blob, n * _DTYPE.itemsize)
    except (zlib.error, ValueError) as e:
        raise StoreError(f"the store is damaged: positions {where}: {e}") from e
    if len(raw) != n * _DTYPE.itemsize or hashlib.sha256(raw).hexdigest() != sha256:
        raise StoreError(f"the store is damaged: positions {where}: wrong checksum")
    out = np.empty(n, dtype=_DTYPE)
    at = 0
    for name, kind in POSITION_FIELDS:
        column = np.frombuffer(raw, dtype=kind, count=n, offset=at)
        out[name] = column
        at += column.nbytes
    out.flags.writeable = False
    return out


def split(block: PositionBlock) -> Iterator[tuple[int, Positions]]:
    """(start, positions) pieces of a block that fit into a row.

    Raises:
        ValueError: the array is not one-dimensional of dtype POSITION_FIELDS.
    """
    if block.data.dtype != _DTYPE or block.data.ndim != 1:
        raise ValueError(f"positions of {block.case_id}: dtype {block.data.dtype}, {block.data.ndim} dimensions")
    for at in range(0, len(block.data), MOST_POSITIONS):
        yield block.start + at, block.data[at : at + MOST_POSITIONS]
