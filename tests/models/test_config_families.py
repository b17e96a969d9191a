"""Layers from configurations: one row a spelling, each with the reason why it is here."""

from __future__ import annotations

from collections import Counter

import pytest

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.models.geometry_from_config import geometry_from_config

FULL, SLIDING, CHUNKED = "full_attention", "sliding_window", "chunked_attention"
SMALL = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}


def _geometry(config):
    return geometry_from_config(config, "m", Source("file", "config.json"))


def _groups(config):
    """{(kind, heads, k, v, window): layer numbers}"""
    found = {}
    for x in _geometry(config).layers:
        found.setdefault((x.kind, x.kv_heads, x.k_dim, x.v_dim, x.window_tokens), []).append(x.index)
    return found


@pytest.mark.parametrize(
    ("config", "heads", "dim"),
    [
        pytest.param({"n_layer": 4, "n_head": 12, "n_embd": 768}, 12, 64, id="GPT-2's names"),
        pytest.param({**SMALL, "num_key_value_heads": None}, 8, 64, id="null KV heads are all heads"),
        pytest.param({**SMALL, "head_dim": None}, 2, 64, id="null head_dim is the division"),
        # Qwen3-32B: 5120 / 64 is 80, the real head is 128.
        pytest.param({**SMALL, "head_dim": 128}, 2, 128, id="head_dim wins over the division"),
        pytest.param(
            {
                "model_type": "falcon",
                "num_hidden_layers": 4,
                "num_attention_heads": 71,
                "hidden_size": 4544,
                "multi_query": True,
                "num_kv_heads": 71,
            },
            1,
            64,
            id="old Falcon: multi_query is one head whatever num_kv_heads says",
        ),
        pytest.param(
            {
                "model_type": "falcon",
                "num_hidden_layers": 4,
                "num_attention_heads": 128,
                "hidden_size": 8192,
                "multi_query": True,
                "new_decoder_architecture": True,
                "n_head_kv": 8,
            },
            8,
            64,
            id="new Falcon: n_head_kv counts and multi_query does not",
        ),
        pytest.param(
            {
                "model_type": "chatglm",
                "num_layers": 4,
                "num_attention_heads": 32,
                "kv_channels": 128,
                "hidden_size": 4096,
                "multi_query_attention": True,
                "multi_query_group_num": 2,
            },
            2,
            128,
            id="ChatGLM: groups and kv_channels",
        ),
        pytest.param(
            {
                "model_type": "chatglm",
                "num_layers": 4,
                "num_attention_heads": 32,
                "kv_channels": 128,
                "multi_query_attention": False,
                "multi_query_group_num": 2,
            },
            32,
            128,
            id="ChatGLM without its flag: the groups do not count",
        ),
        pytest.param(
            {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 4, "attn_config": {"kv_n_heads": 8}},
            8,
            128,
            id="DBRX: KV heads lie in attn_config",
        ),
        pytest.param(
            {
                "model_type": "mpt",
                "d_model": 2048,
                "n_heads": 16,
                "n_layers": 4,
                "attn_config": {"attn_type": "multiquery_attention", "attn_impl": "triton", "sliding_window_size": -1},
            },
            1,
            128,
            id="MPT: the attention type says one head, and -1 is no window",
        ),
        pytest.param(
            {"model_type": "mpt", "d_model": 2048, "n_heads": 16, "n_layers": 4}, 16, 128, id="MPT: no object"
        ),
        pytest.param(
            {
                "model_type": "step3_text",
                **SMALL,
                "num_key_value_heads": None,
                "num_attention_groups": 1,
                "head_dim": 256,
            },
            1,
            256,
            id="Step: num_attention_groups",
        ),
        pytest.param(
            {"model_type": "gpt_bigcode", "n_layer": 4, "n_head": 48, "n_embd": 6144, "multi_query": True},
            1,
            128,
            id="GPT-BigCode: one head",
        ),
        pytest.param({**SMALL, "attention_head_dim": 96}, 2, 96, id="attention_head_dim"),
        pytest.param({**SMALL, "hidden_size_per_head": 32}, 2, 32, id="hidden_size_per_head"),
    ],
)
def test_heads_under_every_name(config, heads, dim):
    """KV heads and their size are found under all names that engines know."""
    assert _groups(config) == {(FULL, heads, dim, dim, None): [0, 1, 2, 3]}


@pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config"])
def test_the_text_part_of_a_multimodal_configuration_counts(part):
    """The inner sizes win, the vision tower's do not; dtype and KV scheme are found outside and inside."""
    inner = {"model_type": "qwen2", **SMALL, "dtype": "float16"}
    config = {
        "model_type": "some_vlm",
        part: inner,
        "vision_config": {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024},
        "quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": 8}},
    }

    geometry = _geometry(config)

    assert len(geometry.layers) == 4 and geometry.architecture == "qwen2" and geometry.family == "qwen2"
    assert geometry.native_dtype == "f16" and geometry.kv_scheme == "fp8_e4m3"


def test_the_text_part_may_lie_two_deep():
    """Qwen-Omni keeps its language model inside the thinker."""
    config = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": SMALL, "audio_config": {}}}

    assert _groups(config) == {(FULL, 2, 64, 64, None): [0, 1, 2, 3]}


def test_a_text_part_without_sizes_falls_back_to_the_outer_ones():
    """Some files repeat only the model_type inside."""
    assert len(_geometry({**SMALL, "model_type": "x", "text_config": {"model_type": "y"}}).layers) == 4


def test_v_may_be_narrower_than_k():
    """v_head_dim beside head_dim: counting K twice would be a fifth too much."""
    assert _groups({**SMALL, "head_dim": 192, "v_head_dim": 128}) == {(FULL, 2, 192, 128, None): [0, 1, 2, 3]}


WINDOW = {**SMALL, "sliding_window": 128}


@pytest.mark.parametrize(
    ("config", "windowed"),
    [
        pytest.param({"model_type": "mistral", **WINDOW}, [0, 1, 2, 3], id="Mistral 7B v0.1: all layers"),
        pytest.param({"model_type": "mistral", **WINDOW, "sliding_window": None}, [], id="Mistral since v0.2: null"),
        pytest.param({"model_type": "mixtral", **WINDOW, "sliding_window": 0}, [], id="zero is off"),
        pytest.param({"model_type": "qwen2", **WINDOW}, [], id="Qwen2: off where nobody switches it on"),
        pytest.param(
            {"model_type": "qwen2", **WINDOW, "use_sliding_window": False, "max_window_layers": 2}, [], id="Qwen2: off"
        ),
        pytest.param(
            {"model_type": "qwen2", **WINDOW, "use_sliding_window": True, "max_window_layers": 4},
            [],
            id="parse-37: on, but no layer is as late as max_window_layers",
        ),
        pytest.param(
            {"model_type": "qwen3", **WINDOW, "use_sliding_window": True, "max_window_layers": 3},
            [3],
            id="Qwen3: layers from max_window_layers on",
        ),
        pytest.param(
            {"model_type": "qwen2_moe", **WINDOW, "use_sliding_window": True, "max_window_layers": 3},
            [0, 2],
            id="Qwen2-MoE: even layers below max_window_layers",
        ),
        pytest.param({"model_type": "gemma2", **WINDOW}, [0, 2], id="Gemma 2: even layers"),
        pytest.param({"model_type": "gemma3_text", **WINDOW, "num_hidden_layers": 7}, [0, 1, 2, 3, 4, 6], id="Gemma 3"),
        pytest.param(
            {"model_type": "gemma3_text", **WINDOW, "sliding_window_pattern": 2}, [0, 2], id="Gemma 3: its own period"
        ),
        pytest.param(
            {"model_type": "gemma3_text", **WINDOW, "_sliding_window_pattern": 3}, [0, 1, 3], id="Gemma 3: saved anew"
        ),
        pytest.param({"model_type": "cohere2", **WINDOW}, [0, 1, 2], id="Cohere2: every fourth is full"),
        pytest.param({"model_type": "gpt_oss", **WINDOW}, [0, 2], id="gpt-oss without a list"),
        pytest.param({"model_type": "olmo3", **WINDOW}, [0, 1, 2], id="Olmo 3"),
        pytest.param({"model_type": "exaone4", **WINDOW, "sliding_window_pattern": "LG"}, [0, 2], id="letters"),
        pytest.param({"model_type": "exaone4", **WINDOW, "sliding_window": None}, [], id="Exaone 4 without a window"),
        pytest.param({"model_type": "afmoe", **WINDOW, "global_attn_every_n_layers": 2}, [0, 2], id="AFMoE"),
        pytest.param(
            {"model_type": "smollm3", **WINDOW, "no_rope_layers": [1, 1, 1, 0]}, [], id="SmolLM3: off as published"
        ),
        pytest.param(
            {"model_type": "smollm3", **WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 1, 1, 0]},
            [3],
            id="SmolLM3: layers without RoPE",
        ),
        pytest.param({"model_type": "phi3", **WINDOW}, [], id="Phi-3: counted as if all tokens are kept"),
        pytest.param(
            {"model_type": "unheard_of", **WINDOW, "layer_types": [*["sliding_attention"] * 3, "full_attention"]},
            [0, 1, 2],
            id="a list is enough for any model",
        ),
        pytest.param(
            {"model_type": "unheard_of", **WINDOW, "use_sliding_window": True, "max_window_layers": 1},
            [1, 2, 3],
            id="so are the flags",
        ),
        pytest.param({"model_type": "unheard_of", **WINDOW, "sliding_window_pattern": 2}, [0, 2], id="and the period"),
        pytest.param(
            {"model_type": "gemma2", **WINDOW, "layer_types": [*["full_attention"] * 3, "sliding_attention"]},
            [3],
            id="the list wins over the family's rule",
        ),
    ],
)
def test_windows_in_every_spelling(config, windowed):
    """Exactly the layers that the engines give a window have one."""
    layers = _geometry(config).layers

    assert [x.index for x in layers if x.window_tokens] == windowed
    assert all((x.window_tokens, x.kind) in ((128, SLIDING), (None, FULL)) for x in layers)


def test_a_window_that_no_layer_has_is_noted():
    """Qwen2.5 names a window that is off; whoever reads the table learns so."""
    geometry = _geometry({"model_type": "qwen2", **SMALL, "sliding_window": 131_072, "use_sliding_window": False})

    assert "sliding_window 131072 is in the file, and no layer uses it" in geometry.notes


def test_a_window_that_only_some_engines_use_is_noted():
    """Phi-3's window counts in vLLM and not in llama.cpp: the table counts all tokens, and says why."""
    phi3 = {"model_type": "phi3", **SMALL}

    assert any("llama.cpp keeps all" in note for note in _geometry({**phi3, "sliding_window": 2047}).notes)
    assert not any("llama.cpp" in note for note in _geometry({**phi3, "sliding_window": None}).notes)


def test_gemma3_sizes_that_its_file_leaves_out():
    """The 4B file gives neither heads nor their size: those of the family's code, each noted."""
    config = {"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 2560, "sliding_window": 1024}

    assert _groups(config) == {(SLIDING, 4, 256, 256, 1024): [0, 1, 2, 3, 4], (FULL, 4, 256, 256, None): [5]}
    assert "no head_dim: 256, as in the family's code" in _geometry(config).notes
    assert _groups({**config, "head_dim": 64}) != _groups(config)


LLAMA4 = {"model_type": "llama4_text", **SMALL, "num_hidden_layers": 8}


@pytest.mark.parametrize(
    ("extra", "chunk", "full"),
    [
        pytest.param({}, 8192, [3, 7], id="every fourth is full, chunks of 8,192"),
        pytest.param({"attention_chunk_size": 512, "no_rope_layer_interval": 2}, 512, [1, 3, 5, 7], id="both given"),
        pytest.param({"no_rope_layers": [0] + [1] * 7}, 8192, [0], id="0 is a layer without RoPE, and full"),
        pytest.param({"no_rope_layers": []}, 8192, [3, 7], id="an empty list is the default"),
        pytest.param({"attention_chunk_size": None}, None, list(range(8)), id="null switches chunks off"),
    ],
)
def test_llama4_chunks(extra, chunk, full):
    """Layers with RoPE attend inside chunks, which are marked as chunks and not as sliding."""
    layers = _geometry({**LLAMA4, **extra}).layers

    assert [x.index for x in layers if not x.chunked] == full
    assert all((x.window_tokens, x.kind) == ((chunk, CHUNKED) if x.chunked else (None, FULL)) for x in layers)


def test_gemma3n_shares_the_kv_of_its_last_layers():
    """Only the first layers own a cache, each by its own word."""
    base = {"model_type": "gemma3n_text", **WINDOW, "num_hidden_layers": 10, "num_kv_shared_layers": 4}

    assert _groups(base) == {(SLIDING, 2, 64, 64, 128): [0, 1, 2, 3, 5], (FULL, 2, 64, 64, None): [4]}
    assert len(_geometry({**base, "num_kv_shared_layers": 0}).layers) == 10


GEMMA4 = {"model_type": "gemma4_text", **WINDOW, "num_hidden_layers": 6, "head_dim": 256, "num_kv_shared_layers": 0}


@pytest.mark.parametrize(
    ("extra", "heads", "dim"),
    [
        pytest.param({"global_head_dim": 512}, 2, 512, id="KV heads of the others where none are given"),
        pytest.param({}, 2, 512, id="512 where no global head size is given"),
        pytest.param(
            {"num_global_key_value_heads": 1, "attention_k_eq_v": True}, 1, 512, id="K and V share, both stored"
        ),
        pytest.param({"num_global_key_value_heads": 1, "attention_k_eq_v": False}, 2, 512, id="not shared: not fewer"),
    ],
)
def test_gemma4_full_layers_have_their_own_heads(extra, heads, dim):
    """Layers that see all tokens are wider than those with a window."""
    assert _groups({**GEMMA4, **extra}) == {
        (SLIDING, 2, 256, 256, 128): [0, 1, 2, 3, 4],
        (FULL, heads, dim, dim, None): [5],
    }


def test_gemma4_last_layer_always_sees_all_tokens():
    """The family's code forces it, whatever the list says."""
    config = {**GEMMA4, "layer_types": ["sliding_attention"] * 6}

    assert [x.index for x in _geometry(config).layers if x.window_tokens is None] == [5]


def test_layers_set_apart_one_by_one():
    """`per_layer_config` of newer transformers versions overrides heads, sizes and windows of single layers."""
    config = {
        "model_type": "olmo3",
        **WINDOW,
        "per_layer_config": {"3": {"head_dim": 128, "num_key_value_heads": 1}, "0": {"sliding_window": None}},
    }

    assert _groups(config) == {
        (SLIDING, 2, 64, 64, 128): [1, 2],
        (FULL, 2, 64, 64, None): [0],
        (FULL, 1, 128, 128, None): [3],
    }


MLA = {
    "num_hidden_layers": 2,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "head_dim": 192,
}


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4"])
def test_mla_caches_one_latent(model_type):
    """One vector a layer and no V; head counts and head_dim are traps; the RoPE part is marked for packed rows."""
    layers = _geometry({"model_type": model_type, **MLA}).layers

    assert [(x.kind, x.kv_heads, x.k_dim, x.v_dim, x.rope_dim) for x in layers] == [("mla", 1, 576, 0, 64)] * 2
    assert all(x.is_latent and x.grows for x in layers)


def test_mla_widths_are_read_and_not_assumed():
    """Mistral 4 has 256 + 64, not 512 + 64."""
    assert _geometry({"model_type": "mistral4", **MLA, "kv_lora_rank": 256}).layers[0].k_dim == 320


def test_mla_switched_off_has_ordinary_heads():
    """DeepSeek-OCR has DeepSeek's model_type, `use_mla` false, and zeros in the latent's keys."""
    config = {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 2,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "hidden_size": 1280,
        "use_mla": False,
        "kv_lora_rank": None,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": 0,
        "v_head_dim": 0,
    }

    assert _groups(config) == {(FULL, 10, 128, 128, None): [0, 1]}


def test_longcat_has_two_latents_a_layer():
    """num_layers counts layers, num_hidden_layers the attentions."""
    geometry = _geometry({"model_type": "longcat_flash", **MLA, "num_hidden_layers": 4, "num_layers": 2})

    assert [x.index for x in geometry.layers] == [0, 0, 1, 1] and geometry.layer_count == 2


def test_openelm_heads_grow_with_depth():
    """The list is taken whole: its first entry would be a third too little."""
    config = {"model_type": "openelm", "num_transformer_layers": 3, "head_dim": 64, "num_kv_heads": [3, 4, 5]}

    assert [x.kv_heads for x in _geometry(config).layers] == [3, 4, 5]


def _nas(*attentions):
    return {
        "model_type": "nemotron-nas",
        "num_hidden_layers": len(attentions),
        "num_attention_heads": 64,
        "num_key_value_heads": None,
        "hidden_size": 8192,
        "block_configs": [{"attention": a, "ffn": {"no_op": False}} for a in attentions],
    }


def test_nas_blocks_have_their_own_attention():
    """KV heads are query heads over group size; blocks without attention, or with a linear one, keep nothing."""
    config = _nas(
        {"n_heads_in_group": 8, "no_op": False, "window_length": None},
        {"n_heads_in_group": None, "no_op": True},
        {"n_heads_in_group": 16},
        {"replace_with_linear": True},
    )

    geometry = _geometry(config)

    assert [(x.index, x.kv_heads) for x in geometry.layers] == [(0, 8), (2, 4)] and geometry.layer_count == 4


def test_the_first_decilm_lists_kv_heads_a_layer():
    """Without blocks, `num_key_value_heads_per_layer` says the KV heads of each layer."""
    config = {
        "model_type": "deci",
        "num_hidden_layers": 3,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "num_key_value_heads_per_layer": [4, 4, 1],
    }

    assert [(x.kv_heads, x.k_dim) for x in _geometry(config).layers] == [(4, 128), (4, 128), (1, 128)]
    with pytest.raises(UserError, match="2 entries for 3 layers"):
        _geometry({**config, "num_key_value_heads_per_layer": [4, 4]})
    with pytest.raises(UserError, match="layer 2: 32 attention heads"):
        _geometry({**config, "num_key_value_heads_per_layer": [4, 4, 3]})


@pytest.mark.parametrize(("model_type", "owners"), [("gemma4_text", 30), ("gemma3n_text", 15)])
def test_shared_layers_that_the_file_does_not_count(model_type, owners):
    """An absent count is what the family's code takes, and is said."""
    config = {"model_type": model_type, **WINDOW, "num_hidden_layers": 30, "head_dim": 256}

    geometry = _geometry(config)

    assert len(geometry.layers) == owners
    assert any("num_kv_shared_layers" in note for note in geometry.notes)


def test_hunyuan_shares_between_neighbours():
    """With cross-layer attention one of each pair owns a cache; the factor without the flag does nothing."""
    base = {"model_type": "hunyuan", **SMALL, "cla_share_factor": 2, "kv_lora_rank": 512, "use_mla": False}

    assert [x.index for x in _geometry({**base, "use_cla": True}).layers] == [0, 2]
    assert len(_geometry({**base, "use_cla": False}).layers) == 4


def test_step_windowed_layers_may_have_other_heads():
    """attention_other_setting is for the layers that it names; a list may name MTP layers at its end."""
    config = {
        "model_type": "step3p5",
        "num_hidden_layers": 2,
        "num_attention_heads": 64,
        "num_attention_groups": 8,
        "head_dim": 128,
        "sliding_window": 512,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "num_nextn_predict_layers": 1,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 96,
            "num_attention_groups": 4,
            "head_dim": 64,
        },
    }

    geometry = _geometry(config)

    assert _groups(config) == {(FULL, 8, 128, 128, None): [0], (SLIDING, 4, 64, 64, 512): [1]}
    assert [(x.index, x.window_tokens) for x in geometry.mtp_layers] == [(2, 512)]


def test_mimo_windowed_layers_have_their_own_sizes():
    """swa_* keys are for layers with a 1 in the pattern; an absent one takes the value of the others."""
    config = {
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 3,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "sliding_window": 128,
        "hybrid_layer_pattern": [0, 1, 1],
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 96,
        "attention_chunk_size": 128,
    }

    assert _groups(config) == {(FULL, 4, 192, 128, None): [0], (SLIDING, 8, 96, 128, 128): [1, 2]}


MLLAMA = {"model_type": "mllama_text_model", **SMALL, "num_hidden_layers": 10}


@pytest.mark.parametrize(
    ("outer", "tokens"),
    [
        pytest.param(
            {"vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}}, 6404, id="published"
        ),
        pytest.param({"vision_config": {"image_size": 28, "patch_size": 14, "max_num_tiles": 2}}, 10, id="2 x (4 + 1)"),
        pytest.param({}, 6404, id="no vision part: as published"),
    ],
)
def test_cross_attention_is_fixed(outer, tokens):
    """Cross-attention layers hold the image and do not grow; the others do."""
    layers = _geometry({"model_type": "mllama", "text_config": MLLAMA, **outer}).layers

    assert [x.index for x in layers if x.fixed_tokens == tokens and not x.grows] == [3, 8]
    assert Counter(x.kind for x in layers) == {FULL: 8, "cross_attention": 2}


def test_whisper_decoder_layers_have_two_caches():
    """Self-attention grows; cross-attention holds the encoder's positions. Encoder layers keep nothing."""
    config = {
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "d_model": 256,
        "encoder_layers": 32,
        "num_hidden_layers": 32,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    }

    geometry = _geometry(config)

    assert [(x.index, x.fixed_tokens) for x in geometry.layers] == [(0, None), (0, 1500), (1, None), (1, 1500)]
    assert geometry.context_tokens == 448 and geometry.layer_count == 2


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"torch_dtype": "bfloat16"}, "bf16", id="older key"),
        pytest.param({"dtype": "float16"}, "f16", id="newer key"),
        pytest.param({"dtype": "torch.float32"}, "f32", id="with a prefix"),
        pytest.param({}, "", id="unknown is unknown"),
        pytest.param({"dtype": "auto"}, "", id="an unknown word too"),
    ],
)
def test_compute_dtype(config, expected):
    """The compute dtype is a codec id; where the file does not say, a note does."""
    geometry = _geometry({**SMALL, **config})

    assert geometry.native_dtype == expected
    assert any("bf16 is assumed" in n for n in geometry.notes) == (not expected)


@pytest.mark.parametrize(
    ("quantization", "expected", "noted"),
    [
        pytest.param(
            {"kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}}, "fp8_e4m3", False, id="ct"
        ),
        pytest.param({"kv_cache_quant_algo": "FP8"}, "fp8_e4m3", False, id="ModelOpt"),
        pytest.param({"quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4", False, id="ModelOpt, nested"),
        pytest.param({"kv_cache_scheme": None, "quant_method": "fp8"}, "", False, id="FP8 weights do not make FP8 KV"),
        pytest.param({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, "", True, id="a scheme that nobody has here"),
    ],
)
@pytest.mark.parametrize("key", ["quantization_config", "compression_config", "hf_quant_config"])
def test_what_the_checkpoint_asks_of_its_cache(quantization, expected, noted, key):
    """KV schemes are read wherever tools write them; an unknown one is noted and not guessed."""
    geometry = _geometry({**SMALL, "dtype": "bfloat16", key: quantization})

    assert geometry.kv_scheme == expected and bool(geometry.notes) == noted


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"max_position_embeddings": 8192, "model_max_length": 131_072}, 131_072, id="Command R"),
        pytest.param({"n_positions": 1024}, 1024, id="GPT-2"),
        pytest.param({"seq_length": 32_768}, 32_768, id="ChatGLM"),
        pytest.param({}, 0, id="unknown"),
    ],
)
def test_context(config, expected):
    """The trained context under its names."""
    assert _geometry({**SMALL, **config}).context_tokens == expected


@pytest.mark.parametrize(
    ("config", "index_words"),
    [
        ({"layer_types_summary": "3 sliding_attention, 1 full_attention"}, [128, 128, 128, None]),
        ({"layer_types": None}, [None] * 4),
    ],
)
def test_abridged_lists_are_written_out(config, index_words):
    """A table of sizes may count layers in words; the note says that their places are not known."""
    geometry = _geometry({"model_type": "qwen2", **WINDOW, "dtype": "bfloat16", **config})

    assert [x.window_tokens for x in geometry.layers] == index_words
    assert any("pipeline stages are not exact" in n for n in geometry.notes) == ("layer_types_summary" in config)


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        pytest.param(
            {
                "name": "Mixtral-8x22B-Instruct-v0.1",
                "hidden_size": 6144,
                "num_attention_heads": 48,
                "num_key_value_heads": 8,
                "num_hidden_layers": 56,
                "head_dim": None,
                "sliding_window": None,
            },
            229_376,
            id="parse-33: null is absent",
        ),
        pytest.param(
            {
                "model_type": "qwen2",
                "num_hidden_layers": 64,
                "num_key_value_heads": 8,
                "num_attention_heads": 40,
                "hidden_size": 5120,
                "sliding_window": 40_960,
                "use_sliding_window": True,
                "max_window_layers": 64,
                "max_position_embeddings": 40_960,
            },
            262_144,
            id="parse-37: a window that no layer has",
        ),
        pytest.param(
            {"num_hidden_layers": 62, "num_key_value_heads": 8, "head_dim": 128, "weights_dtype": "fp8"},
            253_952,
            id="plan-03: KV heads and their size are enough; FP8 weights change nothing",
        ),
    ],
)
def test_handed_cases_of_real_configurations(config, bytes_per_token):
    """Configurations on which other planners fail; all layers grow."""
    layers = _geometry(config).layers

    assert sum(x.kv_heads * (x.k_dim + x.v_dim) * 2 for x in layers if x.grows) == bytes_per_token
