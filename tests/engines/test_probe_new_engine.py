"""A further engine's pages are two new files, and no other edit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvgate.core import registry
from kvgate.enginefacts import page_facts
from kvgate.engines import _pages, pages
from kvgate.engines._http import Reply
from kvgate.engines.pages import _reader

ROWS = """
schema = "kvgate.page-facts/1"
engine = "newengine"
title = "New engine"

[[sign]]
path = "/newengine/state"
key = "kv"
says = "its own state"
source = { kind = "spec", ref = "a test", version = "1" }

[[fact]]
field = "block_tokens"
path = "/newengine/state"
key = "kv.block"
source = { kind = "spec", ref = "a test", version = "1" }

[[fact]]
field = "tokens"
path = "/metrics"
sample = "newengine:tokens"
source = { kind = "spec", ref = "a test", version = "1" }
"""
CODE = """'New engine.'

from kvgate.engines.pages._reader import FactsReader

PAGES = FactsReader("newengine")
"""
CACHES = (
    page_facts.load,
    page_facts.engines,
    registry.discover,
    _pages.page_paths,
    _reader._asked_for,
)


@pytest.fixture
def with_new_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The rows beside copies of the others, the reader in a folder that the package looks into, too."""
    rows = tmp_path / "rows"
    rows.mkdir()
    for path in (Path(page_facts.__file__).parent / "pages").glob("*.toml"):
        (rows / path.name).write_text(path.read_text())
    (rows / "newengine.toml").write_text(ROWS)
    code = tmp_path / "code"
    code.mkdir()
    (code / "newengine.py").write_text(CODE)
    monkeypatch.setattr(page_facts, "_folder", lambda: rows)
    monkeypatch.setattr(pages, "__path__", [*pages.__path__, str(code)])
    for cached in CACHES:
        cached.cache_clear()
    yield pages
    sys.modules.pop("kvgate.engines.pages.newengine", None)
    for cached in CACHES:
        cached.cache_clear()


def test_a_new_engine_is_two_new_files(with_new_engine: ModuleType) -> None:
    """Its page is asked for, its sign names it, its rows are read."""

    async def get(path: str) -> Reply:
        bodies = {"/newengine/state": b'{"kv": {"block": 32}}', "/metrics": b"newengine:tokens 4096\n"}
        body = bodies.get(path)
        return Reply(404, "", b"") if body is None else Reply(200, "", body)

    found = _pages.read(asyncio.run(_pages.fetch(get)).got)

    assert found.engine == "newengine"
    assert (found.whole("block_tokens"), found.whole("tokens")) == (32, 4096)
