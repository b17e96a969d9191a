"""What a load log says about the KV cache, for logs of servers that somebody else started (and of the fake one).

Logs of known engines are read by `plan.logs`; a few lines of known form count beside (our own fake server, a lone
argument dump). Anything else leaves the type unknown. A log of two engines or two servers says nothing of either: its
lines cannot be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvgate.core.deployment import CachePart, Consequence
from kvgate.core.errors import UserError
from kvgate.core.text import one_line
from kvgate.core.units import MIB_BYTES
from kvgate.enginefacts import log_patterns, page_facts
from kvgate.engines.pages._reader import Claim, converted
from kvgate.plan import logs as start_logs
from kvgate.plan.log_text import LogLine, lines_of
from kvgate.plan.log_values import LogCache, StartLog

_SIZE = re.compile(
    r"(?:llama_kv_cache|fake_kv_cache): size =\s*(?P<mib>[\d.]+) MiB "
    r"\(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers.*?"
    r"K \((?P<k>\w+)\):\s*(?P<k_mib>[\d.]+) MiB, V \((?P<v>\w+)\):\s*(?P<v_mib>[\d.]+) MiB"
)
#: A log that was appended to over restarts counts from the last of these on.
_LOAD_STARTS = ("llama_model_loader: loaded meta data", "fake_model: name =")
_PROCESS_STARTS = "system_info: n_threads"
_ROTATION = re.compile(r"llama_kv_cache: n_rot_(?P<side>[kv]) = (?P<size>\d+)")
_ARGUMENT = re.compile(r"""\bkv_cache_dtype['"]?\s*[=:]\s*['"]?(?:torch\.)?(?P<name>[A-Za-z0-9_]+)""")
#: Spellings of servers that are not codec ids; None is unknown ("auto" is whatever the model is).
_CODEC: dict[str, str | None] = {
    "auto": None,
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3fnuz",
    "float8_e5m2": "fp8_e5m2",
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "float32": "f32",
    "mxfp4": "ggml_mxfp4",
    "nvfp4": "ggml_nvfp4",
}
#: The same word means another layout in vLLM's and SGLang's arguments than in a ggml log.
_ARGUMENT_CODEC = {**_CODEC, "mxfp4": "mxfp4", "nvfp4": "nvfp4"}
#: The address that a server says it listens on.
_LISTENS = re.compile(
    r"(?:Starting vLLM(?: API)? server(?: \d{1,4})? on|Uvicorn running on|listening on) https?://[^\s/]{0,80}?:(?P<port>\d{1,5})\b"
)
#: Per engine: what begins a start, and what ends it.
_BEGINS_AND_READY: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "vllm": (("non-default args: {", "args: Namespace("), "Application startup complete"),
    "sglang": (("server_args=ServerArgs(",), "The server is fired up"),
    "llama_cpp": (("llama_model_loader: loaded meta data",), "listening on http"),
}
_PROCESS = re.compile(r"\((?P<part>APIServer|EngineCore) pid=(?P<pid>\d{1,9})\)")
#: Facts of a start log whose lines are evidence.
_EVIDENCE: Final = (
    *("version", "build", "requested_dtype", "requested_k", "requested_v", "config_dtype", "dtype", "model_dtype"),
    *("backend", "kernel", "scales", "query_scale", "query_dtype_prefill", "available", "allocated", "tokens"),
    *("context_tokens", "batched_tokens", "fallback", "block_tokens", "concurrency"),
)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Consequences and the lines that say so.

    Attributes:
        start: the whole reading, where the log is a known engine's. engine: whose it is, also where it says no more.
        told: what lines say beside (`enginefacts/pages/`); places are line numbers.
        problems: (id, words) of what makes the log no evidence: two engines, two servers.
        why: why there is no `start`, with the fix, in one line.
        ports: that its servers listened on, in order.
    """

    consequence: Consequence
    lines: tuple[str, ...]
    start: StartLog | None = None
    engine: str | None = None
    told: tuple[Claim, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    why: str = ""
    ports: tuple[int, ...] = ()


def read_log(path: Path) -> LogFacts:
    """Facts of a log file.

    Raises:
        UserError: it cannot be read, is packed, or holds binary data.
    """
    return _facts(list(lines_of(path)), str(path))


def facts_of(text: str) -> LogFacts:
    """Facts of a log's text, from the last load on. Sizes of several caches are added up."""
    return _facts(list(lines_of(text)), "text")


def _facts(every: Sequence[LogLine], where: str) -> LogFacts:
    lines = _last_load(every)
    text = "\n".join(line.text for line in lines)
    try:
        start: StartLog | None = start_logs.read_log(text)
        why, engine = "", start.engine if start is not None else None
    except UserError as e:
        start, why = None, str(e).replace("log text", f"log {where}", 1)
        engine = next(
            (x for x in log_patterns.engines() if f": {log_patterns.load(x).title} wrote it" in e.thing), None
        )
        if " holds lines of " in e.thing:
            return LogFacts(Consequence(), (), problems=(("log-of-two-engines", why),), why=why)
    ports = tuple(int(m["port"]) for line in lines if (m := _LISTENS.search(line.text[:400])) is not None)
    two = _two_servers(every, engine)
    if two:
        return LogFacts(Consequence(), (), engine=engine, problems=(("log-of-two-servers", two),), ports=ports)
    if start is None:
        plain = _plain_facts(text)
        return LogFacts(plain[0], plain[1], None, engine, why=why, ports=ports)
    return LogFacts(
        _consequence_of(start, text),
        _evidence(start),
        start,
        engine,
        tuple(_told(start, lines)),
        ports=ports,
    )


def _last_load(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """From the last load on, where no line says that a process starts: `plan.logs` tells starts apart by that."""
    if any(_PROCESS_STARTS in line.text for line in lines):
        return lines
    last = next((i for i in range(len(lines) - 1, -1, -1) if any(m in lines[i].text for m in _LOAD_STARTS)), 0)
    return lines[last:]


def _two_servers(lines: Sequence[LogLine], engine: str | None) -> str:
    """How one knows that two servers write into this log at the same time; "" if they do not."""
    begins, ready = _BEGINS_AND_READY.get(engine or "", ((), ""))
    begun, ended = 0, 0
    of: dict[str, str] = {}
    gone: set[tuple[str, str]] = set()
    for line in lines:
        m = _PROCESS.match(line.text)
        if m is not None:
            part, pid = m["part"], m["pid"]
            before = of.setdefault(part, pid)
            if before != pid:
                if (part, pid) in gone:
                    return f"lines of {part} {pid} and {before} alternate (line {line.number})"
                gone.add((part, before))
                of[part] = pid
        if any(mark in line.text for mark in begins):
            begun, ended = (1, 0) if ended else (begun + 1, 0)
        elif ready and ready in line.text:
            ended += 1
            if begun > 1 and ended > 1:
                return f"two starts begin before the first of them is ready (line {line.number})"
    return ""


def _told(start: StartLog, lines: Sequence[LogLine]) -> Iterator[Claim]:
    """What lines of this start say by the rows of `enginefacts/pages/`; the first line of a kind counts."""
    if start.engine not in page_facts.engines():
        return
    first = min((f.line for f in start.facts), default=1)
    rows = list(page_facts.load(start.engine).line)
    for line in lines:
        if line.number < first and start.earlier_starts:
            continue
        for row in [r for r in rows if r.has in line.text]:
            value = converted(row.field, line.text, row.map, row.pattern)
            if value is not None:
                yield Claim(row.field, value, f"log line {line.number}")
                rows.remove(row)
        if not rows:
            return


def _evidence(start: StartLog) -> tuple[str, ...]:
    shown = [f.text for name in _EVIDENCE for f in start.every(name)] + [c.text for c in start.caches]
    return tuple(dict.fromkeys(shown))[:60]


def _consequence_of(start: StartLog, text: str) -> Consequence:
    """What was stored, by the strongest line; the engine's rule for `auto` is no observation."""
    caches = [c for c in start.caches if c.context == 0 and c.k_type]
    if start.engine == "llama_cpp" and not caches:
        return _plain_facts(text)[0]
    stored = start.stored
    k, v = (stored.k, stored.v) if stored.how in ("printed", "configured", "requested") else (None, None)
    if any(c.severity == "error" and c.id in _UNKNOWN_TYPE for c in start.contradictions):
        k = v = None
    ranks = {c.rank for c in caches}
    one = [c for c in caches if c.rank == min(ranks)] if ranks else []
    sized = [c for c in one if c.k_bytes is not None and c.v_bytes is not None and c.cells and c.layers]
    kv_bytes = start.kv_bytes
    rotations = _rotations(one)
    return Consequence(
        k_codec=k,
        v_codec=v,
        parts=tuple(_part_of(c) for c in sized),
        kv_mib=None if kv_bytes is None or kv_bytes <= 0 else round(kv_bytes / MIB_BYTES, 2),
        cells=_cells(start, one),
        layers=sum(c.layers or 0 for c in one) or None,
        k_rotation=rotations.get("k"),
        v_rotation=rotations.get("v"),
    )


#: Contradictions after which nobody knows what is stored.
_UNKNOWN_TYPE = frozenset({"ranks-differ", "types-differ", "type-against-bytes", "auto-became-fp8", "dtype-dropped"})


def _cells(start: StartLog, one: Sequence[LogCache]) -> int | None:
    if start.engine == "llama_cpp":
        return max((c.cells for c in one if c.cells), default=None)
    return start.tokens


def _rotations(caches: Sequence[LogCache]) -> dict[str, int]:
    """The largest of each side, as in `Expected`; nothing where no line says it."""
    found = {}
    for side, sizes in (("k", [c.k_rotation for c in caches]), ("v", [c.v_rotation for c in caches])):
        known = [s for s in sizes if s is not None]
        if known:
            found[side] = max(known)
    return found


def _part_of(c: LogCache) -> CachePart:
    return CachePart(
        kind=c.kind,
        cells=c.cells or 0,
        layers=c.layers or 0,
        k_codec=c.k_codec or c.k_type,
        v_codec=c.v_codec or c.v_type,
        k_mib=round((c.k_bytes or 0) / MIB_BYTES, 2),
        v_mib=round((c.v_bytes or 0) / MIB_BYTES, 2),
        k_rotation=c.k_rotation,
        v_rotation=c.v_rotation,
    )


def _plain_facts(text: str) -> tuple[Consequence, tuple[str, ...]]:
    """Lines of known form, wherever they stand after the last load."""
    text = text[max(0, *(text.rfind(mark) for mark in _LOAD_STARTS)) :]
    found: dict[str, object] = {}
    parts: list[CachePart] = []
    lines: list[str] = []
    for line in text.splitlines():
        if m := _SIZE.search(line):
            parts.append(_part(m))
        elif m := _ROTATION.search(line):
            found[f"{m['side']}_rotation"] = int(m["size"])
        elif m := _ARGUMENT.search(line):
            codec = _ARGUMENT_CODEC.get(m["name"].lower(), m["name"].lower())
            found |= {"k_codec": codec, "v_codec": codec}
        else:
            continue
        lines.append(one_line(line, 500))
    return Consequence.model_validate(found | _summed(parts)), tuple(lines)


def _part(m: re.Match[str]) -> CachePart:
    return CachePart(
        kind="full_attention",
        cells=int(m["cells"]),
        layers=int(m["layers"]),
        k_codec=_CODEC.get(m["k"], m["k"]) or m["k"],
        v_codec=_CODEC.get(m["v"], m["v"]) or m["v"],
        k_mib=float(m["k_mib"]),
        v_mib=float(m["v_mib"]),
    )


def _summed(parts: list[CachePart]) -> dict[str, object]:
    if not parts:
        return {}
    # Caches of different types in one engine have no single codec: unknown.
    k, v = ({p.k_codec for p in parts}, {p.v_codec for p in parts})
    return {
        "parts": tuple(parts),
        "k_codec": k.pop() if len(k) == 1 else None,
        "v_codec": v.pop() if len(v) == 1 else None,
        "kv_mib": round(sum(p.k_mib + p.v_mib for p in parts), 2),
        "cells": max(p.cells for p in parts),
        "layers": sum(p.layers for p in parts),
    }
