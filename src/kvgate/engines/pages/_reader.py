"""Reads an engine's pages by the rows of `enginefacts/pages/`. Everything here came from a stranger.

A page is a JSON value, or text (Prometheus). Whatever has another form than a row expects says nothing: no error, and
never a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from kvgate.core.text import one_line
from kvgate.enginefacts import page_facts
from kvgate.enginefacts.page_facts import FIELDS, FactRow, SignRow

Value = str | int | float | bool
#: Of a metrics page, and of one line of it: vLLM prints its whole cache configuration in one.
MAX_SAMPLES, MAX_LINE_CHARS = 5_000, 16 * 2**10
MAX_WORD_CHARS = 300
#: Of a list, and of the text that a pattern is looked for in.
MAX_ITEMS, MAX_TEXT_CHARS = 64, 64 * 2**10
_MAX_INT = 2**60
_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that one page says.

    Attributes:
        field: a key of `page_facts.FIELDS`. place: page and key, for a person.
        metric: a sample or label of a metrics page, which the engine counts; else its word.
    """

    field: str
    value: Value
    place: str
    metric: bool = False


@dataclass(frozen=True, slots=True)
class Sign:
    """What speaks for an engine. `word`: anybody can write it."""

    engine: str
    place: str
    says: str
    word: bool


class PageReader(Protocol):
    """One engine's pages."""

    name: str
    #: Pages of Prometheus text, beside JSON ones.
    metrics_paths: tuple[str, ...]

    def signs(self, pages: Mapping[str, Any]) -> tuple[Sign, ...]:
        """What only this engine's pages hold."""
        ...

    def claims(self, pages: Mapping[str, Any]) -> tuple[Claim, ...]:
        """What the pages say, if they are this engine's; of a field that several name, all."""
        ...


class FactsReader:
    """The reader for an engine whose pages are described by rows alone.

    Args:
        name: the engine's id; its rows are `enginefacts/pages/<name>.toml`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def metrics_paths(self) -> tuple[str, ...]:
        return page_facts.load(self.name).metrics_paths

    def signs(self, pages: Mapping[str, Any]) -> tuple[Sign, ...]:
        rows = page_facts.load(self.name).sign
        return tuple(Sign(self.name, row.path, row.says, row.word) for row in rows if _holds(row, pages))

    def claims(self, pages: Mapping[str, Any]) -> tuple[Claim, ...]:
        rows = page_facts.load(self.name).fact
        return tuple(claim for row in rows for claim in _claims(row, pages))


def _holds(row: SignRow, pages: Mapping[str, Any]) -> bool:
    page = pages.get(row.path)
    if row.sample:
        return isinstance(page, str) and any(s.name.startswith(row.sample) for s in samples_of(page))
    found = list(at(page, row.key))
    return bool(found) and (not row.equals or row.equals in found)


def _claims(row: FactRow, pages: Mapping[str, Any]) -> Iterator[Claim]:
    page = pages.get(row.path)
    if row.sample:
        place = f"{row.path} {row.sample}" + (f" {row.label}" if row.label else "")
        values = _of_samples(row, page)
    else:
        place, values = f"{row.path} {row.key}".rstrip(), at(page, row.key)
    told: set[Value] = set()
    for raw in values:
        value = converted(row.field, raw, row.map, row.pattern)
        if value is not None and value not in told:
            told.add(value)
            yield Claim(row.field, value, place, metric=bool(row.sample))


def _of_samples(row: FactRow, page: Any) -> Iterator[Any]:
    for sample in samples_of(page) if isinstance(page, str) else ():
        if sample.name == row.sample:
            if not row.label:
                yield sample.value
            elif row.label in sample.labels:
                yield sample.labels[row.label]


def at(page: Any, key: str) -> Iterator[Any]:
    """Values at a dotted path; "*" is each item of a list, a number one of them."""
    found = [page]
    for part in key.split("."):
        deeper: list[Any] = []
        for value in found:
            if isinstance(value, list):
                deeper += value[:MAX_ITEMS] if part == "*" else value[int(part) :][:1] if part.isdecimal() else []
            elif isinstance(value, Mapping) and part in value:
                deeper.append(value[part])
        found = deeper[:MAX_ITEMS]
    yield from found


def converted(field: str, raw: Any, words: Mapping[str, str], pattern: str = "") -> Value | None:
    """A page's value as this field's kind; None where it is none."""
    if pattern:
        # A command line may come as a list of its words.
        if isinstance(raw, list):
            raw = " ".join(x for x in raw[:1024] if isinstance(x, str))
        match = _compiled(pattern).search(raw[:MAX_TEXT_CHARS]) if isinstance(raw, str) else None
        if match is None:
            return None
        raw = match["value"]
    text = _as_word(raw)
    if text is None:
        return None
    if text in ("null", "None") and text not in words:
        return None
    text = words.get(text, words.get("*", text))
    kind = FIELDS[field]
    if kind == "word":
        return (text if field == "template" else one_line(text, MAX_WORD_CHARS)) or None
    if kind == "bool":
        low = text.lower()
        return True if low in _TRUE else False if low in _FALSE else None
    return _number(text, whole=kind == "int")


def _as_word(raw: Any) -> str | None:
    if raw is None:
        return "null"
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, float) and raw.is_integer() and abs(raw) < _MAX_INT:
        return str(int(raw))
    return str(raw)[:MAX_TEXT_CHARS] if isinstance(raw, int | float | str) and not _huge(raw) else None


def _huge(raw: int | float | str) -> bool:
    # Python refuses to print an integer of thousands of digits.
    return isinstance(raw, int) and abs(raw) >= _MAX_INT


def _number(text: str, *, whole: bool) -> int | float | None:
    if len(text) > 40 or not text.isascii():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or not 0 < number < _MAX_INT or (whole and not number.is_integer()):
        return None
    return int(number) if whole else number


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def samples_of(page: str) -> tuple[Sample, ...]:
    """Samples of a page of Prometheus text; a line that is none is nothing, and hides no other.

    Read by prometheus-client's own parser, line by line.
    """
    return _samples(page) if len(page) < 2**23 else ()


@cache
def _parser() -> Any:
    from prometheus_client.parser import text_string_to_metric_families

    return text_string_to_metric_families


def _samples(page: str) -> tuple[Sample, ...]:
    kept = _last_page
    if kept and kept[0][0] == page:
        return kept[0][1]
    found: list[Sample] = []
    for line in page.split("\n"):
        line = line.strip("\r \t")
        if not line or line[0] == "#" or len(line) > MAX_LINE_CHARS or len(found) >= MAX_SAMPLES:
            continue
        if not line.startswith(_asked_for()):
            continue
        found += _of_line(line)
    kept[:] = [(page, tuple(found))]
    return kept[0][1]


@cache
def _asked_for() -> tuple[str, ...]:
    """Beginnings of the names that rows ask for; a page of histograms has thousands of other lines."""
    every = [page_facts.load(engine) for engine in page_facts.engines()]
    signs = {row.sample for facts in every for row in facts.sign}
    return tuple(sorted((signs | {row.sample for facts in every for row in facts.fact}) - {""}))


#: The page that was read last, and its samples: every row asks for the same one.
_last_page: list[tuple[str, tuple[Sample, ...]]] = []


def _of_line(line: str) -> list[Sample]:
    try:
        return [
            Sample(s.name, dict(s.labels), float(s.value)) for family in _parser()(line + "\n") for s in family.samples
        ]
    except Exception:  # it raises whatever it stumbles on: ValueError, IndexError, KeyError
        return []
