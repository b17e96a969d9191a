"""Spellings of hybrid configurations, and what is refused with its reason instead of priced as plain attention."""

import json

import pytest
from hybrid_kit import VECTORS, geometry_of, groups_of, state_bytes, token_bytes
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.core.registry import discover
from kvgate.core.source import Source
from kvgate.models.config_keys import ConfigKeys
from kvgate.models.geometry_from_config import geometry_from_config
from kvgate.models.layer_words import layer_words
from kvgate.models.mtp import mtp_count, mtp_layers

ROWS = {row["model"].split("/")[1]: row["config"] for row in VECTORS["handed"] + VECTORS["facts"]}
V32, GLM52, V4 = ROWS["DeepSeek-V3.2"], ROWS["GLM-5.2"], ROWS["DeepSeek-V4-Flash"]
QWEN, NEXT, K3, KIMI = (
    ROWS[n] for n in ("Qwen3.5-27B", "Qwen3-Next-80B-A3B-Instruct", "Kimi-K3", "Kimi-Linear-48B-A3B")
)
SUPER, NANO = ROWS["NVIDIA-Nemotron-3-Super-120B-A12B-FP8"], ROWS["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]
GRANITE, JAMBA, H1 = ROWS["granite-4.0-h-small"], ROWS["AI21-Jamba-1.5-Mini"], ROWS["Falcon-H1-7B-Instruct"]
TEXT01, M3 = ROWS["MiniMax-Text-01"], ROWS["MiniMax-M3"]
BAMBA = {
    "model_type": "bamba",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "attn_layer_indices": [9, 18, 27],
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
}
LFM2 = {
    "model_type": "lfm2",
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 2048,
    "conv_L_cache": 3,
    "conv_dim": 2048,
    "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}
MAMBA = {
    "model_type": "mamba",
    "num_hidden_layers": 24,
    "hidden_size": 768,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "intermediate_size": 1536,
    "time_step_rank": 48,
    "use_mambapy": False,
}
MAMBA2 = {
    "model_type": "mamba2",
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 256,
}
BASES = {"bamba": BAMBA, "lfm2": LFM2, "mamba": MAMBA, "mamba2": MAMBA2, **ROWS}


def _full(config, **changes):
    """Numbers of the layers with rows."""
    return [x.index for x in geometry_of(config, **changes).layers if x.has_rows]


def test_an_interval_says_what_a_list_says():
    """full_attention_interval 4 is every fourth layer; layer_types wins where both are there."""
    assert _full(QWEN, layer_types=None) == _full(QWEN) == list(range(3, 64, 4))
    assert _full(NEXT, full_attention_interval=3) == list(range(2, 48, 3))
    words = ["full_attention"] + ["linear_attention"] * 47
    assert _full(NEXT, layer_types=words) == [0]


def test_layers_of_kimi_are_numbered_from_one():
    """full_attn_layers [4, 8, ...] are the layers 3, 7, ... and the last two of K3 attend."""
    assert _full(KIMI) == [3, 7, 11, 15, 19, 23, 26]
    assert _full(K3)[-2:] == [91, 92]


@pytest.mark.parametrize("absent", ["full_attn_layers", "kda_layers"])
def test_one_list_of_kimi_is_enough(absent):
    """What it leaves is of the other kind, and the notes say so."""
    lists = {name: value for name, value in KIMI["linear_attn_config"].items() if name != absent}
    geometry = geometry_of(KIMI, linear_attn_config=lists)

    assert geometry.layers == geometry_of(KIMI).layers
    assert any(absent in note for note in geometry.notes)


def test_letters_words_and_lists_name_the_same_layers():
    """Nemotron's pattern as text, as a list of letters, and as words without num_hidden_layers."""
    words = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    pattern = NANO["hybrid_override_pattern"]
    by_letter = geometry_of(NANO).layers

    assert geometry_of(NANO, hybrid_override_pattern=list(pattern)).layers == by_letter
    named = geometry_of(NANO, hybrid_override_pattern=None, layers_block_type=[words[c] for c in pattern])
    assert named.layers == by_letter
    assert [x.index for x in by_letter if x.has_rows] == [5, 12, 19, 26, 33, 42]
    assert geometry_of(NANO, num_hidden_layers=None).layer_count == 52


def test_the_head_size_of_nemotron_has_two_names():
    """attention_head_dim of the first generation, head_dim since; without either the width over the heads."""
    first = ROWS["Nemotron-H-56B-Base-8K"]

    assert groups_of(geometry_of(first).layers) == {(8, 128, 128, None): 10}
    assert groups_of(geometry_of(first, attention_head_dim=None, head_dim=96).layers) == {(8, 96, 96, None): 10}


@pytest.mark.parametrize(
    ("changes", "attention_layers"),
    [
        ({}, 1),
        ({"mtp_layers_block_type": ["attention", "moe"]}, 1),
        ({"mtp_hybrid_override_pattern": "*E"}, 1),
        ({"mtp_layers_block_type": ["attention", "attention"], "num_nextn_predict_layers": 2}, 4),
        ({"mtp_layers_block_type": ["moe"]}, 0),
        ({"num_nextn_predict_layers": None}, 0),
    ],
)
def test_an_mtp_block_of_nemotron_is_a_small_stack(changes, attention_layers):
    """Only its attention keeps rows; without a pattern the class's own default is taken, and the notes say so."""
    geometry = geometry_of(SUPER, **changes)

    assert token_bytes(geometry.mtp_layers, "bf16") == attention_layers * 1024
    assert all(x.index >= geometry.layer_count for x in geometry.mtp_layers)
    by_default = any("MTP block is taken" in note for note in geometry.notes)
    assert by_default is (changes == {})


def test_bamba_lists_its_attention_layers():
    """attn_layer_indices, numbered from 0."""
    geometry = geometry_of(BAMBA)

    assert [x.index for x in geometry.layers if x.has_rows] == [9, 18, 27]
    assert state_bytes(geometry.layers) == 29 * 2 * ((8192 + 256) * 3 + 8192 * 128)


def test_granite_without_mamba_layers():
    """The dense members keep Mamba's keys and use none of them."""
    geometry = geometry_of(GRANITE, layer_types=["attention"] * 40, mamba_ssm_dtype="float32")

    assert groups_of(geometry.layers) == {(8, 128, 128, None): 40}
    assert state_bytes(geometry.layers) == 0
    assert not any("mamba" in note for note in geometry.notes)


def test_heads_of_mamba_may_be_left_to_the_width():
    """mamba_d_head "auto", and mamba_d_ssm absent: expand times the width, over the heads."""
    auto = geometry_of(GRANITE, mamba_n_heads=128, mamba_d_head="auto", mamba_n_groups=1)

    assert auto.layers == geometry_of(GRANITE, mamba_n_heads=128, mamba_d_head=64, mamba_n_groups=1).layers
    assert state_bytes(auto.layers) == state_bytes(geometry_of(GRANITE).layers)
    assert {p.tp_units for x in auto.layers for p in x.state if p.name == "ssm"} == {128}


def test_defaults_of_absent_keys_are_in_the_notes():
    """A default of the model's own class is taken and named, never silently."""
    assert sum("by default" in note for note in geometry_of(GRANITE).notes) == 2
    full = geometry_of(GRANITE, mamba_n_heads=128, mamba_d_head=64, mamba_n_groups=1)
    assert not any("by default" in note for note in full.notes)


def test_jamba_attends_in_every_period_from_its_offset_on():
    """Layers 4, 12, 20 and 28 of 32; a list of words wins."""
    words = ["attention" if n in (0, 31) else "mamba" for n in range(32)]

    assert _full(JAMBA) == [4, 12, 20, 28]
    assert _full(JAMBA, layers_block_type=words) == [0, 31]


def test_short_convolutions_by_list_and_by_number():
    """layer_types, or full_attn_idxs of older files."""
    words = ["full_attention" if n in LFM2["full_attn_idxs"] else "conv" for n in range(16)]
    by_number = geometry_of(LFM2)

    assert geometry_of(LFM2, full_attn_idxs=None, layer_types=words).layers == by_number.layers
    assert token_bytes(by_number.layers, "bf16") == 6 * 2 * 8 * 64 * 2
    assert state_bytes(by_number.layers) == 10 * 2 * 2048 * 2


@pytest.mark.parametrize(
    ("config", "bytes_per_sequence"),
    [
        (MAMBA, 24 * 2 * (1536 * 3 + 1536 * 16)),
        ({**MAMBA, "model_type": "falcon_mamba", "intermediate_size": None}, 24 * 2 * (1536 * 3 + 1536 * 16)),
        (MAMBA2, 64 * 2 * ((8192 + 2 * 8 * 128) * 3 + 8192 * 128)),
    ],
)
def test_models_of_states_only(config, bytes_per_sequence):
    """Nothing grows."""
    layers = geometry_of(config).layers

    assert state_bytes(layers) == bytes_per_sequence
    assert not any(x.has_rows or x.grows for x in layers)


def test_lightning_layers_under_three_names():
    """attn_type_list, decoder_attention_types, and the port's layer_types."""
    numbers = TEXT01["attn_type_list"]
    words = ["full_attention" if n else "linear_attention" for n in numbers]
    found = geometry_of(TEXT01).layers

    assert geometry_of(TEXT01, attn_type_list=None, decoder_attention_types=numbers).layers == found
    assert geometry_of(TEXT01, attn_type_list=None, layer_types=words, model_type="minimax").layers == found


def test_block_sparse_layers_under_both_spellings():
    """sparse_attention_config of the authors; layer_types and index_head_dim of the port."""
    words = ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57
    ported = geometry_of(M3, sparse_attention_config=None, layer_types=words, index_head_dim=128)

    assert ported.layers == geometry_of(M3).layers
    assert {x.kind for x in ported.layers} == {"full_attention", "sparse_attention"}
    off = {"use_sparse_attention": False}
    assert token_bytes(geometry_of(M3, sparse_attention_config=off).layers, "bf16") == 122_880
    assert any("7 MTP modules are not sized" in note for note in ported.notes)


@pytest.mark.parametrize(
    ("changes", "owners"),
    [
        # GLM-5 and DeepSeek V3.2 have no schedule: every layer owns one.
        ({"indexer_types": None, "index_topk_freq": None, "index_skip_topk_offset": None}, 78),
        # Without an offset the engine takes 2.
        ({"indexer_types": None, "index_skip_topk_offset": None}, 21),
        ({"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 2}, 40),
        ({"indexer_types": ["full"] + ["shared"] * 77}, 1),
    ],
)
def test_schedules_of_shared_indexers(changes, owners):
    """max(layer - offset + 1, 0) is a multiple of the frequency."""
    layers = geometry_of(GLM52, **changes).layers

    assert sum(x.index_bytes_per_token == 132 for x in layers) == owners
    assert layers[0].index_bytes_per_token == 132


def test_the_mtp_block_of_shared_indexers_owns_one():
    """The engine builds an indexer for every layer past the stack."""
    (block,) = geometry_of(GLM52).mtp_layers

    assert (block.index, block.kind, block.index_bytes_per_token) == (78, "sparse_mla", 132)


@pytest.mark.parametrize(
    ("ratios", "blocks", "expected"),
    [
        ([0, 4, 128, 0], 1, [(3, 1)]),
        ([0, 4, 128], 1, [(3, 1)]),
        ([0, 4, 128, 4, 0], 2, [(3, 1), (3, 4), (4, 1)]),
        ([0, 4, 128, 0], 0, []),
    ],
)
def test_ratios_past_the_stack_are_the_mtp_blocks(ratios, blocks, expected):
    """One a block; a block without one keeps only its window."""
    geometry = geometry_of(V4, num_hidden_layers=3, compress_ratios=ratios, num_nextn_predict_layers=blocks)

    assert [(x.index, x.tokens_per_row) for x in geometry.mtp_layers] == expected


def test_every_hybrid_configuration_has_an_own_family():
    """No two families claim one model_type, and none of these is the default one."""
    families = discover("config_family").values()
    claims = [t for family in families for t in family.model_types]

    assert len(claims) == len(set(claims))
    for config in BASES.values():
        assert geometry_of(config).family != "dense"


def test_counts_of_mtp_blocks():
    """Under each name, times the layers of a module, unless the file switches them off."""
    block = geometry_of(NEXT).layers[3]

    assert mtp_count(ConfigKeys({})) == 0
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules"):
        assert mtp_count(ConfigKeys({name: 3})) == 3
    keys = ConfigKeys({"num_mtp_modules": 3, "mtp_transformer_layers": 2})
    assert [x.index for x in mtp_layers(keys, block, 10)] == [10, 11, 12, 13, 14, 15]
    assert mtp_count(ConfigKeys({"num_mtp_modules": 3, "use_mtp": False})) == 0
    assert mtp_layers(ConfigKeys({"num_mtp_layers": 1}), (), 10) == ()
    with pytest.raises(
        UserError, match="counts its MTP layers twice: num_nextn_predict_layers is 1, num_mtp_modules is 2"
    ):
        mtp_count(ConfigKeys({"num_nextn_predict_layers": 1, "num_mtp_modules": 2}))


def test_words_are_held_against_the_layers():
    """As many as layers, each known; absent is None."""
    keys = ConfigKeys({"layer_types": ["a", "b"], "short": ["a"]})

    assert layer_words(keys, "layer_types", 2, ("a", "b")) == ("a", "b")
    assert layer_words(keys, "absent", 2, ("a",)) is None
    with pytest.raises(UserError, match="short has 1 entries for 2 layers"):
        layer_words(keys, "short", 2, ("a",))
    with pytest.raises(UserError, match=r"no rule for the layer kind 'b' \(layer_types, layer 1\); allowed: a"):
        layer_words(keys, "layer_types", 2, ("a",))


def _words(n, *words):
    return [words[i % len(words)] for i in range(n)]


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        (V32, {"index_head_dim": None}, "lacks index_head_dim"),
        (V32, {"index_head_dim": 96}, "index_head_dim is 96: index keys have one scale per 128"),
        (V32, {"index_head_dim": 0}, "index_head_dim is 0"),
        (V32, {"kv_lora_rank": None}, "lacks kv_lora_rank"),
        (V32, {"qk_rope_head_dim": None}, "lacks qk_rope_head_dim"),
        (V32, {"sliding_window": 128}, "no verified rule for the key 'sliding_window'"),
        (GLM52, {"indexer_types": ["full"]}, "indexer_types has 1 entries for 78 layers"),
        (GLM52, {"indexer_types": ["full"] * 77 + ["half"]}, r"layer kind 'half' \(indexer_types, layer 77\)"),
        (GLM52, {"indexer_types": ["shared"] * 78}, "gives the first layer no indexer"),
        (GLM52, {"indexer_types": None, "index_topk_pattern": "S" * 78}, "gives the first layer no indexer"),
        (GLM52, {"indexer_types": None, "index_topk_pattern": "F" * 77 + "X"}, "layer kind 'X'"),
        (GLM52, {"indexer_types": None, "index_topk_pattern": "F"}, "index_topk_pattern has 1 entries for 78"),
        (GLM52, {"indexer_types": None, "index_skip_topk_offset": 0}, "gives the first layer no indexer"),
        (GLM52, {"index_topk_freq": 0}, "index_topk_freq is 0"),
        (V4, {"compress_ratios": None}, "lacks compress_ratios"),
        (V4, {"compress_ratios": [0, 4]}, "compress_ratios has 2 entries for 43 layers"),
        (
            V4,
            {"compress_ratios": [0] * 42 + [16, 0]},
            r"layer kind '16' \(compress_ratios, layer 42\); allowed: 0, 4, 128",
        ),
        (V4, {"compress_ratios": [4.5] * 44}, "not a whole number"),
        (V4, {"sliding_window": None}, "lacks sliding_window"),
        (V4, {"head_dim": None}, "lacks head_dim"),
        (V4, {"qk_rope_head_dim": 512}, "qk_rope_head_dim is 512, and the whole vector has head_dim 512"),
        (V4, {"num_key_value_heads": 8}, "num_key_value_heads is 8: this family caches one vector"),
        (
            V4,
            {"compress_kv_layers": [1]},
            "no verified rule for the key 'compress_kv_layers'",
        ),
        (QWEN, {"linear_num_key_heads": None}, "lacks linear_num_key_heads in text_config"),
        (QWEN, {"layer_types": None, "full_attention_interval": None}, "lacks layer_types"),
        (QWEN, {"layer_types": _words(64, "mamba", "full_attention")}, "layer kind 'mamba'"),
        (QWEN, {"layer_types": _words(63, "full_attention")}, "has 63 entries for 64 layers"),
        (QWEN, {"layer_types": None, "full_attention_interval": 0}, "full_attention_interval is 0"),
        (QWEN, {"mamba_ssm_dtype": "int4"}, "mamba_ssm_dtype is 'int4', not a type of a state"),
        (QWEN, {"linear_conv_kernel_dim": -1}, "linear_conv_kernel_dim is -1"),
        (K3, {"linear_attn_config": None}, "lacks linear_attn_config"),
        (
            KIMI,
            {"linear_attn_config": {"num_heads": 2, "head_dim": 2, "short_conv_kernel_size": 4}},
            "full_attn_layers",
        ),
        (
            KIMI,
            {"linear_attn_config": {**KIMI["linear_attn_config"], "full_attn_layers": [3, 7, 11, 15, 19, 23, 26]}},
            "do not name each of the layers 1 to 27 once",
        ),
        (
            KIMI,
            {"linear_attn_config": {**KIMI["linear_attn_config"], "swa_layers": [1]}},
            "no verified rule for the key 'linear_attn_config.swa_layers'",
        ),
        (SUPER, {"hybrid_override_pattern": None}, "lacks hybrid_override_pattern"),
        (SUPER, {"hybrid_override_pattern": "M" * 87 + "D"}, r"layer kind 'D' \(hybrid_override_pattern, layer 87\)"),
        (SUPER, {"hybrid_override_pattern": "M*"}, "has 2 entries for 88 layers"),
        (SUPER, {"n_groups": None}, "lacks n_groups"),
        (SUPER, {"mtp_hybrid_override_pattern": "ME"}, "no rule for an MTP block with a Mamba layer"),
        (SUPER, {"mtp_layers_block_type": ["attention", "gdn"]}, "layer kind 'gdn'"),
        (NANO, {"sliding_window": 4096}, "no verified rule for the key 'sliding_window'"),
        (GRANITE, {"layer_types": None}, "lacks layer_types"),
        (GRANITE, {"layer_types": ["mamba"] * 39 + ["multihead_latent"]}, "layer kind 'multihead_latent'"),
        (GRANITE, {"mamba_d_state": None}, "lacks mamba_d_state"),
        (GRANITE, {"mamba_n_heads": 128, "mamba_d_head": 32}, "128 heads of 32 do not make up its inner width of 8192"),
        (GRANITE, {"mamba_n_heads": 3}, "3 heads do not make up"),
        (GRANITE, {"mamba_expand": None}, "lacks mamba_d_head"),
        (BAMBA, {"attn_layer_indices": None}, "lacks layer_types"),
        (BAMBA, {"attn_layer_indices": [32]}, "attn_layer_indices is 32"),
        (H1, {"attn_layer_indices": [1, 2]}, "no verified rule for the key 'attn_layer_indices'"),
        (H1, {"layer_types": ["hybrid"] * 43 + ["mamba"]}, "layer kind 'mamba'"),
        (JAMBA, {"attn_layer_period": None}, "lacks attn_layer_period"),
        (JAMBA, {"attn_layer_offset": None}, "lacks attn_layer_offset"),
        (JAMBA, {"attn_layer_offset": 8}, "attn_layer_offset is 8, and attn_layer_period 8: no layer attends"),
        (JAMBA, {"mamba_expand": None}, "lacks mamba_expand"),
        (TEXT01, {"attn_type_list": None}, "lacks attn_type_list"),
        (TEXT01, {"attn_type_list": [2] * 80}, "layer kind '2'"),
        (TEXT01, {"attn_type_list": "mostly 0"}, "attn_type_list is .* not a list"),
        (M3, {"sparse_attention_config": None}, "lacks sparse_attention_config"),
        (M3, {"layer_types": ["minimax_m3_sparse"] * 60}, "disagree on which layers are sparse"),
        (
            M3,
            {"sparse_attention_config": {**M3["sparse_attention_config"], "sparse_disable_index_value": [0] * 60}},
            "keeps an index value in layer 3",
        ),
        (
            M3,
            {"sparse_attention_config": {**M3["sparse_attention_config"], "sparse_index_dim": None}},
            "lacks sparse_index_dim in sparse_attention_config",
        ),
        (LFM2, {"full_attn_idxs": None}, "lacks layer_types"),
        (LFM2, {"full_attn_idxs": [16]}, "full_attn_idxs is 16"),
        (LFM2, {"conv_L_cache": 0}, "conv_L_cache is 0"),
        (MAMBA, {"state_size": None}, "lacks state_size"),
        (MAMBA2, {"n_groups": None}, "lacks n_groups"),
    ],
)
def test_refused_with_the_reason(config, changes, said):
    """An unknown word or a missing key never becomes plain attention; one line that names it."""
    with pytest.raises(UserError, match=said) as caught:
        geometry_of(config, **changes)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(data=st.data(), name=st.sampled_from(sorted(BASES)))
def test_damaged_configurations_never_raise_anything_else(data, name):
    """Any key with any JSON value, or without it: sized, or refused in one line."""
    config = json.loads(json.dumps(BASES[name]))
    part = config.get("text_config", config)
    inner = next((v for v in part.values() if isinstance(v, dict)), part)
    for target in (part, inner):
        key = data.draw(st.sampled_from(sorted(target)))
        if data.draw(st.booleans()):
            target[key] = data.draw(JSON)
        else:
            target.pop(key)
    try:
        geometry = geometry_from_config(config, "m", Source("file", "config.json"))
    except UserError as e:
        assert "\n" not in str(e)
    else:
        assert all(x.k_dim >= 0 and p.elements > 0 for x in geometry.layers for p in x.state)
