"""Lines that almost are those of an engine: never a crash, never a number or a word that does not stand in the line."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.enginefacts.log_patterns import LineRow, engines, load
from kvgate.plan.log_values import LogFact
from kvgate.plan.logs import read_log

LOGS = Path(__file__).parents[1] / "plan" / "logs"
ROWS = [(name, row) for name in engines() for row in load(name).line]
#: One, MiB and GiB: what a printed number may stand for.
UNITS = (1, 2**20, 2**30)
JUNK = st.text(alphabet="0123456789.,-eE _='[]():\x1b\0٣GMiB", max_size=4)


@cache
def start_of(engine: str) -> str:
    """A log that this engine wrote, to which the line under test is the first."""
    return next(LOGS.glob(f"{engine}_*.log")).read_text()


def numbers_of(line: str) -> list[float]:
    """Every number that could be read out of a line, in every unit."""
    printed = [float(n.replace(",", "")) for n in re.findall(r"(?<![\d.])-?\d[\d,]*\.?\d*", line, re.ASCII)]
    parts = [float(n) for n in re.findall(r"\d+\.?\d*", line, re.ASCII)]
    return [n * unit for n in (*printed, *parts) for unit in UNITS]


def stands_in(fact: LogFact, line: str, row: LineRow) -> bool:
    """Whether a fact's value is printed in its line, or is what the line's mere presence says."""
    if isinstance(fact.value, str):
        return fact.value in line or fact.value in row.set_.values()
    return any(abs(fact.value - n) <= fact.within + 0.5 for n in numbers_of(line))


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(ROWS), st.data())
def test_no_near_miss_invents_a_fact(case: tuple[str, LineRow], data: st.DataObject) -> None:
    """A line made from a row's own pattern, with characters changed, left out or put in anywhere."""
    engine, row = case
    line = data.draw(st.from_regex(re.compile(row.pattern, re.ASCII), fullmatch=True))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(line)))
        line = line[:at] + data.draw(JUNK) + line[at + data.draw(st.integers(0, 3)) :]
    line = " ".join(line.splitlines())

    try:
        log = read_log(line + "\n" + start_of(engine))
    except UserError as e:
        assert "\n" not in str(e)
        return
    rows = {r.id: r for name, r in ROWS if name == log.engine}
    for fact in log.facts:
        if fact.line == 1:
            assert stands_in(fact, line, rows[fact.row]), (fact.name, fact.value, line)


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=[f"{n}-{r.id}-{r.since or 'first'}" for n, r in ROWS])
def test_a_line_without_its_literal_is_nothing(engine: str, row: LineRow) -> None:
    """The literal is part of every line that the pattern takes: with one of its letters changed, the row is silent."""
    pattern = re.compile(row.pattern, re.ASCII)
    for at in range(0, len(row.has), max(1, len(row.has) // 4)):
        other = row.has[:at] + "\x7f" + row.has[at + 1 :]
        assert pattern.search(other) is None
