"""`kvgate probe`: what a server that already runs really is, from its pages and its start log. Starts nothing.

Everything that it says has its place; what nobody says is unknown, with the reason. A failure of the server is never a
number.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvgate.core.deployment import Deployment
from kvgate.core.engine import Attach, Available, Lane, Missing
from kvgate.core.errors import BadAnswer, EngineChanged, EngineDied, EngineError, EngineTimeout, UserError
from kvgate.core.text import one_line
from kvgate.core.units import MIB_BYTES

if TYPE_CHECKING:
    from kvgate.engines._http import HttpClient, Reply
    from kvgate.engines._kvlog import LogFacts
    from kvgate.engines._pages import Pages, Reading
    from kvgate.engines._probe_checks import Named
    from kvgate.engines._probe_unknowns import Unknown

#: Holds the key where no other variable is named.
KEY_VARIABLE: Final = "KVGATE_API_KEY"
_ABSENT: Final = (404, 405, 501)
#: Room that is this far from what its type gives is another type's: printed sizes are rounded, blocks are whole.
_ROOM_WITHIN: Final = Fraction(1, 20)


@dataclass(frozen=True, slots=True)
class Probe:
    """One server.

    Attributes:
        asked: KV type that was asked for, in the engine's word. how: of the KV type, "printed", "configured",
            "requested", "metrics"; None where it is unknown.
        lanes: None where none was asked for. log_used: a log was given and is this server's.
    """

    url: str
    deployment: Deployment
    reading: Reading
    pages: Pages
    asked: str | None
    how: str | None
    contradictions: tuple[Named, ...]
    warnings: tuple[Named, ...]
    unknowns: tuple[Unknown, ...]
    lanes: Mapping[Lane, Available | Missing] | None = None
    log: LogFacts | None = None
    log_used: bool = False
    log_path: str = ""
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """4 where something contradicts itself."""
        return 4 if self.contradictions else 0


def probe(
    url: str,
    *,
    log: Path | None = None,
    base_log: Path | None = None,
    key_variable: str = "",
    lanes: bool = True,
    timeout_s: float = 15.0,
) -> Probe:
    """Ask a server what it is.

    Args:
        log: its start log. base_log: of its baseline, against whose room its own is held.
        key_variable: the environment variable that holds its key. lanes: try each lane with a request of a few tokens.
        timeout_s: for each page.

    Raises:
        UserError: no address, nobody or somebody else answers, a key is missing, or a log cannot be read.
    """
    from kvgate.engines._http import check_url
    from kvgate.engines._kvlog import read_log

    url = check_url(url)
    key = _key(key_variable)
    facts = read_log(log) if log is not None else None
    base = read_log(base_log) if base_log is not None else None
    for given, path in ((facts, log), (base, base_log)):
        # Nothing in it is of any engine: another file was meant.
        if given is not None and given.engine is None and not given.problems and given.consequence.k_codec is None:
            raise UserError(given.why or f"log {path} says nothing")
    try:
        pages = asyncio.run(_pages(url, key, key_variable or KEY_VARIABLE, timeout_s))
    except EngineTimeout as e:
        raise UserError(f"{url}: {e}", fix="wait until it is ready, or give it longer: --timeout SECONDS") from None
    except EngineDied as e:
        raise UserError(f"{url}: nobody answers ({e})", fix="start the server, or correct the address") from None
    made = _made(url, pages, facts, base, str(log) if log else "")
    if not lanes:
        return made
    return asyncio.run(_with_lanes(made, key))


def _key(variable: str) -> str | None:
    value = os.environ.get(variable or KEY_VARIABLE)
    if variable and not value:
        raise UserError(f"environment variable {variable!r} holds no key", fix=f"export {variable}=KEY first")
    return value or None


# -- pages --------------------------------------------------------------------------------------------------------


async def _pages(url: str, key: str | None, variable: str, timeout_s: float) -> Pages:
    """The server's pages.

    Raises:
        UserError: the first page shows that this is no server of models, or that it wants something.
        EngineDied, EngineTimeout: nobody answers (in time).
    """
    from kvgate.engines._http import HttpClient
    from kvgate.engines._pages import MAX_PAGE_BYTES, PAGE_PATHS, Pages, fetch
    from kvgate.engines._retry import FIRST_CONTACT

    most = MAX_PAGE_BYTES
    async with HttpClient(url, api_key=key, timeout_s=timeout_s, max_body_bytes=most, backoff=FIRST_CONTACT) as http:

        async def get(path: str) -> Reply:
            return await http.fetch("GET", path)

        try:
            first = await get(PAGE_PATHS[0])
        except BadAnswer as e:
            raise UserError(f"{url}: {e}", fix="give the address below which /v1/models lies") from None
        _refuse(url, first, http, key, variable)

        async def again(path: str) -> Reply:
            return first if path == PAGE_PATHS[0] else await get(path)

        found = await fetch(again)
    if not found.got:
        why = found.missing.get(PAGE_PATHS[0], "nothing")
        raise UserError(
            f"{url}: no page of an inference server answers (/v1/models: {why})",
            fix="give the address below which /v1/models lies",
        )
    return Pages(found.got, found.missing, found.statuses)


def _refuse(url: str, reply: Reply, http: HttpClient, key: str | None, variable: str) -> None:
    """What the first page already decides.

    Raises:
        UserError: a key is missing or refused, it is broken, or no server of models.
    """
    from kvgate.engines._refusal import refusal

    if reply.status in (401, 403):
        what = f"refuses the key in {variable}" if key else "wants a key"
        fix = f"export {variable}=KEY" + (
            "" if variable == KEY_VARIABLE else f", and name it by --api-key-env {variable}"
        )
        raise UserError(f"{url} {what} (HTTP {reply.status})", fix=fix)
    html = reply.content_type == "text/html" or reply.body.lstrip()[:1] == b"<"
    if html and (reply.status == 200 or reply.status not in _ABSENT):
        raise UserError(
            f"{url}/v1/models answers with HTML (HTTP {reply.status}): this is no inference server",
            fix="give the address of the server itself, below which /v1/models lies",
        )
    if reply.status != 200 and reply.status not in _ABSENT:
        raise UserError(f"{url}: {refusal('/v1/models', reply, http.clean)}", fix="read the server's log")


# -- what they say ------------------------------------------------------------------------------------------------


def _made(url: str, pages: Pages, log: LogFacts | None, base: LogFacts | None, path: str) -> Probe:
    from kvgate.engines._attached import asked, describe, stored_by_page
    from kvgate.engines._pages import read
    from kvgate.engines._probe_checks import contradictions_of, not_this_servers
    from kvgate.engines._probe_unknowns import unknowns_of

    reading = read(pages.got)
    own = log if log is not None and not not_this_servers(url, reading, log) else None
    seen = describe(url, None, pages.got, log)
    found = [*contradictions_of(url, reading, log), *(_room_against(seen, own, base) if base is not None else ())]
    how = None
    if seen.consequence.k_codec is not None:
        logged = own is not None and own.consequence.k_codec is not None
        how = own.start.stored.how if logged and own is not None and own.start is not None else "configured"
        if not logged and stored_by_page(reading) is not None:
            how = "metrics"
    notes = list(own.start.notes) if own is not None and own.start is not None else []
    if log is not None and own is None:
        notes.append(f"the log {path} is not this server's, so nothing in it counts")
    elif log is not None and log.start is None and log.why:
        notes.append(log.why)
    if pages.statuses.get("/health", 200) not in (200, *_ABSENT):
        notes.append(f"/health answers HTTP {pages.statuses['/health']}: the server says that it is not well")
    return Probe(
        url=url,
        deployment=seen,
        reading=reading,
        pages=pages,
        asked=asked(reading, own),
        how=how,
        contradictions=tuple(n for n in found if n.severity == "error"),
        warnings=tuple(n for n in found if n.severity != "error"),
        unknowns=unknowns_of(seen, reading, own),
        log=log,
        log_used=own is not None,
        log_path=path,
        notes=tuple(notes),
    )


def _room_against(seen: Deployment, log: LogFacts | None, base: LogFacts) -> list[Named]:
    """Tokens in the same bytes against the baseline's: FP8 has to hold twice what 16 bits hold."""
    from kvgate.engines._probe_checks import Named

    if log is None or log.start is None or base.start is None or log.engine != base.engine:
        return []
    ours, theirs = log.start, base.start
    sizes = (ours.tokens, ours.kv_bytes, theirs.tokens, theirs.kv_bytes)
    bits, base_bits = _bits(ours.stored.k, ours.stored.v), _bits(theirs.stored.k, theirs.stored.v)
    if bits is None or base_bits is None or not all(isinstance(x, int) and x > 0 for x in sizes):
        return []
    tokens, room, base_tokens, base_room = (Fraction(x or 0) for x in sizes)
    got, want = (tokens / room) / (base_tokens / base_room), base_bits / bits
    if abs(got / want - 1) <= _ROOM_WITHIN:
        return []
    auto = "auto" in (ours.stored.how, theirs.stored.how)
    says = (
        f"room: {ours.stored.k} should hold {float(want):.2f} times the baseline's tokens in the same bytes "
        f"({theirs.stored.k}), it holds {float(got):.2f} times ({int(tokens):,} against {int(base_tokens):,})"
        + ("; under auto, a checkpoint's KV scheme turns FP8 on without a word" if auto else "")
    )
    return [Named("capacity-not-as-type", says, (ours.where, theirs.where))]


def _bits(k: str | None, v: str | None) -> Fraction | None:
    """Bits of one element of K and of V together."""
    from kvgate.core.registry import discover
    from kvgate.formats.spec import CodecSpec

    known = discover("codec")
    specs = [known.get(x) for x in (k or "", v or "")]
    if not all(isinstance(s, CodecSpec) for s in specs):
        return None
    return sum((Fraction(s.row_bytes(256) * 8, 256) for s in specs if isinstance(s, CodecSpec)), Fraction())


# -- lanes --------------------------------------------------------------------------------------------------------


async def _with_lanes(made: Probe, key: str | None) -> Probe:
    """Each lane tried; a server that answers as another model than it lists is no longer the one that was read."""
    from kvgate.engines._probe_checks import Named
    from kvgate.engines.openai import DRIVER

    try:
        async with DRIVER.open(Attach(made.url, api_key=key)) as session:
            found = await session.lanes()
    except EngineChanged as e:
        reason = one_line(str(e), 300)
        other = Named("answers-of-another", reason, ("an answer",))
        return replace(
            made,
            lanes={lane: Missing(reason) for lane in Lane},
            contradictions=(*made.contradictions, other),
        )
    except EngineError as e:
        return replace(made, lanes={lane: Missing(one_line(str(e), 300)) for lane in Lane})
    lanes = {lane: x if isinstance(x, Available) else Missing(one_line(x.reason, 300)) for lane, x in found.items()}
    return replace(made, lanes=lanes)


# -- the document -------------------------------------------------------------------------------------------------


def document(found: Probe) -> dict[str, Any]:
    """`kvgate.probe/1`: a Deployment with what was requested and what is observed beside it."""
    reading = found.reading
    return {
        "schema": "kvgate.probe/1",
        "url": found.url,
        "exit_code": found.exit_code,
        "requested": requested(found),
        "observed": observed(found),
        **found.deployment.model_dump(mode="json"),
        "contradictions": [asdict(n) for n in found.contradictions],
        "warnings": [asdict(n) for n in found.warnings],
        "unknowns": [asdict(u) for u in found.unknowns],
        "notes": list(found.notes),
        "signs": [asdict(s) for s in reading.signs],
        "metrics": [_claim(c) for c in reading.claims if c.metric],
        "claims": [_claim(c) for c in reading.claims if not c.metric and c.field != "template"],
        "log": _log(found),
        "pages": dict.fromkeys(found.pages.got, "read") | dict(found.pages.missing),
        "lanes": None if found.lanes is None else {lane.value: _lane(x) for lane, x in found.lanes.items()},
        **({"lanes_why": "none was tried (--no-lanes)"} if found.lanes is None else {}),
    }


def requested(found: Probe) -> dict[str, Any]:
    """What was asked of the engine; null where nothing tells it."""
    start = found.log.start if found.log_used and found.log is not None else None
    return {
        "kv_dtype": found.asked,
        "backend": (start.word("requested_backend") if start is not None else None)
        or found.reading.word("asked_backend"),
        "scales_file": found.reading.word("scales_file") or _told(found, "scales_file"),
        "kept_layers": found.reading.word("skip_layers"),
        "context_tokens": start.whole("requested_context_tokens") if start is not None else None,
    }


def observed(found: Probe) -> dict[str, Any]:
    """What the engine is and does, by its log and its pages; null where nothing tells it."""
    seen, reading = found.deployment, found.reading
    got, who = seen.consequence, seen.identity
    start = found.log.start if found.log_used and found.log is not None else None
    return {
        "engine": reading.engine,
        "engine_why": reading.why,
        "version": who.version,
        "build": who.build,
        "models": list(dict.fromkeys(str(c.value) for c in reading.every("model"))),
        "model_path": reading.word("model_path") or _told(found, "model_path"),
        "k": got.k_codec,
        "v": got.v_codec,
        "kv_how": found.how,
        "kv_configured": reading.word("config_dtype"),
        "k_scale": got.k_scale.origin if got.k_scale is not None else None,
        "v_scale": got.v_scale.origin if got.v_scale is not None else None,
        **seen.loud.model_dump(),
        "flash_attention": who.flash_attention,
        "tokens": got.cells if got.cells is None or start is None or start.tokens is None else start.tokens,
        "window_tokens": reading.whole("window_tokens")
        or (start.whole("window_tokens") if start is not None else None),
        "kv_bytes": round(got.kv_mib * MIB_BYTES) if got.kv_mib is not None else None,
        "blocks": reading.whole("blocks") or (start.whole("blocks") if start is not None else None),
        "block_tokens": reading.whole("block_tokens") or (start.whole("block_tokens") if start is not None else None),
        "context_tokens": who.context_tokens,
        "slots": who.slots,
        "prefix_cache": who.prefix_cache,
        "chunked_prefill": who.chunked_prefill,
        "speculation": who.speculation,
        "tensor_parallel": who.tensor_parallel,
        "pipeline_parallel": who.pipeline_parallel,
        "k_rotation": got.k_rotation,
        "v_rotation": got.v_rotation,
    }


def _told(found: Probe, field: str) -> str | None:
    if not found.log_used or found.log is None:
        return None
    return next((str(c.value) for c in found.log.told if c.field == field), None)


def _claim(claim: Any) -> dict[str, Any]:
    return {"field": claim.field, "value": claim.value, "place": claim.place}


def _log(found: Probe) -> dict[str, Any] | None:
    log = found.log
    if log is None:
        return None
    return {
        "path": found.log_path,
        "engine": log.engine,
        "version": log.start.version if log.start is not None else None,
        "used": found.log_used,
        **({"why": log.why} if log.why else {}),
        "lines": list(log.lines),
    }


def _lane(lane: Available | Missing) -> dict[str, Any]:
    if isinstance(lane, Available):
        return {"available": True, "limits": dict(lane.limits)}
    return {"available": False, "reason": lane.reason}
