"""The planned size lines against those that the real llama.cpp server writes, at several contexts and slots."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from engine_rule_kit import GIB, reserve

from kvgate.core.engine import Request, Settings
from kvgate.core.recipe import parse
from kvgate.engines._llama_serving import serve
from kvgate.engines.llama_cpp import DRIVER
from kvgate.models.resolve import model_files

pytestmark = pytest.mark.engine

#: Time and level before the line differ between runs.
_LINE = re.compile(r"(?:[\d.]+ [A-Z] )?(llama_(?:kv_cache|memory_recurrent): size = .*)")


def _logged(path: Path, recipe: str, context_tokens: int, slots: int) -> list[str]:
    model = model_files(path, name="smollm2")
    made = DRIVER.resolve(Request(model, parse(recipe), Settings(context_tokens, threads=1, slots=slots), recipe))

    async def log() -> list[str]:
        async with serve(made) as session:
            return list(session.load_log())

    return [found[1] for line in asyncio.run(log()) if (found := _LINE.fullmatch(line.strip()))]


@pytest.mark.parametrize(
    ("recipe", "context_tokens", "slots"),
    [("f16", 300, 1), ("q8_0", 1000, 3), ("k=q8_0,v=q4_0", 513, 2)],
)
def test_the_server_writes_the_planned_lines(smollm2: Path, recipe: str, context_tokens: int, slots: int) -> None:
    """Cells, layers, streams, types and MiB are predicted word by word."""
    geometry = model_files(smollm2, name="smollm2").geometry

    planned = reserve("llama_cpp", geometry, recipe, budget=GIB, context_tokens=context_tokens, slots=slots)

    assert planned.prints.splitlines() == _logged(smollm2, recipe, context_tokens, slots)
