"""Pages and logs of strangers: whatever they hold, reading them ends, raises nothing, and prints nothing that acts."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from typing import Any

import probe_kit as kit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.core.deployment import Deployment
from kvgate.core.errors import UserError
from kvgate.enginefacts import page_facts
from kvgate.engines import _pages
from kvgate.engines._attached import describe
from kvgate.engines._http import Reply
from kvgate.engines._kvlog import facts_of
from kvgate.engines._pages import PAGE_PATHS, read
from kvgate.engines._probe_checks import contradictions_of, not_this_servers
from kvgate.engines._probe_unknowns import unknowns_of

KEYS = sorted(
    {part for e in page_facts.engines() for row in page_facts.load(e).fact for part in row.key.split(".")} - {"", "*"}
)
LABELS = sorted({row.label for e in page_facts.engines() for row in page_facts.load(e).fact} - {""})
SAMPLES = sorted({row.sample for e in page_facts.engines() for row in page_facts.load(e).fact} - {""})
#: Escapes, overrides, halves of surrogate pairs, digits of other scripts, numbers beyond any memory.
NASTY = [
    "\x1b[31m",
    "\u202eabc",
    "\ud800",
    "\u0663",
    "1e999",
    "9" * 400,
    "NaN",
    "-1",
    "",
    "None",
    "auto",
    "fp8_e4m3",
    "true",
]
WORDS = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(KEYS), WORDS), inner, max_size=5)
    ),
    max_leaves=25,
)
METRICS = st.lists(
    st.builds(
        lambda name, labels, value: name + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "} " + value,
        st.one_of(st.sampled_from(SAMPLES), WORDS),
        st.dictionaries(st.one_of(st.sampled_from(LABELS), WORDS), WORDS, max_size=5),
        st.one_of(st.sampled_from(["1.0", "NaN", "+Inf", "1e999"]), WORDS),
    ),
    max_size=8,
).map("\n".join)


def at_its_place(chosen: list[tuple[page_facts.FactRow, Any]]) -> dict[str, Any]:
    """Pages with each value where its row looks for it."""
    pages: dict[str, Any] = {}
    for row, value in chosen:
        inner = value
        for part in reversed(row.key.split(".")):
            inner = [inner] if part == "*" or part.isdecimal() else {part: inner}
        old = pages.get(row.path)
        pages[row.path] = old | inner if isinstance(old, dict) and isinstance(inner, dict) else inner
    return pages


ROWS = [row for e in page_facts.engines() for row in page_facts.load(e).fact if row.key]
IN_PLACE = st.lists(st.tuples(st.sampled_from(ROWS), SCALARS), min_size=1, max_size=8).map(at_its_place)
PAGES = st.dictionaries(st.sampled_from(PAGE_PATHS), st.one_of(VALUES, METRICS), max_size=9)
LOG_LINES = [
    line
    for name in ("vllm_0.32.0_cpu_fp8_e4m3.log", "sglang_0.5_e5m2_fa3.log", "trtllm_1.2_h200.log")
    for line in (kit.LOGS / name).read_text().splitlines()
]
LOG = st.lists(st.one_of(st.sampled_from(LOG_LINES), WORDS, st.text(max_size=200)), max_size=30).map("\n".join)
QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def looked_at(pages: dict[str, Any], log_text: str | None) -> None:
    """Everything that a probe does with pages and a log, and what must hold of it."""
    log = facts_of(log_text) if log_text is not None else None
    reading = read(pages)
    seen = describe(kit.URL, None, pages, log)
    own = log if log is not None and not not_this_servers(kit.URL, reading, log) else None
    told = [n.says for n in contradictions_of(kit.URL, reading, log)]
    told += [f"{u.why} {u.tells}" for u in unknowns_of(seen, reading, own)]
    told += [*seen.evidence, reading.why, seen.identity.version or "", seen.subject.spelling]

    assert Deployment.model_validate_json(seen.model_dump_json()) == seen
    json.dumps(seen.model_dump(mode="json"), allow_nan=False)
    for name in ("tokens", "blocks", "block_tokens", "context_tokens", "tp", "kv_gib"):
        assert all(isinstance(c.value, int | float) and 0 < c.value < 2**60 for c in reading.every(name))
    for text in (*told, *(str(c.value) for c in reading.claims if c.field != "template")):
        assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs")], ascii(text)


@QUICK
@given(st.one_of(PAGES, IN_PLACE))
def test_any_pages(pages: dict[str, Any]) -> None:
    """Keys, labels and samples of the rows with values of every kind."""
    looked_at(pages, None)


@QUICK
@given(st.sampled_from([kit.vllm_pages(), kit.sglang_pages(), kit.trtllm_pages(), kit.llama_pages()]), PAGES, LOG)
def test_any_pages_of_an_engine_and_any_log(true: dict[str, Any], pages: dict[str, Any], log: str) -> None:
    """An engine's own pages with some of them replaced, and lines of several logs in any order."""
    looked_at(true | pages, log)


@QUICK
@given(st.binary(max_size=400), st.sampled_from(["application/json", "text/plain", "text/html", "", "application/x"]))
def test_any_bytes_as_a_page(body: bytes, content_type: str) -> None:
    """A body is a value, a text, or missing with a reason; then it is read like any other."""

    async def get(path: str) -> Reply:
        return Reply(200, content_type, body)

    got = asyncio.run(_pages.fetch(get))

    assert set(got.got) | set(got.missing) == set(PAGE_PATHS)
    assert all(got.missing.values())
    looked_at(dict(got.got), None)


@QUICK
@given(st.binary(max_size=600))
def test_any_bytes_as_a_log(data: bytes) -> None:
    """A log of bytes says nothing, or what its lines say."""
    try:
        looked_at(kit.vllm_pages(), data.decode("utf-8", "replace"))
    except UserError as e:
        assert "\n" not in str(e)
