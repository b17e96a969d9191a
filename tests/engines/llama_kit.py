"""What the tests of the llama.cpp engine share: geometries, launches, recorded logs, a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.geometry import LayerGeometry, ModelFiles, ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.engines.llama_cpp import DRIVER

LOGS = Path(__file__).parent / "llama_logs"
WHEEL = "2026.10.11549"

#: Own prose of more than 600 tokens: half of the engine tests score it.
TEXT = (Path(__file__).parent / "llama_text.txt").read_text()


def geometry(
    *, layers: int = 30, kv_heads: int = 3, k_dim: int = 64, v_dim: int = 64, context_tokens: int = 8192
) -> ModelGeometry:
    """Full-attention layers of one shape; the defaults are SmolLM2-135M's."""
    each = tuple(LayerGeometry(i, "full_attention", kv_heads, k_dim, v_dim) for i in range(layers))
    return ModelGeometry("tiny", "llama", each, context_tokens, 49152, Source("file", "test"))


def gemma() -> ModelGeometry:
    """Gemma-3-270M: 3 full and 15 sliding layers, one head of 256."""
    each = tuple(
        LayerGeometry(i, "full_attention" if full else "sliding_window", 1, 256, 256, None if full else 512)
        for i, full in enumerate((i + 1) % 6 == 0 for i in range(18))
    )
    return ModelGeometry("gemma", "gemma3", each, 32768, 262144, Source("file", "test"))


def files(shape: ModelGeometry | None = None, path: Path = Path("model.gguf")) -> ModelFiles:
    return ModelFiles("tiny", path, shape or geometry(), "d" * 64, "t" * 64, None, "Q4_1", 1000)


def launch(recipe: str, model: ModelFiles | None = None, *, context_tokens: int = 1024, **settings: Any) -> Launch:
    """A resolved launch with one thread."""
    chosen = Settings(context_tokens, **{"threads": 1, **settings})
    return DRIVER.resolve(Request(model or files(), parse(recipe), chosen, recipe))


def log_of(name: str) -> list[str]:
    return (LOGS / f"{name}.txt").read_text().splitlines()
