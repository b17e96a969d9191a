"""The pages of the engines: tables are what the facts say, and every fact with its version and source is on a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvgate.cli._engine_pages import ENGINES, TABLES, engine_page, pages
from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.enginefacts import facts, log_patterns, serving_facts

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", pages(DOCS), ids=lambda p: p.stem)
def test_tables_are_fresh(page: Path) -> None:
    """`make docs` would change nothing."""
    text = page.read_text()

    assert engine_page(text, page.stem) == text, "run `make docs`"


@pytest.mark.parametrize("page", pages(DOCS), ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links point at files that are there; every row of a table has as many cells as its head."""
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(cells) == 1, block[:200]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_fact_is_on_its_page(engine: str) -> None:
    """Each KV word, option, backend, rule of trouble, change and metric stands on the engine's page."""
    text = (DOCS / "engines" / f"{engine}.md").read_text()
    f, serving = facts.load(engine), serving_facts.load(engine)
    words = [d.spelling for d in f.dtype] + [w.spelling for w in f.word] + [r.spelling for r in f.refused]
    words += [x.name or x.file for x in f.flag] + [b.name for b in f.backend] + [t.id for t in f.trouble]
    words += [m.name for m in serving.metric] + [x.has.strip() for x in log_patterns.load(engine).line]

    missing = [w for w in words if f"`{w.replace('|', chr(92) + '|')}`" not in text]

    assert not missing
    assert all(e.name in text for e in f.epoch)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_fact_of_a_running_engine_has_a_source(engine: str) -> None:
    """Kernels, changes and metrics each say where and in which version they were read; backends are known ones."""
    serving, known = serving_facts.load(engine), {b.name for b in facts.load(engine).backend}

    for row in (*serving.kernel, *serving.change, *serving.metric):
        assert row.source.ref
        assert row.source.version
    assert len({m.name for m in serving.metric}) == len(serving.metric)
    if known and engine == "vllm":
        assert {b for k in serving.kernel for b in k.backends} <= known


@pytest.mark.parametrize("engine", ["vllm"])
def test_kernels_read_what_their_backends_take(engine: str) -> None:
    """Every backend that takes a quantized word has a row that says how it reads it, fused or not."""
    serving = serving_facts.load(engine)
    read = {b: {d for k in serving.kernel if b in k.backends for d in k.dtypes} for b in _backends(engine)}

    for name, words in _backends(engine).items():
        if words:
            assert read[name], name
            assert all(k.fused for k in serving.kernel if name in k.backends)


def _backends(engine: str) -> dict[str, tuple[str, ...]]:
    return {b.name: b.dtypes for b in facts.load(engine).backend}


def test_every_engine_is_explained() -> None:
    """An engine that is registered stands in the overview."""
    text = (DOCS / "engines.md").read_text()

    assert [e for e in registry.discover("engine") if e not in text] == []


def test_a_table_that_there_is_none_of() -> None:
    """A marker with a wrong word is refused with the words there are; tables of an engine need an engine's page."""
    for name, word in (("vllm", "backend"), ("openai", "backends"), ("engines", "flags")):
        with pytest.raises(UserError, match="backends, kernels"):
            engine_page(f"<!-- table: {word} -->\n<!-- /table -->", name)


def test_text_of_facts_is_no_markup() -> None:
    """Bars, stars and angle brackets of a fact do not end a cell or begin a tag."""
    for table in TABLES.values():
        for row in table("vllm").splitlines()[2:]:
            bare = re.sub(r"`[^`]*`", "", row)
            assert not re.search(r"(?<!\\)<", bare), row
