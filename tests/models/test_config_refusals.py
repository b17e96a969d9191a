"""Configurations that are refused, in one line that names the key: nothing unknown is priced as plain attention."""

from __future__ import annotations

import pytest

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.models.config_keys import ConfigKeys, unread_cache_keys
from kvgate.models.geometry_from_config import geometry_from_config

SMALL = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
HUGE = 10**30


def _geometry(config):
    return geometry_from_config(config, "m", Source("file", "config.json"))


def _refusal(config):
    with pytest.raises(UserError) as caught:
        _geometry(config)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    return message


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "mistral", "gemma2", "somebody_elses"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_window_size", 2048),
        ("window_size", 256),
        ("recurrent_state_size", 64),
        ("latent_dim", 128),
        ("kv_lora_rank", 512),
        ("kv_share_group", 2),
        ("cross_layer_kv_sharing", True),
        ("num_kv_shared_layers", 3),
        ("use_cla", True),
        ("attention_chunk_size", 8192),
        ("compress_ratios", [4, 4, 4, 4]),
        ("index_head_dim", 128),
        ("sparse_attention_config", {"a": 1}),
        ("linear_attn_config", {"a": 1}),
        ("linear_num_key_heads", 16),
        ("mamba_d_state", 16),
        ("ssm_cfg", {"d_state": 16}),
        ("conv_L_cache", 3),
        ("attn_layer_period", 8),
        ("hybrid_override_pattern", "M*M*"),
        ("global_head_dim", 512),
        ("swa_num_key_value_heads", 8),
        ("attn_type_list", [1, 0, 1, 0]),
        ("block_configs", [{}]),
        ("cross_attention_layers", [3]),
        ("memory_tokens", 32),
        ("per_layer_kv_heads", [1, 2, 1, 2]),
    ],
)
def test_a_cache_shaping_key_that_no_rule_reads_is_refused(model_type, key, value):
    """The message names the key; the same key switched off passes."""
    config = {"model_type": model_type, **SMALL, "layer_types": ["full_attention"] * 4}

    assert key in _refusal({**config, key: value})
    for off in (None, False, 0, [], {}, ""):
        assert _geometry({**config, key: off}).layers


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("attention_dropout", 0.1),
        ("attn_pdrop", 0.1),
        ("attn_logit_softcapping", 50.0),
        ("_attn_implementation", "eager"),
        ("query_pre_attn_scalar", 224),
        ("n_shared_experts", 1),
        ("moe_shared_expert_intermediate_size", 512),
        ("shared_expert_intermediate_size", 512),
        ("decoder_sparse_step", 1),
        ("output_hidden_states", True),
        ("image_token_index", 32000),
        ("rope_local_base_freq", 10000),
        ("rope_interleave", True),
        ("scale_attn_weights", True),
        ("compression_config", {"quant_method": "compressed-tensors"}),
        ("quantization_config", {"quant_method": "fp8"}),
        ("vision_config", {"num_hidden_layers": 24}),
        ("tie_word_embeddings", True),
        ("use_embedding_sharing", True),
        ("compression_ratio", 1.0),
        ("use_logn_attn", True),
        ("flash_attention", True),
        ("attn_implementation", "flash_attention_2"),
        ("attention_softmax_in_fp32", True),
        ("cache_implementation", "hybrid"),
        ("memory_efficient_attention_bias", True),
        ("intermediate_size", 2048),
        ("head_dim_comment", None),
    ],
)
def test_keys_that_shape_no_cache_pass(key, value):
    """Biases, experts, RoPE, quantization and the like change no size."""
    assert len(_geometry({**SMALL, key: value}).layers) == 4


def test_keys_inside_an_opened_object_count_too():
    """A key that nobody reads in attn_config is as unknown as one beside it."""
    config = {"model_type": "dbrx", "d_model": 512, "n_heads": 8, "n_layers": 2, "attn_config": {"kv_n_heads": 2}}
    config["attn_config"]["attn_window"] = 64

    assert "attn_config.attn_window" in _refusal(config)


@pytest.mark.parametrize(
    "words",
    [
        ["linear_attention", "full_attention"] * 2,
        ["mamba"] * 4,
        ["indexed_attention"] * 4,
        ["conv"] * 4,
        ["Full_Attention"] * 4,
        ["hybrid"] * 4,
    ],
)
def test_an_unknown_layer_word_is_refused(words):
    """A word without a rule is named, with the words that have one."""
    message = _refusal({"model_type": "unheard_of", **SMALL, "layer_types": words})

    assert words[0] in message and "full_attention" in message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": HUGE}, "num_hidden_layers"),
        ({"num_hidden_layers": 100_000}, "num_hidden_layers"),
        ({"num_hidden_layers": 4.0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers"),
        ({"num_hidden_layers": [4]}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": None, "num_key_value_heads": None}, "num_attention_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_key_value_heads": -1}, "num_key_value_heads"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"num_key_value_heads": 16}, "16 KV heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": HUGE}, "head_dim"),
        ({"head_dim": 64.5}, "head_dim"),
        ({"v_head_dim": 0}, "v_head_dim"),
        ({"hidden_size": 500}, "head_dim"),
        ({"hidden_size": None}, "hidden_size"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings"),
        ({"vocab_size": 2.5}, "vocab_size"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["full_attention"] * 5}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": [1, 2, 3, 4]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 9000}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": 0}, "sliding_window"),
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": -5}, "sliding_window"),
        (
            {"layer_types": ["sliding_attention"] * 4, "sliding_window": 8, "use_sliding_window": False},
            "use_sliding_window",
        ),
        ({"sliding_window": -1}, "sliding_window"),
        ({"sliding_window": 4096}, "which layers"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "max_window_layers"),
        ({"use_sliding_window": "yes", "sliding_window": 8}, "use_sliding_window"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers"),
        ({"num_nextn_predict_layers": HUGE}, "num_nextn_predict_layers"),
        ({"per_layer_config": {"9": {"head_dim": 64}}}, "per_layer_config"),
        ({"per_layer_config": {"x": {}}}, "per_layer_config"),
        ({"per_layer_config": {"1": 5}}, "per_layer_config"),
        ({"per_layer_config": {"1": {"latent_rank": 5}}}, "latent_rank"),
        ({"multi_query": "no"}, "multi_query"),
    ],
)
def test_senseless_values_name_their_key(change, named):
    """Zero, negative, huge, fractional, boolean and textual sizes are refused by name."""
    assert named in _refusal({**SMALL, **change})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, "no layers"),
        ({"text_config": {"model_type": "llama"}}, "no layers"),
        ({"model_type": "bert", **SMALL}, "encoder"),
        ({"model_type": "x", "is_encoder_decoder": True, **SMALL}, "encoder-decoder"),
        ({"architectures": ["NewForSequenceClassification"], **SMALL}, "no KV cache"),
        ({"model_type": "gemma3n_text", **SMALL, "sliding_window": 8}, "num_kv_shared_layers"),
        (
            {"model_type": "gemma3n_text", **SMALL, "sliding_window": 8, "num_kv_shared_layers": 4},
            "num_kv_shared_layers",
        ),
        ({"model_type": "gemma4_text", **SMALL, "num_hidden_layers": 7, "sliding_window": 8}, "layer_types"),
        ({"model_type": "deepseek_v3", **SMALL}, "kv_lora_rank"),
        ({"model_type": "deepseek_v3", **SMALL, "kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"model_type": "openelm", "num_transformer_layers": 2, "head_dim": 64, "num_kv_heads": [3]}, "num_kv_heads"),
        ({"model_type": "openelm", "num_transformer_layers": 1, "head_dim": 64, "num_kv_heads": [0]}, "num_kv_heads"),
        ({"model_type": "openelm", "num_transformer_layers": 1, "head_dim": 64}, "num_kv_heads"),
        ({"model_type": "hunyuan", **SMALL, "use_mla": True}, "use_mla"),
        ({"model_type": "llama4_text", **SMALL, "no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"model_type": "mimo_v2_flash", **SMALL, "sliding_window": 8}, "hybrid_layer_pattern"),
        ({"model_type": "mimo_v2_flash", **SMALL, "sliding_window": 8, "hybrid_layer_pattern": [2] * 4}, "pattern"),
        ({"model_type": "exaone4", **SMALL, "sliding_window": 8, "sliding_window_pattern": "LLX"}, "pattern"),
        ({"model_type": "gemma3_text", **SMALL, "sliding_window": 8, "sliding_window_pattern": 0}, "pattern"),
        ({"model_type": "mllama_text_model", **SMALL, "cross_attention_layers": [4]}, "cross_attention_layers"),
        ({"model_type": "whisper", "decoder_layers": 2, "decoder_attention_heads": 3, "d_model": 64}, "max_source"),
        ({"model_type": "minimax_m2", **SMALL, "attn_type_list": [1, 1, 1, 0]}, "attn_type_list"),
        ({"model_type": "nemotron-nas", **SMALL}, "block_configs"),
    ],
)
def test_families_refuse_what_they_cannot_size(config, named):
    """A key that a family needs, or a shape that it has no rule for, is named."""
    assert named in _refusal(config)


@pytest.mark.parametrize(
    ("attention", "named"),
    [
        ({"n_heads_in_group": 3}, "groups of 3"),
        ({"n_heads_in_group": None}, "n_heads_in_group"),
        ({"n_heads_in_group": 2, "window_length": 512}, "window_length"),
        ({"n_heads_in_group": 2, "num_sink_tokens": 4}, "num_sink_tokens"),
        (None, "attention"),
    ],
)
def test_nas_blocks_of_an_unknown_shape_are_refused(attention, named):
    """Windows and sinks inside a searched block have no rule here."""
    blocks = [{"attention": {"n_heads_in_group": 2}}] * 3 + [{"attention": attention}]

    assert named in _refusal({"model_type": "nemotron-nas", **SMALL, "block_configs": blocks})


def test_hostile_text_stays_on_one_line():
    """Control characters of a key or a word do not reach the terminal."""
    message = _refusal({**SMALL, "model_type": "x\x1b[31m\n", "window\x1b[2J_size": 5})

    assert "\x1b" not in message


def test_the_list_of_unread_keys_is_in_file_order():
    """What is left over is told in the order of the file, absent and read keys left out."""
    keys = ConfigKeys({"b_window": 1, "a_state": 2, "hidden_size": 3, "c_latent": None, "num_heads": 4})
    keys.maybe_int("num_heads")

    assert unread_cache_keys(keys) == ("b_window", "a_state")
