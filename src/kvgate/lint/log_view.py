"""Facts of a start log that rules compare with the command: the lines that `enginefacts/log_lines/` describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.enginefacts.log_patterns import AFTER_CHARS, BEFORE_CHARS, LineRow, load, without_colours

#: Start logs are kilobytes; a service's whole journal is cut here.
MAX_BYTES = 32 << 20
_MAX_LINES_OF_A_KIND = 200


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that was recognised: its row's id, its groups and set facts, its number from 1, its text."""

    id: str
    facts: Mapping[str, str]
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class LogView:
    """A log. `lines`: what was recognised, in order. `text_lines`: the raw lines, for words that no row describes."""

    path: str
    lines: tuple[LogLine, ...]
    text: str

    def values(self, fact: str) -> list[tuple[str, LogLine]]:
        """Every value of a fact with its line."""
        return [(line.facts[fact], line) for line in self.lines if line.facts.get(fact)]

    def having(self, words: str) -> tuple[int, str] | None:
        """Number and text of the first line that holds these words."""
        at = self.text.find(words)
        if at < 0:
            return None
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        return self.text.count("\n", 0, at) + 1, one_line(line, 300)


def read_log(path: Path, engine: str) -> LogView:
    """The start log of an engine.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
    except OSError as e:
        raise UserError(f"cannot read the log {path}: {e.strerror or e}") from None
    text = data.decode("utf-8", "replace")
    return LogView(str(path), tuple(_lines(text, engine)), text)


def _lines(text: str, engine: str) -> list[LogLine]:
    try:
        rows = load(engine).line
    except UserError:
        return []
    found: list[LogLine] = []
    seen: dict[str, int] = {}
    for number, printed in enumerate(text.splitlines(), 1):
        line = without_colours(printed)
        for row in rows:
            if row.has not in line or (row.also and row.also not in line) or seen.get(row.id, 0) > _MAX_LINES_OF_A_KIND:
                continue
            at = line.find(row.has)
            window = line[max(0, at - BEFORE_CHARS) : at + len(row.has) + AFTER_CHARS]
            match = _compiled(row).search(window)
            if match is not None:
                seen[row.id] = seen.get(row.id, 0) + 1
                facts = {**row.set_, **{k: v for k, v in match.groupdict().items() if v is not None}}
                found.append(LogLine(row.id, facts, number, one_line(line, 300)))
    return found


def _compiled(row: LineRow) -> re.Pattern[str]:
    return _pattern(row.pattern)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII)
