"""Token ids by a model folder's tokenizer, in the engine's own interpreter."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from family_kit import make_environment
from process_kit import gone

from kvgate.core.errors import BadAnswer
from kvgate.engines._trtllm_tokens import FolderTokens


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_environment(tmp_path_factory.mktemp("trtllm") / "env", "trtllm"))


def test_ids_of_texts(python: str, tmp_path: Path) -> None:
    """One process for all texts, with BOS where it is asked for; gone when it is closed."""
    (tmp_path / "tokenizer.json").write_text("{}")
    tokens = FolderTokens(python, tmp_path)

    async def run() -> tuple[object, ...]:
        return (
            await tokens.ids("ab", special=False),
            await tokens.ids("a\n\u2028b", special=True),
            await tokens.ids("", special=False),
        )

    first, second, third = asyncio.run(run())
    process = tokens._process
    assert process is not None
    tokens.close()

    assert (first, second, third) == ((97, 98), (0, 97, 10, 226, 128, 168, 98), ())
    assert gone(process.pid, 0.1)


@pytest.mark.parametrize(
    ("content", "says"), [(None, "has no tokenizer.json"), ("", "no token ids: ValueError: an empty file")]
)
def test_no_ids(python: str, tmp_path: Path, content: str | None, says: str) -> None:
    """A folder without the file, and a file that cannot be read, are said in one line; nothing is guessed."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(BadAnswer, match=says):
        asyncio.run(FolderTokens(python, tmp_path).ids("a", special=False))


def test_an_interpreter_that_is_gone(tmp_path: Path) -> None:
    """No process, no ids, no exception of another kind."""
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(BadAnswer, match="gives no token ids"):
        asyncio.run(FolderTokens("/nowhere/python", tmp_path).ids("a", special=False))
