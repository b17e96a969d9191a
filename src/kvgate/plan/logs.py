"""What an engine's start log says: which engine and version, what was asked for, what was chosen, what was reserved.

Every fact carries its line. Lines are known from `enginefacts/log_lines/`; a line of another form is nothing, never a
guess. A log is what another program wrote, and may hold what its users typed: only lines up to the server's own "ready"
count, and lines that quote requests never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.enginefacts.log_patterns import (
    AFTER_CHARS,
    BEFORE_CHARS,
    FACTS,
    LineRow,
    LogLines,
    engines,
    fact_name,
    load,
)
from kvgate.plan.log_checks import contradictions_of
from kvgate.plan.log_notes import notes_of
from kvgate.plan.log_text import LogLine, lines_of
from kvgate.plan.log_values import LogCache, LogFact, StartLog

#: No start has more facts of interest than this; a log that repeats itself must not fill memory.
MAX_FACTS = 5_000
#: Rows are first looked for in so many lines at once: one search for each instead of one a line.
_BLOCK_LINES, _BLOCK_CHARS = 512, 64 * 2**10
_MAX_INT = 2**60
_SHOWN_CHARS = 300
#: A start has come as far as its memory when one of these is said.
_ROOM = frozenset({"tokens", "blocks", "available", "allocated", "concurrency"})
#: What every context of llama.cpp says for itself.
_PER_CONTEXT = frozenset({"kind", "rotation", "k_type", "kv_buffer", "compute_buffer", "state"})
_KINDS = {"SWA": "sliding_window", "non-SWA": "full_attention"}
#: Lines in which engines quote requests; their text is a stranger's.
_QUOTES_A_REQUEST = ("Received request ", "prompt: ", "prompt_token_ids")
_SECRET = re.compile(
    r"((?:api[_-]?key|token|password|secret)s?['\"]?\s?[:=]\s?\[?)(['\"]?)(?!None|True|False|\d{1,12}\b)[^\s,'\"\]})]{3,400}",
    re.I,
)
_RANKS = (
    re.compile(
        r"\((?:Worker|VllmWorker(?:Process)?|EngineCore|ApiServer|APIServer)(?P<name>(?:[_-][A-Za-z0-9]{1,12}){0,6})"
        r"(?: rank=(?P<rank>\d{1,5}))?(?P<pid> pid=\d{1,9})?\)"
    ),
    re.compile(r"\(RayWorkerWrapper (?P<ray>pid=\d{1,9}(?:, ip=[0-9a-fA-F.:]{2,45})?)"),
    re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?P<sgl>(?: [A-Z_]{2,8}\d{1,4}){1,5})\]"),
    re.compile(r"\[RANK (?P<mpi>\d{1,5})\]"),
)


def read_log(source: Path | str, *, requested: str | None = None) -> StartLog:
    """Read a start log.

    Args:
        source: a file (a `Path`, which may be a pipe) or the log's text (a `str`).
        requested: the KV type that was asked for, in the engine's word or as a codec id, where the log does not say.

    Raises:
        UserError: it cannot be read, is no log of a known engine or of two, or says neither KV type nor room.
    """
    where = str(source) if isinstance(source, Path) else "text"
    readings = {name: _Reading(load(name)) for name in engines()}
    for block in _blocks(lines_of(source)):
        text = "\n".join(line.text for line in block)
        concerned = [reading for reading in readings.values() if reading.look_at(text)]
        for line in block if concerned else ():
            if any(mark in line.text for mark in _QUOTES_A_REQUEST):
                continue
            for reading in concerned:
                reading.take(line)
    log = replace(_chosen(readings, where).done(where), requested=requested)
    if not _says_something(log):
        lines = load(log.engine)
        broke = log.fact("fallback")
        raise UserError(
            f"log {where}: {lines.title} wrote it, but it says neither the KV type nor the room for it"
            + (f" (line {broke.line}: {broke.means})" if broke else ""),
            fix=lines.how_to_log,
        )
    return replace(log, contradictions=contradictions_of(log), notes=(*log.notes, *notes_of(log)))


def _blocks(lines: Iterable[LogLine]) -> Iterator[list[LogLine]]:
    """Lines in runs of at most `_BLOCK_LINES`, or of little more than `_BLOCK_CHARS`."""
    block, chars = list[LogLine](), 0
    for line in lines:
        block.append(line)
        chars += len(line.text)
        if len(block) >= _BLOCK_LINES or chars >= _BLOCK_CHARS:
            yield block
            block, chars = [], 0
    yield block


def _says_something(log: StartLog) -> bool:
    room = ("tokens", "blocks", "available", "allocated", "device_cache", "concurrency", "fits_tokens")
    types = ("dtype", "config_dtype", "requested_dtype", "requested_k", "requested_v")
    return bool(log.caches) or any(log.fact(n) for n in (*room, *types))


def _chosen(readings: dict[str, _Reading], where: str) -> _Reading:
    found = [r for r in readings.values() if r.first_line is not None]
    if not found:
        titles = [r.lines.title for r in readings.values()]
        raise UserError(
            f"log {where} holds no line of a known engine's start",
            allowed=titles,
            fix="give the log from the engine's start on, with its level at info (llama-server: -lv 4)",
        )
    if len(found) > 1:
        both = " and ".join(f"{r.lines.title} (line {r.first_line})" for r in found[:2])
        raise UserError(f"log {where} holds lines of {both}", fix="cut it to the start of one engine")
    return found[0]


@dataclass
class _Start:
    """Facts of one start while the log is read."""

    facts: list[tuple[LineRow, LogFact]] = field(default_factory=list)
    caches: list[tuple[LineRow, LogCache]] = field(default_factory=list)
    marks: set[tuple[str, str]] = field(default_factory=set)
    context: int = -1
    kind: str = "full_attention"
    planned: dict[str, LogFact] = field(default_factory=dict)
    ready: bool = False
    holds_room: bool = False


class _Reading:
    """One engine's rows against the lines of a log."""

    def __init__(self, lines: LogLines) -> None:
        self.lines = lines
        self.first_line: int | None = None
        self._rows = [(row, re.compile(row.pattern, re.ASCII)) for row in lines.line]
        self._near, self._near_starts = self._rows, [(row, pattern) for row, pattern in self._rows if row.start]
        self._start = _Start()
        self._before: _Start | None = None
        self._earlier = 0

    def look_at(self, text: str) -> bool:
        """Keep to the rows whose literal stands in this block; False if none of its lines can say anything here.

        That is the rule in a log that goes on to the requests.
        """
        self._near = [(row, pattern) for row, pattern in self._rows if row.has in text]
        self._near_starts = [(row, pattern) for row, pattern in self._near if row.start]
        return bool(self._near) or any(mark in text for mark in _READY[self.lines.engine])

    def take(self, line: LogLine) -> None:
        if not self._start.ready and any(mark in line.text for mark in _READY[self.lines.engine]):
            self._start.ready = True
        if self._start.ready:
            # What follows is of requests, unless the engine starts anew.
            self._take(line, self._near_starts)
        if not self._start.ready:
            self._take(line, self._near)

    def _take(self, line: LogLine, rows: list[tuple[LineRow, re.Pattern[str]]]) -> None:
        text = line.text
        rank: str | None = None
        for row, pattern in rows:
            if row.has not in text or row.also not in text:
                continue
            match = _match(row, pattern, text)
            if match is None:
                continue
            rank = _rank(text) if rank is None else rank
            if row.start:
                self._mark(row, rank)
            if self._start.ready:
                continue
            if row.identifies and self.first_line is None:
                self.first_line = line.number
            self._keep(row, match, line, rank)

    def _mark(self, row: LineRow, rank: str) -> None:
        """A second start begins where the same process starts again after it had said what it reserved."""
        mark = (row.id, rank)
        if mark in self._start.marks and self._start.holds_room:
            self._before, self._start = self._start, _Start()
            self._start.facts = [(r, f) for r, f in self._before.facts if r.lasting]
            self._earlier += 1
        self._start.marks.add(mark)

    def _keep(self, row: LineRow, match: _Match, line: LogLine, rank: str) -> None:
        start = self._start
        if row.context:
            start.context += 1
            start.kind, start.planned = "full_attention", {}
        if len(start.facts) + len(start.caches) >= MAX_FACTS:
            return
        shown = _shown(line.text, match)
        facts: dict[str, LogFact] = {}
        for group, raw in match.groups:
            value = _value(group, raw, self.lines.decimals)
            if value is None:
                # A number that is none (",,,", beyond any memory): the line says nothing that can be used.
                return
            name, (number, within) = fact_name(group)[0], value
            facts[name] = self._fact(row, name, number, within, line, shown, rank)
        for name, word in row.set_.items():
            facts[name] = self._fact(row, name, word, 0.0, line, shown, rank)
        if start.context > 0 and not row.cache and not facts.keys() & _PER_CONTEXT:
            # Settings of a draft model's context are not the model's.
            return
        if "kind" in facts:
            start.kind = _KINDS.get(str(facts["kind"].value), "full_attention")
            return
        if "rotation" in facts:
            self._rotation(str(facts["rotation_side"].value), round(facts["rotation"].number), row)
            return
        if row.cache:
            self._cache(row, facts, line, shown, rank)
            return
        if "k_type" in facts:
            start.planned = facts
        start.facts.extend((row, f) for f in facts.values())
        start.holds_room |= not _ROOM.isdisjoint(facts)

    def _fact(
        self, row: LineRow, name: str, value: int | float | str, within: float, line: LogLine, shown: str, rank: str
    ) -> LogFact:
        return LogFact(name, value, within, line.number, shown, rank, row.id, row.means, row.source.as_source())

    def _context(self, cells: int | None, rank: str) -> int:
        """Which model a cache belongs to. SGLang's draft has as many tokens as its target; pools of windows do not."""
        if self.lines.engine != "sglang":
            return max(0, self._start.context)
        return sum(c.rank == rank and c.cells == cells for _, c in self._start.caches)

    def _rotation(self, side: str, size: int, row: LineRow) -> None:
        # The lines of a cache follow its size line; older builds say only whether, so a size of 1 is none.
        if self._start.caches and not (row.id == "rotation-flag" and size):
            of, cache = self._start.caches[-1]
            cache = replace(cache, k_rotation=size) if side == "k" else replace(cache, v_rotation=size)
            self._start.caches[-1] = (of, cache)

    def _cache(self, row: LineRow, facts: dict[str, LogFact], line: LogLine, shown: str, rank: str) -> None:
        start = self._start
        start.holds_room = True

        def whole(name: str) -> int | None:
            # Older logs say cells and layers in a line of their own, just before.
            fact = facts.get(name) or start.planned.get(name)
            return None if fact is None else round(fact.number)

        def word(name: str, other: str = "") -> str:
            fact = facts.get(name)
            return str(fact.value) if fact else other

        k, v, total = whole("k"), whole("v"), whole("cache")
        k_type = word("k_type")
        v_type = word("v_type", k_type)
        if total is None:
            total = (k or 0) + (v or 0)
        # A whole that is printed is known to its own digits, a sum to those of both parts.
        sized = [f.within for n, f in facts.items() if n == "cache" or (n in ("k", "v") and "cache" not in facts)]
        start.caches.append(
            (
                row,
                LogCache(
                    kind=start.kind,
                    context=self._context(whole("cells"), rank),
                    rank=rank,
                    cells=whole("cells"),
                    layers=whole("layers"),
                    streams=whole("streams"),
                    k_type=k_type,
                    v_type=v_type,
                    k_codec=self.lines.codec_of(k_type),
                    v_codec=self.lines.codec_of(v_type),
                    k_bytes=k,
                    v_bytes=v,
                    total_bytes=total,
                    within_bytes=sum(sized),
                    line=line.number,
                    text=shown,
                ),
            )
        )

    def done(self, where: str) -> StartLog:
        """What the last start that says anything says; rows of other versions are left out."""
        start = self._start
        if self._before is not None and not start.holds_room:
            # A start that broke off (or a forged line) must not hide the one that ran.
            start = self._before
        version = next((str(f.value) for _, f in reversed(start.facts) if f.name == "version"), None)
        if version is None:
            version = next((f"b{f.value}" for _, f in reversed(start.facts) if f.name == "build"), None)
        known = version is not None and (self.lines.knows(version) or self.lines.engine == "llama_cpp")

        def holds(row: LineRow) -> bool:
            return version is None or not known or row.holds(version)

        notes = []
        if version is not None and not known:
            notes.append(
                f"{self.lines.title} {version} is outside of what was read ({self.lines.known_since} up to "
                f"{self.lines.known_until}): meanings of its numbers are not certain"
            )
        return StartLog(
            where=where,
            engine=self.lines.engine,
            title=self.lines.title,
            version=version,
            version_known=known,
            facts=tuple(f for row, f in start.facts if holds(row)),
            caches=tuple(c for row, c in start.caches if holds(row)),
            notes=tuple(notes),
            earlier_starts=self._earlier,
        )


#: After these words the log is of requests. llama.cpp loads further models later, and prints no requests.
_READY: dict[str, tuple[str, ...]] = {
    "vllm": ("Application startup complete",),
    "sglang": ("The server is fired up",),
    "trtllm": ("Application startup complete",),
    "llama_cpp": (),
}


@dataclass(frozen=True, slots=True)
class _Match:
    groups: tuple[tuple[str, str], ...]
    start: int
    end: int


def _match(row: LineRow, pattern: re.Pattern[str], text: str) -> _Match | None:
    """The row's pattern near one of the first places of its literal; the window bounds the cost."""
    at = text.find(row.has)
    for _ in range(8):
        if at < 0:
            return None
        begin = max(0, at - BEFORE_CHARS)
        m = pattern.search(text, begin, min(len(text), at + len(row.has) + AFTER_CHARS))
        if m is not None:
            return _Match(tuple((n, g) for n, g in m.groupdict().items() if g is not None), m.start(), m.end())
        at = text.find(row.has, at + len(row.has))
    return None


def _rank(text: str) -> str:
    """The process that wrote a line, by its prefix; "" for a lone or unnamed one."""
    head = text[:400]
    for pattern in _RANKS:
        m = pattern.search(head)
        if m is None:
            continue
        got = m.groupdict()
        if got.get("rank"):
            return f"rank {got['rank']}"
        return (
            (got.get("name") or got.get("ray") or got.get("sgl") or got.get("mpi") or "").strip(" _-").replace("_", " ")
        )
    return ""


def _value(group: str, raw: str, decimals: int = 0) -> tuple[int | float | str, float] | None:
    """A group's value and half a unit of its last printed digit; None if it is not a number after all."""
    name, unit = fact_name(group)
    kind = FACTS[name]
    if kind == "word":
        return raw, 0.0
    if kind == "int":
        whole = _whole(raw)
        return None if whole is None else (whole, 0.0)
    digits = max(decimals, len(raw.partition(".")[2]))
    number = float(raw) * unit
    if not abs(number) < _MAX_INT:
        return None
    within = 0.0 if unit == 1 and kind == "bytes" else 0.5 * 10.0**-digits * unit
    return (round(number), within) if kind == "bytes" else (number, within)


def _whole(raw: str) -> int | None:
    """Digits, with or without commas in threes."""
    if "," in raw and not re.fullmatch(r"[0-9]{1,3}(?:,[0-9]{3}){1,5}", raw):
        return None
    digits = raw.replace(",", "")
    return int(digits) if digits.isdecimal() and int(digits) < _MAX_INT else None


def _shown(text: str, match: _Match) -> str:
    """The line as it may be printed and stored: no keys, no control characters, around the match where it is long."""
    if len(text) > _SHOWN_CHARS:
        begin, end = max(0, match.start - 60), min(len(text), match.end + 60)
        text = ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")
    return one_line(_SECRET.sub(r"\1\2***", text), _SHOWN_CHARS)
