"""Layers from GGUF metadata: a table of shapes of real models, each row with the reason why it is here."""

import pytest
from tiny_gguf import TinyGguf, tiny_model

from kvgate.core.errors import UserError
from kvgate.core.registry import discover
from kvgate.models.geometry_from_gguf import family_of, geometry_from_gguf
from kvgate.models.read_gguf import read_gguf


def _geometry(tmp_path, architecture="llama", *, extra=(), **keys):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model(architecture, extra=extra, **keys))
    return geometry_from_gguf(read_gguf(path))


def _groups(geometry):
    """{(kind, heads, k, v, window): layer numbers}"""
    found = {}
    for x in geometry.layers:
        found.setdefault((x.kind, x.kv_heads, x.k_dim, x.v_dim, x.window_tokens), []).append(x.index)
    return found


FULL, SLIDING = "full_attention", "sliding_window"


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        pytest.param("llama", {}, {(FULL, 2, 64, 64, None): [0, 1]}, id="head size from the embedding"),
        pytest.param(
            "llama", {"attention__head_count_kv": None}, {(FULL, 4, 64, 64, None): [0, 1]}, id="no KV heads: all heads"
        ),
        # Qwen3-32B: 5120 / 64 is 80, the real head is 128.
        pytest.param(
            "qwen3",
            {
                "block_count": 64,
                "embedding_length": 5120,
                "attention__head_count": 64,
                "attention__head_count_kv": 8,
                "attention__key_length": 128,
                "attention__value_length": 128,
            },
            {(FULL, 8, 128, 128, None): list(range(64))},
            id="key_length wins over the embedding",
        ),
        pytest.param(
            "llama",
            {"attention__key_length": 192, "attention__value_length": 128},
            {(FULL, 2, 192, 128, None): [0, 1]},
            id="K and V of different width",
        ),
        # OpenELM: heads grow with depth.
        pytest.param(
            "openelm",
            {
                "block_count": 3,
                "attention__head_count": [12, 16, 20],
                "attention__head_count_kv": [3, 4, 5],
                "attention__key_length": 64,
                "attention__value_length": 64,
            },
            {(FULL, 3, 64, 64, None): [0], (FULL, 4, 64, 64, None): [1], (FULL, 5, 64, 64, None): [2]},
            id="heads per layer",
        ),
        # parse-24: the first entry is a zero; only six layers of sixteen have a cache.
        pytest.param(
            "lfm2",
            {
                "block_count": 16,
                "embedding_length": 2048,
                "attention__head_count": 32,
                "attention__head_count_kv": [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0],
                "shortconv__l_cache": 3,
            },
            {
                (FULL, 8, 64, 64, None): [2, 5, 8, 10, 12, 14],
                ("conv", 0, 0, 0, None): [0, 1, 3, 4, 6, 7, 9, 11, 13, 15],
            },
            id="zeros are layers without KV rows",
        ),
        # GLM-4.5: the last block predicts the token after next and has no cache.
        pytest.param(
            "glm4moe",
            {"block_count": 5, "nextn_predict_layers": 1, "attention__key_length": 128, "attention__value_length": 128},
            {(FULL, 2, 128, 128, None): [0, 1, 2, 3]},
            id="MTP blocks are inside block_count",
        ),
        # Gemma-3-270M, seen in the engine's log: 3 full and 15 sliding layers.
        pytest.param(
            "gemma3",
            {
                "block_count": 18,
                "attention__head_count": 4,
                "attention__head_count_kv": 1,
                "attention__key_length": 256,
                "attention__value_length": 256,
                "attention__sliding_window": 512,
            },
            {
                (SLIDING, 1, 256, 256, 512): [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16],
                (FULL, 1, 256, 256, None): [5, 11, 17],
            },
            id="gemma3: every sixth is full",
        ),
        pytest.param(
            "gemma3",
            {"block_count": 4, "attention__sliding_window": 512, "attention__sliding_window_pattern": 2},
            {(SLIDING, 2, 64, 64, 512): [0, 2], (FULL, 2, 64, 64, None): [1, 3]},
            id="a pattern in the file wins",
        ),
        pytest.param(
            "gemma3",
            {"attention__sliding_window": 512, "attention__sliding_window_pattern": 0},
            {(SLIDING, 2, 64, 64, 512): [0, 1]},
            id="pattern 0: all layers have the window",
        ),
        pytest.param("gemma3", {}, {(FULL, 2, 64, 64, None): [0, 1]}, id="gemma3 without the key has no windows"),
        pytest.param(
            "gemma2",
            {"block_count": 4},
            {(SLIDING, 2, 64, 64, 4096): [0, 2], (FULL, 2, 64, 64, None): [1, 3]},
            id="gemma2: even layers, window in the code",
        ),
        pytest.param(
            "gpt-oss",
            {"block_count": 4, "attention__sliding_window": 128},
            {(SLIDING, 2, 64, 64, 128): [0, 2], (FULL, 2, 64, 64, None): [1, 3]},
            id="gpt-oss: every second",
        ),
        pytest.param(
            "cohere2",
            {"block_count": 8, "attention__sliding_window": 4096},
            {(SLIDING, 2, 64, 64, 4096): [0, 1, 2, 4, 5, 6], (FULL, 2, 64, 64, None): [3, 7]},
            id="cohere2: every fourth is full",
        ),
        pytest.param(
            "llama4",
            {"block_count": 4},
            {("chunked_attention", 2, 64, 64, 8192): [0, 1, 2], (FULL, 2, 64, 64, None): [3]},
            id="llama4: chunks of 8192",
        ),
        pytest.param(
            "llama4",
            {"block_count": 4, "attention__sliding_window": 0},
            {(FULL, 2, 64, 64, None): [0, 1, 2, 3]},
            id="llama4 without chunks",
        ),
        pytest.param(
            "phi3",
            {"attention__sliding_window": 262144},
            {(FULL, 2, 64, 64, None): [0, 1]},
            id="phi3: the window is not used",
        ),
        pytest.param(
            "mistral3", {"attention__sliding_window": 0}, {(FULL, 2, 64, 64, None): [0, 1]}, id="a window of 0 is none"
        ),
        # DeepSeek-V3: one latent of 512 + 64 and no V; 128 heads and a head of 192 are traps.
        pytest.param(
            "deepseek2",
            {
                "block_count": 61,
                "attention__head_count": 128,
                "attention__head_count_kv": 1,
                "attention__key_length": 576,
                "attention__value_length": 512,
                "attention__key_length_mla": 192,
                "attention__value_length_mla": 128,
                "attention__kv_lora_rank": 512,
                "attention__q_lora_rank": 1536,
                "rope__dimension_count": 64,
            },
            {("mla", 1, 576, 0, None): list(range(61))},
            id="MLA: one vector a token",
        ),
    ],
)
def test_layers_of_a_file(tmp_path, architecture, keys, expected):
    """Kinds, heads, widths and windows per layer."""
    assert _groups(_geometry(tmp_path, architecture, **keys)) == expected


@pytest.mark.parametrize(
    ("architecture", "keys", "said"),
    [
        (
            "gemma5",
            {"attention__sliding_window": 1024},
            "no verified rule for 'gemma5' with the key 'attention.sliding",
        ),
        ("gemma3", {"attention__shared_kv_layers": 15}, "no verified rule for 'gemma3'.*shared_kv_layers"),
        ("gemma3", {"attention__key_length_swa": 256}, "no verified rule for 'gemma3'.*key_length_swa"),
        ("plamo2", {"ssm__state_size": 16}, "no verified rule for 'plamo2'.*ssm.state_size"),
        ("llama", {"full_attention_interval": 4}, "no verified rule for 'llama'.*full_attention_interval"),
        ("rwkv7", {"wkv__head_size": 64}, "no verified rule for 'rwkv7'.*wkv.head_size"),
        ("glm-dsa", {"attention__indexer__head_count": 1}, "no verified rule for 'glm-dsa'.*indexer"),
        ("bert", {"attention__causal": False}, "bert is an encoder"),
        ("gpt-oss", {}, "lacks gpt-oss.attention.sliding_window"),
        ("llama", {"block_count": None}, "lacks llama.block_count"),
        ("llama", {"block_count": 0}, "block_count is 0; llama.cpp takes 1 to 512"),
        ("llama", {"block_count": 513}, "block_count is 513"),
        ("llama", {"nextn_predict_layers": 2}, "has no layers"),
        ("llama", {"attention__head_count": None}, "attention.head_count"),
        ("llama", {"attention__head_count": [4]}, "head_count has 1 entries for 2 layers"),
        ("llama", {"attention__head_count": 0}, "a head of 0 elements"),
        ("llama", {"attention__head_count_kv": [0, 0]}, "no layer with a KV cache"),
        ("llama", {"attention__head_count_kv": [-1, 1]}, "head_count_kv is -1, not a count"),
        ("llama", {"attention__head_count_kv": 2.0}, "head_count_kv is 2.0, not a count"),
        ("llama", {"attention__key_length": 70000}, "a head of 70000 elements"),
        ("llama", {"context_length": None}, "lacks llama.context_length"),
        ("llama", {"context_length": 2**32 - 1}, "context_length is 4294967295, not a count"),
        ("llama", {"attention__causal": 1}, "causal is 1, not true or false"),
        ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": [1, 0]}, "not a count"),
        ("deepseek2", {"attention__kv_lora_rank": 512}, "converted before llama.cpp cached latents"),
        (
            "deepseek2",
            {
                "attention__kv_lora_rank": 512,
                "attention__key_length_mla": 192,
                "attention__value_length_mla": 128,
                "rope__dimension_count": 64,
                "attention__key_length": 192,
            },
            "does not cache one latent of 576",
        ),
    ],
)
def test_what_has_no_rule_is_refused_with_the_reason(tmp_path, architecture, keys, said):
    """An unknown key that changes the cache is never sized as plain attention."""
    with pytest.raises(UserError, match=said):
        _geometry(tmp_path, architecture, **keys)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "names no general.architecture"),
        ([("general.architecture", "u32", 1)], "names no general.architecture"),
        (
            [("general.architecture", "str", "llama"), ("general.type", "str", "adapter")],
            "holds a 'adapter', not a model",
        ),
        (
            [("general.architecture", "str", "llama"), ("split.count", "u16", 4)],
            "one of 4 parts; join them: llama-gguf-split --merge",
        ),
    ],
)
def test_files_that_are_no_whole_model_are_refused(tmp_path, entries, said):
    """No architecture, an adapter, or one part of several."""
    path = tmp_path / "m.gguf"
    path.write_bytes(TinyGguf(entries).build())

    with pytest.raises(UserError, match=said):
        geometry_from_gguf(read_gguf(path))


def test_the_rest_of_the_geometry(tmp_path):
    """Name, context, vocabulary and source."""
    geometry = _geometry(tmp_path)

    assert (geometry.name, geometry.architecture) == ("Tiny", "llama")
    assert (geometry.context_tokens, geometry.vocab_size) == (4096, 3)
    assert str(geometry.source) == f"file: {tmp_path / 'm.gguf'} (GGUF v3)"


def test_the_real_model(smollm2):
    """SmolLM2: 30 layers of 3 heads of 64, which is 23,040 bytes a token in f16."""
    geometry = geometry_from_gguf(read_gguf(smollm2))

    assert {(x.kind, x.kv_heads, x.k_dim, x.v_dim) for x in geometry.layers} == {(FULL, 3, 64, 64)}
    assert len(geometry.layers) == 30
    assert (geometry.context_tokens, geometry.vocab_size) == (8192, 49152)


def test_no_architecture_has_two_families():
    """Each architecture is claimed once, and one family takes the rest."""
    claims = [a for family in discover("family").values() for a in family.architectures]

    assert len(claims) == len(set(claims))
    assert family_of("never-heard-of").name == "dense"
