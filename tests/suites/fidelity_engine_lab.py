"""A real panel over the demo model, for the fidelity suite's tests and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvgate.core.engine import Panel, Request, Settings, Tokens
from kvgate.core.recipe import parse
from kvgate.core.registry import get
from kvgate.models.resolve import model_files

CONTEXT_TOKENS = 512


@contextmanager
def real_panel(
    model: Path, arms: Mapping[str, tuple[str, int]], context_tokens: int = CONTEXT_TOKENS
) -> Iterator[tuple[Panel, Callable[[str], Tokens]]]:
    """The panel and the model's tokenizer. `arms`: name -> (recipe, ubatch tokens)."""
    driver = get("engine", "llama_cpp")
    files = model_files(model)
    # One thread gives the same bits as two, and does not spin at barriers when the machine is busy.
    base = Settings(context_tokens=context_tokens, threads=1)
    launches = {
        name: driver.resolve(Request(files, parse(recipe), replace(base, ubatch_tokens=ubatch), recipe))
        for name, (recipe, ubatch) in arms.items()
    }
    with driver.open_panel(launches) as panel:
        yield panel, lambda text: panel.tokenize(text, add_special=True)


@contextmanager
def tokenizer(model: Path) -> Iterator[Callable[[str], Tokens]]:
    """The model's tokenizer alone."""
    with real_panel(model, {"base": ("f16", 512)}) as (_, tokenize):
        yield tokenize
