"""The page of launch shows what the program prints, and the command line's words in it exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvgate.cli.main import main
from models.tiny_gguf import tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "launch.md"
BLOCK = re.compile(r"```text\n\$ (kvgate launch(?:[^\n]*\\\n)*[^\n]*)\n(.*?)\n```", re.DOTALL)
BLOCKS = BLOCK.findall(PAGE.read_text())


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=lambda text: text[:60])
def test_the_page_shows_real_output(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block of the page is what its command prints, in a folder with one small model."""
    (tmp_path / "model.gguf").write_bytes(tiny_model())
    monkeypatch.chdir(tmp_path)

    main(shlex.split(command.replace("\\\n", " "))[1:])
    out = capsys.readouterr()

    assert (out.out + out.err).rstrip("\n") == shown


def test_every_engine_is_on_the_page() -> None:
    """One block at least for each engine, and for a refusal."""
    text = " ".join(command for command, _ in BLOCKS)

    assert len(BLOCKS) >= 12 and all(f"--engine {e}" in text for e in ("vllm", "sglang", "trtllm", "llama.cpp"))
    assert any(shown.startswith("kvgate: ") for _, shown in BLOCKS)
