"""Bytes per token, growth, fixed bytes and layer groups of real models, exact to the byte."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.models.geometry_from_config import geometry_from_config
from kvgate.models.hub import from_catalogue
from kvgate.models.hub_catalogue import hub_config, hub_config_names
from kvgate.plan.price import price

DATA = Path(__file__).parent / "data"
ROWS = json.loads((DATA / "config_vectors.json").read_text())["rows"]

#: (bytes per token bf16, fp8, growth bf16, fixed bytes a sequence) of models in the catalogue, beside the vectors.
#: Sums over every layer with a cache for one token inside all windows; growth is of layers without a window alone.
TABLE = {
    "CohereLabs/c4ai-command-r7b-12-2024": (131_072, 65_536, 32_768, 0),
    "deepseek-ai/DeepSeek-R1": (70_272, 35_136, 70_272, 0),
    "deepseek-ai/DeepSeek-V2-Lite": (31_104, 15_552, 31_104, 0),
    "google/gemma-2-27b": (376_832, 188_416, 188_416, 0),
    "google/gemma-3-27b-it": (507_904, 253_952, 81_920, 0),
    "google/gemma-3n-E4B": (40_960, 20_480, 8_192, 0),
    "google/gemma-4-26B-A4B": (225_280, 112_640, 20_480, 0),
    "meta-llama/Llama-3.1-405B": (516_096, 258_048, 516_096, 0),
    "meta-llama/Llama-3.2-11B-Vision-Instruct": (131_072, 65_536, 131_072, 209_846_272),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (196_608, 98_304, 49_152, 0),
    "microsoft/Phi-3-mini-4k-instruct": (393_216, 196_608, 393_216, 0),
    "microsoft/phi-4": (204_800, 102_400, 204_800, 0),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": (163_840, 81_920, 163_840, 0),
    "mistralai/Mistral-Small-4": (23_040, 11_520, 23_040, 0),
    "mistralai/Mixtral-8x7B-v0.1": (131_072, 65_536, 131_072, 0),
    "moonshotai/Kimi-K2-Instruct": (70_272, 35_136, 70_272, 0),
    "moonshotai/Kimi-K2.5": (70_272, 35_136, 70_272, 0),
    "openai-community/gpt2": (36_864, 18_432, 36_864, 0),
    "openai/whisper-large-v3": (163_840, 81_920, 163_840, 245_760_000),
    "Qwen/Qwen2.5-72B-Instruct": (327_680, 163_840, 327_680, 0),
    "Qwen/Qwen3-30B-A3B": (98_304, 49_152, 98_304, 0),
    "Qwen/Qwen3-8B": (147_456, 73_728, 147_456, 0),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (253_952, 126_976, 253_952, 0),
    "apple/OpenELM-1_1B": (43_264, 21_632, 43_264, 0),
    "stepfun-ai/Step-3.7-Flash": (184_320, 92_160, 49_152, 0),
    "tencent/Tencent-Hunyuan-Large": (131_072, 65_536, 131_072, 0),
    "XiaomiMiMo/MiMo-V2-Flash": (222_720, 111_360, 23_040, 0),
}


def _geometry(config, name="m"):
    return geometry_from_config(config, name, Source("file", "config.json"))


def _token(layers, element_bytes):
    return sum(x.kv_heads * (x.k_dim + x.v_dim) * element_bytes for x in layers if x.fixed_tokens is None)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["model"])
@pytest.mark.parametrize(("kind", "element_bytes"), [("bf16", 2), ("fp8", 1)])
def test_handed_vector_is_exact(row, kind, element_bytes):
    """Bytes per token, growth past all windows, and bytes of a sequence are those of the real model."""
    layers = _geometry(row["config"]).layers
    per_layer = [(x.kv_heads * (x.k_dim + x.v_dim) * element_bytes, x.window_tokens) for x in layers]

    assert _token(layers, element_bytes) == row[f"bytes_per_token_{kind}"]
    assert _token([x for x in layers if x.grows], element_bytes) == row[f"growth_bytes_per_token_{kind}"]
    for length, expected in row[f"seq_bytes_{kind}"].items():
        assert sum(b * min(int(length), w or int(length)) for b, w in per_layer) == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["model"])
def test_layer_groups_are_those_of_the_model(row):
    """Each group of equal layers has the stated size, heads, widths and window."""
    found = Counter((x.kv_heads, x.k_dim, x.v_dim, x.window_tokens) for x in _geometry(row["config"]).layers)
    expected = {(g["kv_heads"], g["k_dim"], g["v_dim"], g["window"]): g["layers"] for g in row["layer_groups"]}

    assert found == expected


@pytest.mark.parametrize("row", [r for r in ROWS if "mtp_extra_bytes_per_token_bf16" in r], ids=lambda r: r["model"])
def test_mtp_layers_are_kept_apart(row):
    """Layers of multi-token prediction are not in the table, and cost what the vector says while they are on."""
    geometry = _geometry(row["config"])

    assert _token(geometry.mtp_layers, 2) == row["mtp_extra_bytes_per_token_bf16"]
    assert all(x.index >= geometry.layer_count for x in geometry.mtp_layers)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_catalogue_model_has_the_published_size(name):
    """Models of the catalogue have the sizes of the table, priced by the codecs' own rows."""
    shipped = hub_config(name)
    geometry = _geometry(shipped.config, name)
    native, half = price(geometry, parse("bf16")), price(geometry, parse("fp8_e4m3"))

    found = (native.bytes_per_token, half.bytes_per_token, native.growth_bytes_per_token)

    assert (*found, native.fixed_bytes_per_sequence) == TABLE[name]


@pytest.mark.parametrize("name", hub_config_names())
def test_every_catalogue_entry_can_be_sized(name):
    """An entry has a source, its name is its file's, and its family sizes it without an unread key."""
    shipped = hub_config(name)

    found = from_catalogue(shipped, "no network")

    assert shipped.name == name and shipped.source
    assert _geometry(found.config, name).layers
