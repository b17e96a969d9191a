"""Tables of `docs/engines.md` and `docs/engines/*.md`, made from the facts; the prose around them is written by hand.

    <!-- table: backends -->  ...  <!-- /table -->     one of `TABLES`, for the engine that the page is named after

Run by `make docs`; a test fails when a page is not what this would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvgate.core.errors import UserError
from kvgate.enginefacts import facts, log_patterns, serving_facts
from kvgate.enginefacts.facts import BackendRow, EngineFacts, FlagRow, Ranged, TroubleRow
from kvgate.enginefacts.serving_facts import ServingFacts
from kvgate.enginefacts.versions import range_words

#: Engines with facts, in the order of the overview; page -> engine is the same word.
ENGINES: Final = ("vllm", "sglang", "trtllm", "llama_cpp")
_TABLE: Final = re.compile(r"(<!-- table: (?P<name>\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)
#: Outside of code, Markdown would take these for emphasis, a cell's end or a tag.
_MARKS: Final = re.compile(r"([*|<_\[\]])")
_ATTENTION: Final = {"full": "K and V", "mla": "MLA", "sparse_mla": "sparse MLA"}
_FUSED: Final = {"yes": "yes", "no": "**no**", "": "not read"}
_QUERY: Final = {"fp8": "FP8", "model": "16 bits", "": ""}


def engine_page(page: str, name: str) -> str:
    """A page with every table as the facts are now.

    Args:
        page: its text. name: file name without its ending: an engine, or "engines" for the overview.

    Raises:
        UserError: the page asks for a table that there is none of.
    """

    def table(match: re.Match[str]) -> str:
        word = match["name"]
        if name == "engines" and word in OVERVIEW:
            made = OVERVIEW[word]()
        elif name in ENGINES and word in TABLES:
            made = TABLES[word](name)
        else:
            raise UserError(f"{name}.md asks for the table {word!r}", allowed=[*TABLES, *OVERVIEW])
        return f"{match[1]}\n{made}\n\n{match[3]}"

    return _TABLE.sub(table, page)


def pages(docs: Path) -> tuple[Path, ...]:
    """The pages that hold such tables."""
    return (docs / "engines.md", *sorted((docs / "engines").glob("*.md")))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _text(words: str) -> str:
    return _MARKS.sub(r"\\\1", " ".join(words.split()))


def _code(words: str) -> str:
    return "`" + words.replace("|", "\\|") + "`" if words else ""


def _codes(words: Iterable[str]) -> str:
    return ", ".join(_code(w) for w in words)


def _where(row: Ranged) -> str:
    """Versions in which a row holds, where it says, and where that was read."""
    bounds = f"{range_words(row.since, row.until)}; " if row.since or row.until else ""
    read = f" ({row.source.version})" if row.source.version else ""
    return _text(f"{bounds}{row.source.ref}{read}")


def _known(engine: str) -> str:
    f, log = facts.load(engine), log_patterns.load(engine)
    rows = (
        ("package", f.package),
        ("facts", f"{f.known_since} up to, not including, {f.known_until}"),
        ("read in full", f.newest),
        ("start logs", _range(log.known_since, log.known_until)),
    )
    return _table(("what", "versions"), [(a, _text(b)) for a, b in rows])


def _range(since: str, until: str) -> str:
    """A bound that no build reaches is none."""
    return "all builds" if until == "99999999" else f"{since} up to, not including, {until}"


def _dtypes(engine: str) -> str:
    f = facts.load(engine)
    rows = [(_code(d.codec), _code(d.spelling), _codes(d.aliases), _where(d)) for d in f.dtype]
    rows += [("", _code(w.spelling), "", f"{_text(w.means)}; {_where(w)}") for w in f.word]
    return _table(("kvgate's codec", "the engine's word", "also", "versions and source"), rows)


def _refused(engine: str) -> str:
    rows = [(_code(r.spelling), _text(r.why), _text(r.fix), _where(r)) for r in facts.load(engine).refused]
    return _table(("word", "why not", "instead", "versions and source"), rows)


def _flags(engine: str) -> str:
    return _table(
        ("option", "also", "default", "kvgate calls it", "versions and source"),
        [
            (_code(x.name or x.file), _also(x), _code(x.default), _code(x.key), _where(x))
            for x in facts.load(engine).flag
        ],
    )


def _also(row: FlagRow) -> str:
    return _codes([*row.aliases, *([row.file] if row.name and row.file else []), *([row.env] if row.env else [])])


def _backends(engine: str) -> str:
    rows = [
        (
            _code(b.name),
            _ATTENTION[b.attention],
            _device(b),
            _codes(b.dtypes) or "none" if b.native else f"only {_codes(b.dtypes)}",
            _heads(b),
            _blocks(b),
            _mark(b.sinks, b.sinks_capabilities),
            _mark(b.windows),
            _mark(b.per_head_scales),
            _QUERY[b.query],
            "; ".join(filter(None, ["only where it is named" if b.opt_in else "", _text(b.note)])),
            _where(b),
        )
        for b in facts.load(engine).backend
    ]
    head = ("backend", "attention", "runs on", "KV words beside 16 bits", "head sizes", "block", "sinks", "windows")
    return _table((*head, "scale a head", "Q with FP8", "note", "versions and source"), rows)


def _device(b: BackendRow) -> str:
    names = {"nvidia": "NVIDIA", "amd": "AMD", "cpu": "CPU", "any": "any GPU"}
    words = [names.get(b.vendor, b.vendor)]
    if b.capabilities:
        words.append(_capabilities(b.capabilities))
    if b.dtype_capabilities:
        words.append(f"(FP8: {_capabilities(b.dtype_capabilities)})")
    return " ".join(words)


def _capabilities(wanted: Sequence[str]) -> str:
    return ", ".join(c if "." in c else f"{c}.x" for c in wanted)


def _heads(b: BackendRow) -> str:
    parts = [", ".join(map(str, b.heads))] if b.heads else []
    if b.heads_from or b.heads_to:
        parts.append(f"{b.heads_from or 1} to {b.heads_to}" if b.heads_to else f"from {b.heads_from}")
    if b.heads_multiple_of > 1:
        parts.append(f"multiples of {b.heads_multiple_of}")
    return "; ".join(parts) or "any"


def _blocks(b: BackendRow) -> str:
    parts = [", ".join(map(str, b.blocks))] if b.blocks else []
    return "; ".join([*parts, *([f"multiples of {b.blocks_multiple_of}"] if b.blocks_multiple_of else [])]) or "any"


def _mark(there: bool, only: Sequence[str] = ()) -> str:
    return "no" if not there else f"on {_capabilities(only)}" if only else "yes"


def _kernels(engine: str) -> str:
    rows = [
        (
            _codes(k.backends),
            _codes(k.dtypes),
            k.phase,
            _FUSED[k.fused],
            _text(k.arithmetic) or "not read",
            _text(k.accumulation),
            _text(k.note),
            _where(k),
        )
        for k in serving_facts.load(engine).kernel
    ]
    head = ("backend", "KV words", "phase", "fused", "Q K multiplied in", "accumulation", "note", "versions and source")
    return _table(head, rows)


def _selection(engine: str) -> str:
    rows = []
    for s in facts.load(engine).selection:
        more = s.model_dump()
        vendor, models = more.get("vendor", "nvidia"), more.get("models", ())
        where = " ".join(filter(None, ["" if vendor == "nvidia" else vendor, _capabilities(s.capabilities)]))
        order = " > ".join(_code(b) for b in s.order)
        rows.append((_ATTENTION[s.attention], where, _codes(models) or "any", order, _where(s)))
    return _table(("attention", "device", "model", "the first that fits", "versions and source"), rows)


def _defaults(engine: str) -> str:
    rows = [(_text(d.name), _code(d.value), _text(d.note), _where(d)) for d in facts.load(engine).default]
    return _table(("what", "default", "note", "versions and source"), rows)


def _log(engine: str) -> str:
    rows = [(_code(x.has.strip()), _text(x.means), _where(x)) for x in log_patterns.load(engine).line]
    return _table(("a line with", "says", "versions and source"), rows)


def _metrics(engine: str) -> str:
    rows = [(_code(m.name), _text(m.counts), _text(m.note), _where(m)) for m in serving_facts.load(engine).metric]
    return _table(("metric", "what", "note", "versions and source"), rows)


def _troubles(engine: str) -> str:
    rows = {_trouble(t): None for t in facts.load(engine).trouble}
    return _table(("rule", "what goes wrong", "what to do", "versions and source"), rows)


def _trouble(t: TroubleRow) -> tuple[str, ...]:
    return f"{_code(t.id)} ({t.severity})", f"{_text(t.message)}: {_text(t.why)}", _text(t.fix), _where(t)


def _changes(engine: str) -> str:
    f, serving = facts.load(engine), serving_facts.load(engine)
    rows = [
        (_text(f"{e.since or 'not known'}: {e.name}"), f"before: {_text(e.before)}", "**no**", _where(e))
        for e in f.epoch
    ]
    rows += [(_text(range_words(c.since, c.until)), _text(c.what), "yes, and said", _where(c)) for c in serving.change]
    return _table(("from", "what changed", "runs across it are compared", "versions and source"), rows)


#: Tables of one engine, by the word in the marker.
TABLES: Final[Mapping[str, Callable[[str], str]]] = {
    "known": _known,
    "dtypes": _dtypes,
    "refused": _refused,
    "flags": _flags,
    "backends": _backends,
    "kernels": _kernels,
    "selection": _selection,
    "defaults": _defaults,
    "log": _log,
    "metrics": _metrics,
    "troubles": _troubles,
    "changes": _changes,
}


def _versions_overview() -> str:
    rows = [
        (
            f"[{e}](engines/{e}.md)",
            f.newest,
            f"{f.known_since} up to, not including, {f.known_until}",
            str(_count(f, s)),
        )
        for e, f, s in _all()
    ]
    return _table(("engine", "read in full", "known range", "facts"), rows)


def _count(f: EngineFacts, s: ServingFacts) -> int:
    own = (f.dtype, f.word, f.refused, f.flag, f.backend, f.selection, f.default, f.trouble, f.epoch)
    log = log_patterns.load(f.engine).line
    return sum(map(len, (*own, s.kernel, s.change, s.metric, log)))


def _all() -> list[tuple[str, EngineFacts, ServingFacts]]:
    return [(e, facts.load(e), serving_facts.load(e)) for e in ENGINES]


def _words_overview() -> str:
    codecs = dict.fromkeys(d.codec for _, f, _ in _all() for d in f.dtype)
    rows = [
        (_code(c), *(_codes([d.spelling, *d.aliases]) if (d := f.dtype_of(c)) else "" for _, f, _ in _all()))
        for c in codecs
    ]
    return _table(("codec", *ENGINES), rows)


def _metrics_overview() -> str:
    counts = dict.fromkeys(m.counts for _, _, s in _all() for m in s.metric)
    rows = [
        (_text(what), *(_codes(m.name for m in s.metric if m.counts == what) for _, _, s in _all()))
        for what in counts
        if sum(any(m.counts == what for m in s.metric) for _, _, s in _all()) > 1
    ]
    return _table(("what", *ENGINES), rows)


#: Tables over all engines, for the overview.
OVERVIEW: Final[Mapping[str, Callable[[], str]]] = {
    "versions": _versions_overview,
    "words": _words_overview,
    "metric_names": _metrics_overview,
}
