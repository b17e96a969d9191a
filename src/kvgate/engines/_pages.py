"""Which engine a server is, by its own pages, and what they say; every engine's reader is one file in `pages/`.

No single word decides: a name in the model list can be set by anybody, so an engine is named only where its structure
shows (its metrics, its own pages), and where two engines' show, none is.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from kvgate.core import registry
from kvgate.core.errors import BadAnswer, EngineBusy, EngineTimeout
from kvgate.core.text import one_line
from kvgate.enginefacts import page_facts
from kvgate.engines._http import Reply
from kvgate.engines.pages._reader import Claim, PageReader, Sign, Value

#: Asked of every server. TensorRT-LLM hands out each iteration's statistics once, so its /metrics is asked for once.
PAGE_PATHS: Final = (
    *("/v1/models", "/version", "/health", "/props", "/slots", "/server_info", "/model_info"),
    *("/metrics", "/prometheus/metrics"),
)
#: Older names, asked only where the newer one is not there: SGLang before 0.5 has no other.
OLDER: Final = {"/server_info": "/get_server_info", "/model_info": "/get_model_info"}
#: The reader for servers that nothing identifies.
GENERIC: Final = "openai"
#: An ordinary page is a few KiB; SGLang's arguments and vLLM's histograms are tens.
MAX_PAGE_BYTES: Final = 8 * 2**20
_ABSENT = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Pages:
    """What a server answered.

    Attributes:
        got: path -> JSON value, or text. missing: path -> why there is none, in one line.
        statuses: path -> HTTP status, where there was one.
    """

    got: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the pages say.

    Attributes:
        engine: canonical id; None where nothing, or too much, identifies it.
        signs: what speaks for which engine. why: for a person, why `engine` is what it is.
        claims: everything that was said; of one field, the first claim counts.
    """

    engine: str | None
    signs: tuple[Sign, ...]
    claims: tuple[Claim, ...]
    why: str

    def claim(self, name: str) -> Claim | None:
        return next((c for c in self.claims if c.field == name), None)

    def every(self, name: str) -> tuple[Claim, ...]:
        return tuple(c for c in self.claims if c.field == name)

    def value(self, name: str) -> Value | None:
        found = self.claim(name)
        return None if found is None else found.value

    def word(self, name: str) -> str | None:
        value = self.value(name)
        return value if isinstance(value, str) else None

    def whole(self, name: str) -> int | None:
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, name: str) -> bool | None:
        value = self.value(name)
        return value if isinstance(value, bool) else None


def readers() -> Mapping[str, PageReader]:
    """Every reader in `pages/`, by engine."""
    return registry.discover("page_reader")


def read(pages: Mapping[str, Any]) -> Reading:
    """Engine and claims of a server's pages."""
    signs = tuple(sign for reader in readers().values() for sign in reader.signs(pages))
    engine, why = _identified(signs)
    claims = readers()[engine or GENERIC].claims(pages)
    return Reading(engine, signs, claims, why)


def _identified(signs: tuple[Sign, ...]) -> tuple[str | None, str]:
    shown = list(dict.fromkeys(s.engine for s in signs if not s.word))
    words = list(dict.fromkeys(s.engine for s in signs if s.word))
    if len(shown) == 1:
        own = [s for s in signs if s.engine == shown[0]]
        return shown[0], "; ".join(f"{s.place}: {s.says}" for s in own)
    if shown:
        return None, "its pages are of " + " and of ".join(shown)
    if words:
        return None, f"one word says {words[0]}, and no page of that engine's own is there"
    return None, "no page is one that a known engine has"


@cache
def page_paths() -> tuple[str, ...]:
    """Every page that a server is asked for: `PAGE_PATHS`, and what else a row of an engine names."""
    every = [page_facts.load(engine) for engine in page_facts.engines()]
    named = {row.path for facts in every for row in facts.sign} | {row.path for facts in every for row in facts.fact}
    return (*PAGE_PATHS, *sorted(named - set(PAGE_PATHS)))


async def fetch(get: Callable[[str], Awaitable[Reply]], *, paths: tuple[str, ...] | None = None) -> Pages:
    """Ask a server for its pages. What is refused, is no JSON where JSON is due, or is too large, is missing.

    Args:
        get: one GET of a path, whatever its status. paths: None asks for all of `page_paths`.

    Raises:
        EngineDied: nobody answers.
    """
    got: dict[str, Any] = {}
    missing: dict[str, str] = {}
    statuses: dict[str, int] = {}
    for path in page_paths() if paths is None else paths:
        await _one(get, path, path, got, missing, statuses)
        older = OLDER.get(path)
        if older is not None and statuses.get(path) in _ABSENT:
            await _one(get, older, path, got, missing, statuses)
    return Pages(got, missing, statuses)


async def _one(
    get: Callable[[str], Awaitable[Reply]],
    path: str,
    known_as: str,
    got: dict[str, Any],
    missing: dict[str, str],
    statuses: dict[str, int],
) -> None:
    try:
        reply = await get(path)
    except (BadAnswer, EngineTimeout) as e:
        missing[known_as] = one_line(str(e), 200)
        status = e.status if isinstance(e, BadAnswer | EngineBusy) else None
        if status is not None:
            statuses[known_as] = status
        return
    statuses[known_as] = reply.status
    if reply.status != 200:
        missing[known_as] = f"HTTP {reply.status}"
        return
    value, why = _value_of(reply)
    if why:
        missing[known_as] = why
    else:
        got[known_as] = value
        missing.pop(known_as, None)


def _value_of(reply: Reply) -> tuple[Any, str]:
    """A page's JSON value or text, or why it is neither."""
    if len(reply.body) > MAX_PAGE_BYTES:
        return None, f"over {MAX_PAGE_BYTES} bytes"
    if b"\0" in reply.body:
        return None, "binary data"
    text = reply.body.decode("utf-8", "replace")
    if reply.content_type == "text/html" or text.lstrip()[:1] == "<":
        return None, "HTML, which is no page of an inference server"
    if reply.content_type.endswith("json") or text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text), ""
        except (ValueError, RecursionError):
            return None, "not JSON"
    return text, ""
