"""GGUF files of hybrids: which blocks keep a state instead of KV, and the states' float32 bytes in llama.cpp."""

import pytest
from tiny_gguf import tiny_model

from kvgate.core.errors import UserError
from kvgate.models.geometry_from_gguf import geometry_from_gguf
from kvgate.models.read_gguf import read_gguf

FULL, SLIDING, MIB = "full_attention", "sliding_window", 2**20
#: Qwen3.6-27B: 48 value heads of 128, 16 key heads, kernel 4.
GDN = {
    "block_count": 64,
    "embedding_length": 5120,
    "attention__head_count": 24,
    "attention__head_count_kv": 4,
    "attention__key_length": 256,
    "attention__value_length": 256,
    "ssm__conv_kernel": 4,
    "ssm__inner_size": 6144,
    "ssm__state_size": 128,
    "ssm__time_step_rank": 48,
    "ssm__group_count": 16,
}
MAMBA2 = {
    "ssm__conv_kernel": 4,
    "ssm__inner_size": 8192,
    "ssm__state_size": 128,
    "ssm__time_step_rank": 128,
    "ssm__group_count": 1,
}
HEADS = {"attention__head_count": 32, "attention__key_length": 128, "attention__value_length": 128}
KIMI = {
    "block_count": 4,
    "embedding_length": 2304,
    "attention__head_count": 32,
    "attention__head_count_kv": [0, 0, 0, 1],
    "attention__key_length": 576,
    "attention__value_length": 512,
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
    "attention__kv_lora_rank": 512,
    "ssm__conv_kernel": 4,
    "kda__head_dim": 128,
}


def _geometry(tmp_path, architecture, **keys):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model(architecture, **keys))
    return geometry_from_gguf(read_gguf(path))


def _kinds(geometry):
    found = {}
    for x in geometry.layers:
        found.setdefault((x.kind, x.kv_heads, x.k_dim, x.v_dim, bool(x.state)), []).append(x.index)
    return found


def _state_bytes(geometry):
    assert {p.dtype for x in geometry.layers for p in x.state} <= {"f32"}
    return sum(4 * p.elements for x in geometry.layers for p in x.state)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"full_attention_interval": 4}, id="interval in the file"),
        pytest.param({}, id="interval of the code"),
        pytest.param({"block_count": 65, "nextn_predict_layers": 1}, id="an MTP block behind the stack"),
        pytest.param(
            {"attention__recurrent_layers": [int((n + 1) % 4 != 0) for n in range(64)], "full_attention_interval": 2},
            id="a flag a layer wins",
        ),
    ],
)
@pytest.mark.parametrize("architecture", ["qwen3next", "qwen35", "qwen35moe"])
def test_gated_delta_net(tmp_path, architecture, keys):
    """16 of 64 layers attend; the states of one sequence are 149.625 MiB, a public log's 598.50 for four."""
    geometry = _geometry(tmp_path, architecture, **{**GDN, **keys})
    full = list(range(3, 64, 4))

    assert _kinds(geometry) == {
        (FULL, 4, 256, 256, False): full,
        ("linear_attention", 0, 0, 0, True): [n for n in range(64) if n not in full],
    }
    assert _state_bytes(geometry) == 149.625 * MIB


def test_kv_of_a_gated_delta_net_matches_a_public_log(tmp_path):
    """262,144 cells in f16 were 16,384.00 MiB."""
    layers = _geometry(tmp_path, "qwen35", **GDN).layers

    assert sum(x.kv_heads * (x.k_dim + x.v_dim) for x in layers) * 2 * 262_144 == 16_384 * MIB


def test_granite_and_bamba(tmp_path):
    """A zero in head_count_kv is a Mamba-2 layer: conv (8192 + 2*128)*3 and 8192*128 elements."""
    kv = [0, 0, 8, 0]
    geometry = _geometry(
        tmp_path, "granitehybrid", **MAMBA2, **HEADS, block_count=4, embedding_length=4096, attention__head_count_kv=kv
    )

    assert _kinds(geometry) == {(FULL, 8, 128, 128, False): [2], ("mamba2", 0, 0, 0, True): [0, 1, 3]}
    assert _state_bytes(geometry) == 3 * 4 * (3 * (8192 + 256) + 8192 * 128)


def test_granite_without_mamba_layers_needs_no_keys_of_it(tmp_path):
    """The dense members of the family keep the architecture's name."""
    geometry = _geometry(tmp_path, "granitehybrid", attention__head_count_kv=[2, 2])

    assert _kinds(geometry) == {(FULL, 2, 64, 64, False): [0, 1]}


@pytest.mark.parametrize("architecture", ["nemotron_h", "nemotron_h_moe"])
def test_nemotron(tmp_path, architecture):
    """A layer with a feed-forward width keeps nothing; one with neither width nor KV heads is Mamba-2."""
    geometry = _geometry(
        tmp_path,
        architecture,
        **MAMBA2,
        **HEADS,
        block_count=6,
        embedding_length=4096,
        attention__head_count_kv=[0, 0, 2, 0, 0, 0],
        feed_forward_length=[0, 1856, 0, 1856, 0, 1856],
    )

    assert _kinds(geometry) == {(FULL, 2, 128, 128, False): [2], ("mamba2", 0, 0, 0, True): [0, 4]}


def test_falcon_h1_keeps_both_in_each_layer(tmp_path):
    """KV rows and a state side by side."""
    keys = {**MAMBA2, "ssm__inner_size": 3072, "ssm__state_size": 256}
    geometry = _geometry(tmp_path, "falcon-h1", **keys, **HEADS, attention__head_count_kv=2)

    assert _kinds(geometry) == {(FULL, 2, 128, 128, True): [0, 1]}
    assert _state_bytes(geometry) == 2 * 4 * (3 * (3072 + 512) + 3072 * 256)


def test_jamba_has_no_groups(tmp_path):
    """Mamba-1: conv 3*inner, recurrence inner*state."""
    keys = {name: value for name, value in MAMBA2.items() if name != "ssm__group_count"} | {"ssm__state_size": 16}
    geometry = _geometry(
        tmp_path, "jamba", **keys, **HEADS, block_count=4, embedding_length=4096, attention__head_count_kv=[0, 8, 0, 0]
    )

    assert _kinds(geometry) == {(FULL, 8, 128, 128, False): [1], ("mamba", 0, 0, 0, True): [0, 2, 3]}
    assert _state_bytes(geometry) == 3 * 4 * (3 * 8192 + 16 * 8192)


@pytest.mark.parametrize(("architecture", "groups"), [("mamba", 0), ("mamba2", 1)])
def test_state_space_models_without_attention(tmp_path, architecture, groups):
    """Every block has a state and nothing has rows."""
    keys = MAMBA2 if groups else {name: value for name, value in MAMBA2.items() if name != "ssm__group_count"}
    geometry = _geometry(tmp_path, architecture, **keys, attention__head_count=0, attention__head_count_kv=None)

    assert not any(x.has_rows for x in geometry.layers)
    assert _state_bytes(geometry) == 2 * 4 * (3 * (8192 + 2 * groups * 128) + 8192 * 128)


def test_kimi_linear(tmp_path):
    """A zero in head_count_kv is a KDA layer; the others keep one latent and no V."""
    geometry = _geometry(tmp_path, "kimi-linear", **KIMI)

    assert _kinds(geometry) == {("mla", 1, 576, 0, False): [3], ("kda", 0, 0, 0, True): [0, 1, 2]}
    assert geometry.layers[3].rope_dim == 64
    assert _state_bytes(geometry) == 3 * 4 * (3 * 3 * 32 * 128 + 32 * 128 * 128)


@pytest.mark.parametrize("architecture", ["lfm2", "lfm2moe"])
def test_short_convolutions(tmp_path, architecture):
    """l_cache - 1 inputs of the whole width; no recurrence."""
    geometry = _geometry(
        tmp_path,
        architecture,
        block_count=4,
        embedding_length=2048,
        attention__head_count=32,
        attention__head_count_kv=[0, 0, 8, 0],
        shortconv__l_cache=3,
    )

    assert _kinds(geometry) == {(FULL, 8, 64, 64, False): [2], ("conv", 0, 0, 0, True): [0, 1, 3]}
    assert _state_bytes(geometry) == 3 * 4 * 2 * 2048


def _windows(geometry):
    found = {}
    for x in geometry.layers:
        found.setdefault((x.kind, x.kv_heads, x.k_dim, x.window_tokens), []).append(x.index)
    return found


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"attention__shared_kv_layers": 15},
        {"attention__sliding_window_pattern": 5},
        {"attention__sliding_window_pattern": [int((n + 1) % 5 != 0) for n in range(35)]},
        {"altup__active_idx": 0, "altup__num_inputs": 4, "embedding_length_per_layer_input": 256},
    ],
)
def test_gemma3n_caches_its_first_twenty_layers(tmp_path, more):
    """E4B: 4 full and 16 sliding layers of 35."""
    keys = {**HEADS, "attention__key_length": 256, "attention__value_length": 256, "attention__head_count_kv": 2}
    geometry = _geometry(tmp_path, "gemma3n", **keys, block_count=35, attention__sliding_window=512, **more)
    full = [4, 9, 14, 19]

    assert _windows(geometry) == {
        (FULL, 2, 256, None): full,
        (SLIDING, 2, 256, 512): [n for n in range(20) if n not in full],
    }


def test_gemma4_has_two_kinds_of_heads(tmp_path):
    """E2B's shape in small: KV heads a layer, head sizes of both kinds, the last layers own none."""
    geometry = _geometry(
        tmp_path,
        "gemma4",
        block_count=6,
        attention__head_count_kv=[4, 4, 2, 4, 4, 2],
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        attention__sliding_window=512,
        attention__sliding_window_pattern=[1, 1, 0, 1, 1, 0],
        attention__shared_kv_layers=2,
        embedding_length_per_layer_input=256,
    )

    assert _windows(geometry) == {(SLIDING, 4, 256, 512): [0, 1, 3], (FULL, 2, 512, None): [2]}


@pytest.mark.parametrize(
    ("architecture", "keys", "said"),
    [
        ("qwen3next", {}, "lacks qwen3next.ssm.group_count"),
        ("qwen35", {**GDN, "ssm__inner_size": None}, "lacks qwen35.ssm.inner_size"),
        ("qwen35", {**GDN, "full_attention_interval": 0}, "full_attention_interval is 0"),
        ("qwen35", {**GDN, "attention__recurrent_layers": [1, 0]}, "not one true or false for each of 64 layers"),
        ("qwen35", {**GDN, "attention__recurrent_layers": [2] * 64}, "not one true or false"),
        ("qwen35", {**GDN, "attention__sliding_window": 4096}, "no verified rule for 'qwen35'.*sliding_window"),
        ("qwen35", {**GDN, "ssm__state_size": -1 % 2**32}, "ssm.state_size is 4294967295, not a count"),
        ("granitehybrid", {"attention__head_count_kv": [0, 2]}, "lacks granitehybrid.ssm.group_count"),
        ("granitehybrid", {"wkv__head_size": 64}, "no verified rule for 'granitehybrid'.*wkv.head_size"),
        ("nemotron_h", {**MAMBA2, "attention__head_count_kv": [0, 2]}, "lacks nemotron_h.feed_forward_length"),
        (
            "nemotron_h",
            {**MAMBA2, "attention__head_count_kv": [0, 2], "feed_forward_length": 128},
            "KV heads and an MLP",
        ),
        ("falcon-h1", {**MAMBA2, "attention__head_count_kv": [0, 2]}, "layer 0 of this falcon-h1 file has no KV heads"),
        ("jamba", {**MAMBA2, "attention__head_count_kv": [0, 2]}, "no verified rule for 'jamba'.*ssm.group_count"),
        ("mamba", {**MAMBA2, "attention__head_count": 0}, "no verified rule for 'mamba'.*ssm.group_count"),
        ("mamba2", {**MAMBA2, "block_count": 0}, "block_count is 0; llama.cpp takes 1 to 512"),
        ("kimi-linear", {**KIMI, "attention__head_count_kv": [0, 0, 0, 32]}, "does not cache one latent a layer"),
        ("kimi-linear", {**KIMI, "attention__key_length_mla": None}, "does not cache one latent a layer"),
        ("kimi-linear", {**KIMI, "attention__kv_lora_rank": None}, "lacks kimi-linear.attention.kv_lora_rank"),
        ("kimi-linear", {**KIMI, "kda__head_dim": None}, "lacks kimi-linear.kda.head_dim"),
        ("lfm2", {"attention__head_count_kv": [0, 2]}, "lacks lfm2.shortconv.l_cache"),
        ("lfm2", {"attention__head_count_kv": [0, 2], "shortconv__l_cache": 0}, "shortconv.l_cache is 0"),
        ("gemma3n", {"block_count": 35}, "lacks gemma3n.attention.sliding_window"),
        (
            "gemma3n",
            {"block_count": 30, "attention__sliding_window": 512, "attention__shared_kv_layers": 15},
            "shared_kv_layers is 15 of 30 layers, and llama.cpp caches the first 20",
        ),
        (
            "gemma3n",
            {"attention__sliding_window": 512, "attention__sliding_window_pattern": 6},
            "pattern is not that every 5th",
        ),
        (
            "gemma3n",
            {"attention__sliding_window": 512, "attention__sliding_window_pattern": [1, 0]},
            "pattern is not that every 5th",
        ),
        ("gemma3n", {"attention__sliding_window": 512, "laurel__rank": 64, "posnet__x": 1}, "no verified rule.*posnet"),
        ("gemma4", {"attention__sliding_window": 512}, "lacks gemma4.attention.sliding_window_pattern"),
        (
            "gemma4",
            {"attention__sliding_window": 512, "attention__sliding_window_pattern": [1, 0]},
            "lacks gemma4.attention.key_length_swa",
        ),
        (
            "gemma4",
            {
                "attention__sliding_window": 0,
                "attention__sliding_window_pattern": [1, 0],
                "attention__key_length_swa": 64,
                "attention__value_length_swa": 64,
            },
            "gemma4.attention.sliding_window is 0",
        ),
        (
            "gemma4",
            {
                "attention__sliding_window": 512,
                "attention__sliding_window_pattern": [1, 0],
                "attention__key_length_swa": 0,
                "attention__value_length_swa": 64,
            },
            "a head of 0 elements",
        ),
    ],
)
def test_a_hybrid_file_that_lacks_or_contradicts_something_is_refused(tmp_path, architecture, keys, said):
    """Never sized as plain attention, never guessed; one line that names the key."""
    with pytest.raises(UserError, match=said):
        _geometry(tmp_path, architecture, **keys)
