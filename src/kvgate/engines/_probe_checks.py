"""What contradicts itself between a server's pages, its address and the log given for it. One function a check.

A check speaks only where two things exclude each other; what is merely unknown is in `_probe_unknowns`. A log that is
not this server's is no evidence for anything, so the checks that find that out come first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvgate.core.errors import UserError
from kvgate.enginefacts import log_patterns, page_facts
from kvgate.enginefacts.versions import version_of
from kvgate.engines._kvlog import LogFacts
from kvgate.engines._pages import Reading
from kvgate.engines.pages._reader import Claim
from kvgate.plan.log_values import StartLog

#: Fields that several pages name, and that must then be equal.
_ONE_VALUE = ("version", "config_dtype", "block_tokens", "context_tokens", "tp", "pp", "prefix_cache", "speculation")
#: A commit: the folder of a downloaded model is called so, which says nothing of its name.
_COMMIT = re.compile(r"[0-9a-f]{40}")
_BUILD = re.compile(r"b(\d{1,7})")


@dataclass(frozen=True, slots=True)
class Named:
    """Two things that cannot both hold.

    Attributes:
        id: stable name. says: one line. places: pages and log lines that say so.
        severity: "error", or "warning" for what only changes the meaning of a number.
    """

    id: str
    says: str
    places: tuple[str, ...] = ()
    severity: str = "error"


def contradictions_of(url: str, pages: Reading, log: LogFacts | None) -> tuple[Named, ...]:
    """All contradictions; a log that is not this server's takes no part in those after."""
    found = [*_engines_disagree(pages), *_pages_disagree(pages), *_models_disagree(pages), *_asked_and_done(pages)]
    if log is None:
        return tuple(found)
    found += not_this_servers(url, pages, log)
    if log.start is not None and not not_this_servers(url, pages, log):
        for check in _CHECKS:
            found += check(pages, log, log.start)
        found += [
            Named(c.id, c.says, tuple(f"log line {n}" for n in c.lines), c.severity) for c in log.start.contradictions
        ]
    return tuple({(n.id, n.says): n for n in found}.values())


def not_this_servers(url: str, pages: Reading, log: LogFacts) -> tuple[Named, ...]:
    """Why a log is not that of the server at this address."""
    found = [Named(id_, says) for id_, says in log.problems]
    for check in (_other_engine, _other_version, _other_model):
        found += check(pages, log)
    found += _other_port(url, log)
    return tuple(found)


# -- pages alone --------------------------------------------------------------------------------------------------


def _engines_disagree(pages: Reading) -> Iterator[Named]:
    named = {s.engine for s in pages.signs}
    if len(named) > 1:
        by = {e: [f"{s.place}: {s.says}" for s in pages.signs if s.engine == e] for e in sorted(named)}
        says = ", ".join(f"{page_facts.load(e).title if e in page_facts.engines() else e} ({by[e][0]})" for e in by)
        yield Named("engines-disagree", f"the pages are of two engines: {says}", tuple(s.place for s in pages.signs))


def _pages_disagree(pages: Reading) -> Iterator[Named]:
    for field in _ONE_VALUE:
        every = [c for c in pages.every(field) if field != "config_dtype" or c.value != "auto"]
        if len({_plain(pages, c) for c in every}) > 1:
            said = ", ".join(f"{c.value} ({c.place})" for c in every[:4])
            yield Named(f"pages-disagree-{field.replace('_', '-')}", f"{_WORDS[field]}: {said}", _places(*every))


#: Fields in words.
_WORDS = {
    "version": "version",
    "config_dtype": "KV type",
    "block_tokens": "tokens of a block",
    "context_tokens": "longest sequence",
    "tp": "tensor parallel size",
    "pp": "pipeline parallel size",
    "prefix_cache": "prefix cache",
    "speculation": "speculation",
}


def _plain(pages: Reading, claim: Claim) -> object:
    """A value as it is compared: a KV type by its codec."""
    if claim.field == "config_dtype":
        return codec_of(pages.engine, str(claim.value)) or claim.value
    return claim.value


def _models_disagree(pages: Reading) -> Iterator[Named]:
    names = {str(c.value) for c in pages.every("model")}
    for claim in pages.every("metrics_model"):
        if names and str(claim.value) not in names and claim.value != "undefined":
            yield Named(
                "models-disagree",
                f"/v1/models lists {', '.join(sorted(names)[:4])}, the metrics are of {claim.value}",
                _places(claim),
            )


def _asked_and_done(pages: Reading) -> Iterator[Named]:
    """What the launch command asks for against what the same page says is in force."""
    for what, asked, done in (("KV type", "asked_dtype", "config_dtype"), ("backend", "asked_backend", "backend")):
        a, b = pages.claim(asked), pages.claim(done)
        if a is None or b is None or a.value == "auto":
            continue
        one, other = (codec_of(pages.engine, str(x.value)) or str(x.value).lower() for x in (a, b))
        if one != other:
            id_ = "requested-not-applied" if what == "KV type" else "backend-changed"
            yield Named(id_, f"{what}: {a.value} was asked for, {b.value} is in force", _places(a, b))


# -- whose log it is ----------------------------------------------------------------------------------------------


def _other_engine(pages: Reading, log: LogFacts) -> Iterator[Named]:
    if log.engine is not None and pages.engine is not None and log.engine != pages.engine:
        yield Named(
            "log-of-another-engine",
            f"the log is {_title(log.engine)}'s, the server is {_title(pages.engine)}",
            tuple(s.place for s in pages.signs if not s.word),
        )


def _title(engine: str) -> str:
    return page_facts.load(engine).title if engine in page_facts.engines() else engine


def _other_version(pages: Reading, log: LogFacts) -> Iterator[Named]:
    theirs, ours = pages.claim("version") or pages.claim("build"), None if log.start is None else log.start.version
    if theirs is None or ours is None or log.engine != pages.engine:
        return
    if _version(str(theirs.value), log.engine or "") != _version(ours, log.engine or ""):
        yield Named(
            "log-of-another-version",
            f"the log is of version {ours}, the server says {theirs.value}",
            (theirs.place, *(f"log line {f.line}" for f in log.start.every("version"))) if log.start else (),
        )


def _version(text: str, engine: str) -> object:
    m = _BUILD.match(text)
    try:
        return version_of(m[0] if m else text, engine)
    except UserError:
        return text


def _other_model(pages: Reading, log: LogFacts) -> Iterator[Named]:
    told = {c.field: c for c in log.told}
    theirs, ours = pages.claim("model_path"), told.get("model_path")
    if theirs is not None and ours is not None:
        a, b = (str(c.value).rstrip("/").rpartition("/")[2].lower() for c in (theirs, ours))
        differ = a != b and not (_COMMIT.fullmatch(a) or _COMMIT.fullmatch(b))
    else:
        ours = told.get("model")
        names = {str(c.value) for c in pages.every("model")}
        theirs, differ = pages.claim("model"), ours is not None and bool(names) and str(ours.value) not in names
    if differ and theirs is not None and ours is not None:
        yield Named(
            "log-of-another-model",
            f"the log is of model {ours.value}, the server says {theirs.value}",
            _places(theirs, ours),
        )


def _other_port(url: str, log: LogFacts) -> Iterator[Named]:
    """Only where an earlier start in the log had this port: a proxy or a container changes ports, too."""
    try:
        port = urlsplit(url).port
    except ValueError:
        return
    if port is not None and log.ports and log.ports[-1] != port and port in log.ports:
        yield Named(
            "log-of-another-start",
            f"the last server in the log listens on port {log.ports[-1]}, an earlier one on {port}, which was asked",
        )


# -- pages against this server's log ------------------------------------------------------------------------------


def codec_of(engine: str | None, word: str) -> str | None:
    """Codec behind an engine's word; None for `auto` and words that are not known."""
    if engine is None or engine not in log_patterns.engines():
        return None
    return log_patterns.load(engine).codec_of(word)


def _dtype(pages: Reading, log: LogFacts, start: StartLog) -> Iterator[Named]:
    page = pages.claim("config_dtype")
    if page is None:
        return
    stored = start.stored
    asked = next((f for n in ("config_dtype", "requested_dtype") if (f := start.fact(n)) is not None), None)
    ours, theirs = stored.k if stored.how in ("printed", "configured", "requested") else None, str(page.value)
    own = codec_of(pages.engine, theirs)
    places = (page.place, *(f"log line {f.line}" for f in (stored.fact or asked,) if f is not None))
    if own is not None and ours is not None and own != ours and not (own == "fp8_e4m3" and ours.endswith("_ds_mla")):
        yield Named("dtype-differs", f"KV type: the log says {ours}, {page.place} says {theirs}", places)
    elif theirs == "auto" and asked is not None and asked.value != "auto":
        yield Named("dtype-differs", f"KV type: the log says {asked.value}, {page.place} says auto", places)
    elif own is not None and ours is None and pages.engine != "sglang" and asked is not None and asked.value == "auto":
        # SGLang prints its arguments before it resolves auto.
        yield Named("dtype-differs", f"KV type: the log says auto, {page.place} says {theirs}", places)


def _capacity(pages: Reading, log: LogFacts, start: StartLog) -> Iterator[Named]:
    every = pages.every("tokens")
    ours, fact = start.tokens, start.fact("tokens")
    if every and ours is not None and pages.engine != "llama_cpp" and ours not in {c.value for c in every}:
        yield Named(
            "capacity-differs",
            f"room: the log says {ours:,} tokens, {every[0].place} says {every[0].value:,}",
            (every[0].place, *((f"log line {fact.line}",) if fact else ())),
        )


def _settings(pages: Reading, log: LogFacts, start: StartLog) -> Iterator[Named]:
    """What both say of the same settings."""
    told = {c.field: c.value for c in log.told}
    for field, words in (("context_tokens", "longest sequence"), ("tp", "tensor parallel size"), ("slots", "slots")):
        # A line of a slot's own context comes before the whole context of llama.cpp.
        ours = told.get(field) if field in told else start.whole(field)
        if pages.engine == "llama_cpp" and field not in told:
            continue
        theirs = pages.claim(field)
        if theirs is not None and ours is not None and theirs.value != ours:
            yield Named(
                f"{field.replace('_', '-')}-differs",
                f"{words}: the log says {ours}, {theirs.place} says {theirs.value}",
                (theirs.place,),
            )


def _backend(pages: Reading, log: LogFacts, start: StartLog) -> Iterator[Named]:
    page, ours = pages.claim("backend"), start.word("backend")
    if page is not None and ours is not None and str(page.value).lower() != ours.lower():
        yield Named("backend-differs", f"backend: the log says {ours}, {page.place} says {page.value}", (page.place,))


def _places(*claims: Claim) -> tuple[str, ...]:
    return tuple(dict.fromkeys(c.place for c in claims))


_CHECKS: tuple[Callable[[Reading, LogFacts, StartLog], Iterator[Named]], ...] = (
    _dtype,
    _capacity,
    _settings,
    _backend,
)
