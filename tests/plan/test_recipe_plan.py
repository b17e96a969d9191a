"""Ideal bytes against published bytes per token of real models."""

import subprocess
import sys

import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.source import Source
from kvgate.formats.spec import codec
from kvgate.plan.recipe_plan import plan_recipe, sequence_bytes


def _model(*groups):
    """Groups of (layers, heads, k_dim, v_dim, window)."""
    layers = [
        LayerGeometry(i, "sliding_window" if w else "full_attention", h, k, v, w)
        for i, (h, k, v, w) in enumerate((h, k, v, w) for n, h, k, v, w in groups for _ in range(n))
    ]
    return ModelGeometry("m", "test", tuple(layers), 131072, 32000, Source("arithmetic", "made in the test"))


SMOLLM2 = _model((30, 3, 64, 64, None))
GEMMA3_27B = _model((10, 16, 128, 128, None), (52, 16, 128, 128, 1024))
MIMO_V2 = _model((9, 4, 192, 128, None), (39, 8, 192, 128, 128))
MISTRAL_7B = _model((32, 8, 128, 128, 4096))
DEEPSEEK_V3 = _model((61, 1, 576, 0, None))


@pytest.mark.parametrize(
    ("model", "name", "per_token", "growth"),
    [
        (SMOLLM2, "bf16", 23_040, 23_040),
        (SMOLLM2, "fp8_e4m3", 11_520, 11_520),
        (SMOLLM2, "q8_0", 12_240, 12_240),
        # Windows: many bytes a token inside, few bytes of growth.
        (GEMMA3_27B, "bf16", 507_904, 81_920),
        # K and V of different widths; 2 x K would be 20 % too much.
        (MIMO_V2, "bf16", 222_720, 23_040),
        # Every layer has a window: nothing grows.
        (MISTRAL_7B, "bf16", 131_072, 0),
        # One latent vector, no V.
        (DEEPSEEK_V3, "bf16", 70_272, 70_272),
    ],
)
def test_bytes_per_token_of_known_models(model, name, per_token, growth):
    """In-window and growth bytes are the published ones."""
    plan = plan_recipe(model, codec(name), codec(name))

    assert (plan.bytes_per_token, plan.growth_bytes_per_token) == (per_token, growth)
    assert plan.fixed_bytes_per_sequence == 0


def test_recipe_text_names_both_sides():
    """One codec is written once, two as k= and v=; a given text is kept."""
    q8, q4 = codec("q8_0"), codec("q4_0")

    assert plan_recipe(SMOLLM2, q8, q8).recipe == "q8_0"
    assert plan_recipe(SMOLLM2, q8, q4).recipe == "k=q8_0,v=q4_0"
    assert plan_recipe(SMOLLM2, q8, q8, recipe="q8_0+hadamard").recipe == "q8_0+hadamard"


def test_ratio_is_not_two_for_q8_0():
    """q8_0 carries scales: 1.88 times the tokens of f16, not 2."""
    base = plan_recipe(SMOLLM2, codec("f16"), codec("f16"))

    assert plan_recipe(SMOLLM2, codec("q8_0"), codec("q8_0")).ratio(base) == 32 / 17
    assert plan_recipe(SMOLLM2, codec("fp8_e4m3"), codec("fp8_e4m3")).ratio(base) == 2


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 0), (1, 507_904), (1024, 1024 * 507_904), (32768, 32768 * 81_920 + 1024 * (507_904 - 81_920))],
)
def test_windows_stop_growing(tokens, expected):
    """Past its window a layer keeps the window."""
    assert sequence_bytes(GEMMA3_27B, codec("bf16"), codec("bf16"), context_tokens=tokens) == expected


def test_models_and_lengths_without_meaning_are_refused():
    """No KV layers and a negative length are user errors."""
    with pytest.raises(UserError, match="no layers with a KV cache"):
        plan_recipe(_model(), codec("f16"), codec("f16"))
    with pytest.raises(UserError, match="does not exist"):
        sequence_bytes(SMOLLM2, codec("f16"), codec("f16"), context_tokens=-1)


def test_plan_and_models_import_without_numpy():
    """Planning starts fast: no numpy, scipy, SQLAlchemy, altair, also after codecs and families were looked up."""
    script = (
        "import sys, kvgate.plan.recipe_plan, kvgate.plan.engine_rules.llama_cpp, kvgate.models.resolve\n"
        "import kvgate.models.fetch, kvgate.core.registry as r\n"
        "r.discover('codec'), r.discover('family')\n"
        "heavy = {'numpy', 'scipy', 'sqlalchemy', 'altair', 'gguf', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=_env(), check=False)

    assert done.returncode == 0, done.stderr


def _env():
    import os
    from pathlib import Path

    import kvgate

    return {**os.environ, "PYTHONPATH": str(Path(kvgate.__file__).parents[1])}
