"""Forty real models through configuration, price and rank split: every number of the capacity vectors, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.models.geometry_from_config import geometry_from_config
from kvgate.plan.parallel import split
from kvgate.plan.price import Price, price, sequence_bytes

DATA = Path(__file__).parent.parent / "models" / "data"
ROWS: list[dict[str, Any]] = [
    *json.loads((DATA / "config_vectors.json").read_text())["rows"],
    *json.loads((DATA / "hybrid_vectors.json").read_text())["handed"],
]
RECIPES = (("bf16", "bf16"), ("fp8", "fp8_e4m3"))
#: The other rows' splits are in test_parallel.
SPLITS = "tp_bytes_per_token_bf16_per_rank"


def geometry(row: dict[str, Any]) -> ModelGeometry:
    return geometry_from_config(row["config"], row["model"], Source("file", "vectors"))


def priced(row: dict[str, Any], recipe: str) -> Price:
    return price(geometry(row), parse(recipe), native="bf16")


def test_all_vectors_are_here() -> None:
    """None of the forty rows got lost between the two files."""
    assert len({row["model"] for row in ROWS}) == len(ROWS) == 40


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["model"])
def test_bytes_of_a_token_and_of_a_sequence(row: dict[str, Any]) -> None:
    """In-window and growing bytes, states and whole sequences in BF16 and FP8."""
    for key, recipe in RECIPES:
        found = priced(row, recipe)

        assert found.growth_bytes_per_token == row[f"growth_bytes_per_token_{key}"]
        assert found.bytes_per_token == row[f"bytes_per_token_{key}"]
        if "fixed_state_bytes_per_seq" in row:
            assert sum(p.state_bytes for p in found.layers) == row["fixed_state_bytes_per_seq"]
        for tokens, n_bytes in row.get(f"seq_bytes_{key}", {}).items():
            assert sequence_bytes(found, int(tokens)) == n_bytes, f"{recipe}, {tokens} tokens"


@pytest.mark.parametrize("row", [r for r in ROWS if SPLITS in r], ids=lambda r: r["model"])
def test_bytes_of_a_token_on_each_rank(row: dict[str, Any]) -> None:
    """Tensor parallelism divides heads, replicates them where they run out, and refuses what does not divide."""
    for tp, want in row[SPLITS].items():
        try:
            share = split(geometry(row), tp=int(tp))[0].geometry
        except UserError:
            assert want is None, f"tp {tp}"
        else:
            assert price(share, parse("bf16"), native="bf16").bytes_per_token == want, f"tp {tp}"


@pytest.mark.parametrize(
    ("model", "recipe", "per_token"),
    [
        ("deepseek-ai/DeepSeek-V3", "fp8_ds_mla", 40_016),
        ("deepseek-ai/DeepSeek-V3.2", "nvfp4_ds_mla", 29_524),
    ],
)
def test_packed_rows_by_name(model: str, recipe: str, per_token: int) -> None:
    """Packed latent rows that a recipe names itself."""
    row = next(r for r in ROWS if r["model"] == model)

    assert priced(row, recipe).bytes_per_token == per_token


def test_ring_of_the_last_tokens_is_fixed() -> None:
    """DeepSeek V4 keeps 128 tokens in every layer beside its compressed rows, from the first token on."""
    row = next(r for r in ROWS if "V4" in r["model"])

    assert priced(row, "fp8_e4m3").fixed_bytes_per_sequence == row["fixed_window_bytes_per_seq_fp8"]
