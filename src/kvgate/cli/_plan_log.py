"""A start log on the terminal: what it says, what contradicts itself, and predicted against reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kvgate.cli._terminal import out_console, print_json
from kvgate.core.text import one_line
from kvgate.core.units import bytes_text, gb_text
from kvgate.plan.log_compare import GapRow, settings_of
from kvgate.plan.log_values import StartLog
from kvgate.plan.logs import read_log

if TYPE_CHECKING:
    from kvgate.plan.from_log import FromLog

#: Facts whose number is bytes.
_BYTES = "bytes"
_SHOWN_CHARS = 110


def show_log(path: Path, *, json_out: bool = False) -> int:
    """Print what one log says; 1 where it contradicts itself.

    Raises:
        UserError: not a log of a known engine, or it says neither capacity nor dtype.
    """
    log = read_log(path)
    if json_out:
        print_json(log_document(log))
    else:
        _print_log(log)
    return _code(log)


def show_from_log(found: FromLog, *, json_out: bool = False) -> int:
    """Print predicted against reported, then the plan with the log's own memory; 1 where the log contradicts itself."""
    from kvgate.plan.document import document

    if json_out:
        print_json(
            document(found.plan)
            | {
                "from_log": log_document(found.log),
                "gaps": [asdict(g) for g in found.gaps],
                "gaps_why": found.why or None,
                "gaps_given_memory": [asdict(g) for g in found.given_memory],
            }
        )
    else:
        from kvgate.cli._plan_show import show_answer

        _print_log(found.log)
        _print_gaps(found)
        show_answer(found.plan)
    return _code(found.log)


def log_document(log: StartLog) -> dict[str, Any]:
    """The log as JSON: facts with their lines."""
    settings, stored = settings_of(log), log.stored
    return {
        "schema": "kvgate.start_log/1",
        "where": log.where,
        "engine": log.engine,
        "version": log.version,
        "version_known": log.version_known,
        "stored": {"k": stored.k, "v": stored.v, "how": stored.how},
        "tokens": log.tokens,
        "kv_bytes": log.kv_bytes,
        "scales": log.scales,
        "overhead_bytes": None if settings.overhead is None else settings.overhead.bytes,
        **({"overhead_why": settings.why} if settings.overhead is None else {}),
        "facts": [
            {"name": f.name, "value": f.value, "rank": f.rank, "line": f.line, "text": f.text, "means": f.means}
            for f in log.facts
        ],
        "caches": [asdict(c) for c in log.caches],
        "contradictions": [asdict(c) for c in log.contradictions],
        "notes": list(log.notes),
    }


def _code(log: StartLog) -> int:
    return int(any(c.severity == "error" for c in log.contradictions))


def _line(text: str) -> None:
    out_console().print(Text(one_line(text)), soft_wrap=True)


def _print_log(log: StartLog) -> None:
    known = "" if log.version_known else " (a version that nobody has read: newest rows used)"
    _line(f"{log.where}: {log.title} {log.version or 'of unknown version'}{known}")
    stored = log.stored
    types = stored.k if stored.k == stored.v else f"k={stored.k}, v={stored.v}"
    _line(f"stored: {types or 'not said'} ({stored.how})")
    if log.tokens is not None:
        _line(f"room: {log.tokens:,} tokens")
    if log.kv_bytes is not None:
        _line(f"KV memory of a rank: {gb_text(log.kv_bytes)} = {bytes_text(log.kv_bytes)}")
    settings = settings_of(log)
    if settings.overhead is not None:
        over = settings.overhead
        parts = "".join(f"; {name} {bytes_text(size)}" for name, size in over.parts)
        _line(f"overhead: {gb_text(over.bytes)} = {bytes_text(over.bytes)}, {over.how}{parts}")
    elif settings.why:
        _line(f"overhead: unknown, {settings.why}")
    out_console().print(_facts(log))
    for c in log.contradictions:
        _line(f"{c.severity}: {c.says} (lines {', '.join(map(str, c.lines))})")
    for note in log.notes:
        _line(f"note: {note}")


def _facts(log: StartLog) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("fact", "value", "line", "text"):
        table.add_column(name, overflow="fold", justify="right" if name == "line" else "left")
    shown = {(f.name, f.rank): f for f in log.facts}
    for f in shown.values():
        value = bytes_text(f.number) if _is_bytes(f.name) and not isinstance(f.value, str) else str(f.value)
        rank = f" {f.rank}" if f.rank else ""
        cells = (f.name + rank, value, str(f.line), one_line(f.text, _SHOWN_CHARS))
        table.add_row(*(Text(c) for c in cells))
    return table


def _is_bytes(name: str) -> bool:
    from kvgate.enginefacts.log_patterns import FACTS

    return FACTS.get(name) == _BYTES


def _print_gaps(found: FromLog) -> None:
    console = out_console()
    console.print()
    if found.gaps:
        console.print(_gap_table("as planned", found.gaps))
    else:
        _line(f"no prediction of the memory: {found.why or 'nothing to compare'}")
    if found.given_memory:
        console.print(_gap_table("given the log's KV memory", found.given_memory))
    console.print()


def _gap_table(title: str, gaps: Sequence[GapRow]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (title, "predicted", "reported", "gap", "verdict", "why"):
        table.add_column(name, overflow="fold", justify="right" if name in ("predicted", "reported", "gap") else "left")
    for g in gaps:
        cells = (g.what, _number(g, g.predicted), _number(g, g.reported), _number(g, g.gap), g.verdict, g.why)
        table.add_row(*(Text(one_line(c)) for c in cells))
    return table


def _number(row: GapRow, value: int | float | str | None) -> str:
    if value is None:
        return "?" if row.unit != "type" else ""
    if isinstance(value, str):
        return value
    return bytes_text(value) if row.unit == _BYTES else f"{value:,}"
