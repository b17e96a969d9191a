"""Sizes, times, small numbers: read and rendered. Names carry units (`_bytes`, `_ms`); GB and GiB exist only here."""

from __future__ import annotations

import re
from fractions import Fraction

from kvgate.core.errors import UserError

MIB_BYTES = 2**20
GIB_BYTES = 2**30
#: What people and data sheets write. A bare "G" is refused: nobody can tell which of the two it is.
_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**i for i, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**i for i, prefix in enumerate("kmgt", start=1)},
}
#: Commas only between thousands: in many countries "141,5" is not 1415.
_SIZE = re.compile(r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)")
#: A petabyte of memory is a typing error.
_MOST_BYTES = 10**15


def parse_bytes(text: str, what: str, *, zero: bool = False) -> int:
    """A size as people write it: "141GB", "65.52 GB", "79.18GiB", "150754820096". Rounded down to whole bytes.

    Args:
        what: whose size it is, for the error. zero: nothing at all is a size too.

    Raises:
        UserError: not a size, zero, a unit that means two things, or over a petabyte.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = found[2].lower() if found else None
    if found is None or unit not in _UNITS:
        raise UserError(
            f"{what} {text.strip()[:40]!r} is not a size",
            allowed=("bytes", "MB", "GB", "TB (powers of 1000)", "MiB", "GiB", "TiB (powers of 1024)"),
            fix="write for example 65.52GB",
        )
    if not unit and found[1].strip("0.") and Fraction(re.sub(r"[_,]", "", found[1])) < MIB_BYTES:
        raise UserError(
            f"{what} {found[1][:40]!r} has no unit, and is too little for bytes", fix=f"write {found[1][:40]}GB"
        )
    n_bytes = int(Fraction(re.sub(r"[_,]", "", found[1])) * _UNITS[unit])
    if not 0 < n_bytes <= _MOST_BYTES and not (zero and n_bytes == 0):
        raise UserError(
            f"{what} {text.strip()[:40]!r} is {n_bytes} bytes", fix="give a size between 1 byte and 1000 TB"
        )
    return n_bytes


def gb_text(n_bytes: float) -> str:
    """`n_bytes` in powers of 1000, as data sheets count: 65_520_000_000 -> '65.52 GB'."""
    size, unit = float(n_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"


def bytes_text(n_bytes: float) -> str:
    """`n_bytes` as a short text in binary units: 23040 -> '22.50 KiB'."""
    size, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"


def duration_text(seconds: float) -> str:
    """`seconds` as a short text: 75 -> '1m15s'."""
    s = max(0, round(seconds))
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s"
    return f"{s // 3600}h{s % 3600 // 60:02d}m"


def number_text(x: float | None) -> str:
    """A measured number with four significant digits; unknown is '?'."""
    if x is None:
        return "?"
    if x != 0 and (abs(x) < 1e-3 or abs(x) >= 1e6):
        return f"{x:.2e}"
    return f"{x:.4g}"
