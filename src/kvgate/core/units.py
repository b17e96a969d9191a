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
_COUNT = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]{0,15})\s?([kKmM]?)")
_MOST_TOKENS = 10**12
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


def parse_tokens(text: str, what: str) -> int:
    """A count of tokens as people write it: "32768", "32,768", "32K" (x 1,024), "1M" (x 1,024 x 1,024).

    A small k or m is refused with both readings: vLLM's own parser takes 32k for 32,000 and 32K for 32,768.

    Args:
        what: whose count it is, for the error.

    Raises:
        UserError: not a count of 1 or more, or one that means two things.
    """
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{what} {text.strip()[:40]!r} is not a count of tokens", fix="write for example 32768 or 32K")
    number, small = int(re.sub(r"[_,]", "", found[1])), found[2] in ("k", "m")
    times, thousands = {"": (1, 1), "K": (2**10, 10**3), "M": (2**20, 10**6)}[found[2].upper()]
    tokens = number * times
    if small:
        raise UserError(
            f"{what} {text.strip()[:40]!r} is {tokens} tokens to most people, and {number * thousands} to vLLM",
            fix=f"write {tokens}, {number}{found[2].upper()} for the same, or {number * thousands}",
        )
    if not 0 < tokens <= _MOST_TOKENS:
        raise UserError(f"{what} {text.strip()[:40]!r} is not a count of tokens", fix="give 1 or more")
    return tokens


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
