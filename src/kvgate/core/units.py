"""Rendering of sizes, times and small numbers. Names carry units (`_bytes`, `_ms`); GB and GiB exist only here."""

from __future__ import annotations

MIB_BYTES = 2**20
GIB_BYTES = 2**30


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
