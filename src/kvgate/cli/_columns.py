"""Rows of text in columns; the last column runs on."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines with two blanks between columns; columns in `right` are set flush right, the last one never padded."""
    widths = [max(len(cell) for cell in cells) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join([*cells[:-1], cells[-1] if len(row) - 1 in right else row[-1]]).rstrip())
    return lines
