"""Recurrent states of each family: elements, types and their sources, and what tensor parallelism divides."""

import pytest
from hybrid_kit import VECTORS, geometry_of, state_bytes

from kvgate.core.errors import UserError
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.state_parts import (
    StateDtype,
    delta_net_state,
    kda_state,
    lightning_state,
    mamba1_state,
    mamba2_state,
    short_conv_state,
    state_dtype,
)

NATIVE = StateDtype("native")
ROWS = {row["model"]: row["config"] for row in VECTORS["handed"] + VECTORS["facts"]}
QWEN, NEXT = ROWS["Qwen/Qwen3.5-27B"], ROWS["Qwen/Qwen3-Next-80B-A3B-Instruct"]
NANO = ROWS["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]


def _sizes(parts):
    return {p.name: (p.elements, p.tp_units) for p in parts}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            mamba2_state(24, 128, 1, 256, 4, NATIVE),
            {"conv": (3 * 3072, 24), "conv_groups": (3 * 512, 1), "ssm": (24 * 128 * 256, 24)},
        ),
        (mamba1_state(8192, 16, 4, NATIVE), {"conv": (3 * 8192, 8192), "ssm": (8192 * 16, 8192)}),
        (
            delta_net_state(16, 128, 48, 128, 4, NATIVE),
            {"conv": (3 * (2 * 16 * 128 + 48 * 128), 16), "ssm": (48 * 128 * 128, 48)},
        ),
        # Key and value heads of different size: the matrix is value size by key size.
        (delta_net_state(4, 64, 6, 96, 2, NATIVE), {"conv": (2 * 4 * 64 + 6 * 96, 2), "ssm": (6 * 96 * 64, 6)}),
        (kda_state(96, 128, 4), {"conv": (3 * 3 * 96 * 128, 96), "ssm": (96 * 128 * 128, 96)}),
        (lightning_state(64, 128, NATIVE), {"ssm": (64 * 128 * 128, 64)}),
        (short_conv_state(2048, 3), {"conv": (2 * 2048, 2048)}),
        # A kernel of one keeps no inputs.
        (short_conv_state(2048, 1), {}),
        (mamba1_state(64, 16, 1, NATIVE), {"ssm": (1024, 64)}),
    ],
)
def test_elements_and_what_ranks_share(parts, expected):
    """Each state by its formula, with the heads or groups that ranks divide."""
    assert _sizes(parts) == expected


def test_groups_of_mamba2_are_a_part_of_their_own():
    """Heads divide by 16 ranks and eight groups are padded to one a rank, as vLLM pads them: exact per rank."""
    heads, dim, groups, state, kernel = 128, 64, 8, 128, 4
    parts = mamba2_state(heads, dim, groups, state, kernel, NATIVE)

    for tp in (1, 2, 8, 16, 32):
        padded = groups if groups % tp == 0 else tp
        conv = (heads * dim + 2 * padded * state) // tp * (kernel - 1)
        shares = [p.elements // p.tp_units * max(1, p.tp_units // tp) for p in parts if p.name != "ssm"]
        assert sum(shares) == conv


@pytest.mark.parametrize(
    ("config", "dtype", "source"),
    [
        (QWEN, "f32", "text_config.mamba_ssm_dtype of the configuration"),
        (NANO, "f32", "mamba_ssm_cache_dtype of the configuration"),
        (NEXT, "f32", ""),
        (ROWS["nvidia/Nemotron-H-56B-Base-8K"], "native", ""),
        (ROWS["ai21labs/AI21-Jamba-1.5-Mini"], "native", ""),
        (ROWS["tiiuae/Falcon-H1-7B-Instruct"], "native", ""),
        (ROWS["ibm-granite/granite-4.0-h-small"], "native", ""),
        (ROWS["MiniMaxAI/MiniMax-Text-01"], "native", ""),
    ],
)
def test_the_recurrent_part_says_where_its_type_is_from(config, dtype, source):
    """From the file's own key, or an assumption that the notes name."""
    geometry = geometry_of(config)
    parts = {p for x in geometry.layers for p in x.state if p.name == "ssm"}

    assert {(p.dtype, p.dtype_source) for p in parts} == {(dtype, source)}
    assumed = [note for note in geometry.notes if "recurrent states are assumed" in note]
    assert len(assumed) == (0 if source else 1)


def test_convolutions_keep_the_compute_dtype():
    """Whatever the recurrence is kept in."""
    for config in ROWS.values():
        for x in geometry_of(config).layers:
            assert all(p.dtype == "native" and p.dtype_source for p in x.state if p.name.startswith("conv"))


def test_delta_attention_is_float32_whatever_the_file_says():
    """KDA's matrix is float32 in the engine; the source names it."""
    geometry = geometry_of(ROWS["moonshotai/Kimi-K3"])
    matrices = [p for x in geometry.layers for p in x.state if p.name == "ssm"]

    assert {(p.dtype, p.dtype_source.startswith("vLLM 0.32")) for p in matrices} == {("f32", True)}
    assert not any("assumed" in note for note in geometry.notes if "recurrent" in note)


@pytest.mark.parametrize(
    ("word", "dtype"), [("float32", "f32"), ("bfloat16", "bf16"), ("torch.float16", "f16"), ("auto", "native")]
)
def test_words_for_a_type(word, dtype):
    """torch's words; "auto" says nothing."""
    found = state_dtype(ConfigKeys({"mamba_ssm_cache_dtype": word}), "native")

    assert found.dtype == dtype
    assert bool(found.source) is (word != "auto")
    assert bool(found.notes) is (word == "auto")


@pytest.mark.parametrize("word", ["int8", "", " ", "float32 "])
def test_a_word_that_is_no_type(word):
    """Refused with the words there are; empty says nothing."""
    keys = ConfigKeys({"mamba_ssm_dtype": word})
    if not word:
        assert state_dtype(keys, "f32").dtype == "f32"
        return
    with pytest.raises(UserError, match=r"mamba_ssm_dtype is .* not a type of a state; allowed: float32"):
        state_dtype(keys, "native")


def test_the_type_in_the_file_changes_only_the_recurrence():
    """Qwen3.5-27B with its matrices in bf16: half of them, and the same convolutions."""
    conv = 48 * 10240 * 3 * 2

    assert state_bytes(geometry_of(QWEN).layers) - conv == 48 * 48 * 128 * 128 * 4
    assert state_bytes(geometry_of(QWEN, mamba_ssm_dtype="bfloat16").layers) - conv == 48 * 48 * 128 * 128 * 2
