"""Lines and tables for a terminal of any width. A number that is broken over two lines is another number.

Lines are broken between words only, and a table that would have to break a cell is printed as blocks instead: a
heading, and one line for each column below it.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvgate.core.text import one_line

Cell = str | Text
#: Hanging indent of what a line runs on with, in columns.
HANG = 2
#: The longest number with its sign, unit and brackets fits.
LEAST_COLUMNS = 20
#: From here on a column is spent on what kind a line is.
ROOMY_COLUMNS = 60


def breaks_lines(console: Console) -> bool:
    """Whether whoever reads has so many columns and no more; a pipe gets whole lines, which `grep` can use."""
    return console.is_terminal or bool(os.environ.get("COLUMNS"))


def columns_of(console: Console) -> int:
    """Columns that lines are broken at: what the terminal says, but room for a number at least."""
    said = os.environ.get("COLUMNS", "")
    return max(LEAST_COLUMNS, int(said)) if said.isdecimal() and len(said) < 7 and int(said) else console.width


def indent(console: Console) -> int:
    """Columns before what a line that begins with `lead` runs on with."""
    return 14 if columns_of(console) >= ROOMY_COLUMNS else HANG


def lead(console: Console, word: str) -> str:
    """What a line of a list begins with: its kind, set flush right where there is room for that."""
    if columns_of(console) >= ROOMY_COLUMNS:
        return f"{word:>12}  "
    return f"{word}  " if word else ""


def say(console: Console, text: str, *, first: str = "", indent: int = HANG, style: str = "") -> None:
    """One line of text, broken between words where a terminal would break it between letters.

    Args:
        first: what the line begins with. indent: columns before the lines that follow.
    """
    line = first + one_line(text)
    if breaks_lines(console):
        line = "\n".join(_broken(line, columns_of(console), indent))
    console.print(Text(line, style=style), soft_wrap=True)


def _broken(line: str, width: int, indent: int) -> list[str]:
    """Between blanks only: not in `9.95e-05`, `--kv` or a path, however long it is."""
    lead = len(line) - len(line.lstrip(" "))
    broken = textwrap.wrap(
        line.strip(),
        width,
        initial_indent=" " * lead,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return broken or [""]


def print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right: Sequence[int] = (),
    headings: int = 1,
) -> None:
    """A table where there is room for whole cells, else a block for each row.

    Args:
        columns: their names, one may be empty. right: those that are set flush right.
        headings: how many columns, from the first, name the row; a block has them in its heading.
    """
    if fits(console, columns, rows):
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for i, name in enumerate(columns):
            table.add_column(name, justify="right" if i in right else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    if title:
        console.print(Text(title, style="italic"))
    for row in rows:
        heading = "  ".join(_plain(cell) for cell in row[:headings])
        say(console, heading, style="bold")
        for name, cell in zip(columns[headings:], row[headings:], strict=True):
            if _plain(cell):
                style = str(cell.style) if isinstance(cell, Text) else ""
                say(console, _plain(cell), first=f"  {name} " if name else "  ", indent=2 * HANG, style=style)


def fits(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
    """Whether every cell of the table has room on one line."""
    widths = [max(map(cell_len, (name, *map(_plain, cells)))) for name, cells in _by_column(columns, rows)]
    return sum(widths) + 2 * len(widths) <= columns_of(console) + 2  # the last column needs no blanks behind it


def _by_column(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[tuple[str, list[Cell]]]:
    return [(name, [row[i] for row in rows]) for i, name in enumerate(columns)]


def _plain(cell: Cell) -> str:
    return cell.plain if isinstance(cell, Text) else cell
