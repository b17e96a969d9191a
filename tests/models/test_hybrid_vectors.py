"""Real models with states, indexers and compressed rows: every byte of the handed vectors, and of the facts' table."""

import pytest
from hybrid_kit import (
    VECTORS,
    geometry_of,
    groups_of,
    growth_bytes,
    ring_bytes,
    row_bytes,
    sequence_bytes,
    state_bytes,
    token_bytes,
)

HANDED = VECTORS["handed"]
ALL = HANDED + VECTORS["facts"]
V4 = "deepseek-ai/DeepSeek-V4-Flash"


def _named(rows):
    return pytest.mark.parametrize("row", rows, ids=[row["model"].split("/")[1] for row in rows])


def _row(name):
    return next(row for row in ALL if row["model"] == name)


@_named(ALL)
def test_bytes_of_a_token(row):
    """Inside all windows and past them, in bf16 and in FP8, exact."""
    layers = geometry_of(row["config"]).layers

    for dtype in ("bf16", "fp8"):
        assert token_bytes(layers, dtype) == row[f"bytes_per_token_{dtype}"]
        if f"growth_bytes_per_token_{dtype}" in row:
            assert growth_bytes(layers, dtype) == row[f"growth_bytes_per_token_{dtype}"]


@_named([row for row in ALL if "fixed_state_bytes_per_seq" in row])
def test_bytes_of_the_states(row):
    """What a sequence keeps whatever its length."""
    layers = geometry_of(row["config"]).layers

    assert state_bytes(layers) == row["fixed_state_bytes_per_seq"]
    assert ring_bytes(layers, "bf16") == 0


@_named([row for row in HANDED if "seq_bytes_bf16" in row])
def test_bytes_of_a_sequence(row):
    """At each handed length."""
    layers = geometry_of(row["config"]).layers

    for dtype in ("bf16", "fp8"):
        found = {n: sequence_bytes(layers, dtype, int(n)) for n in row[f"seq_bytes_{dtype}"]}
        assert found == row[f"seq_bytes_{dtype}"]


@_named([row for row in HANDED if row["model"] != V4])
def test_groups_of_layers(row):
    """Heads, widths and windows, and how many layers have them."""
    expected = {(g["kv_heads"], g["k_dim"], g["v_dim"], g["window"]): g["layers"] for g in row["layer_groups"]}

    assert groups_of(geometry_of(row["config"]).layers) == expected


@_named(HANDED)
def test_tensor_parallel_shares(row):
    """KV heads are shared out and then copied; latents and index keys are whole on every rank."""
    layers = geometry_of(row["config"]).layers

    found = {tp: token_bytes(layers, "bf16", tp=int(tp)) for tp in row["tp_bytes_per_token_bf16_per_rank"]}
    assert found == row["tp_bytes_per_token_bf16_per_rank"]


@_named([row for row in ALL if "mtp_extra_bytes_per_token_bf16" in row])
def test_bytes_of_the_mtp_layers(row):
    """Cached only while speculation is on, so not among the layers."""
    geometry = geometry_of(row["config"])

    assert token_bytes(geometry.mtp_layers, "bf16") == row["mtp_extra_bytes_per_token_bf16"]
    assert [x.index for x in geometry.mtp_layers] == [geometry.layer_count]


def test_compressed_rows_and_their_rings():
    """DeepSeek V4: 21 layers of ratio 4 with an index key, 20 of 128 without, and 43 rings of 128 rows of 584 bytes."""
    row = _row(V4)
    layers = geometry_of(row["config"]).layers
    rings, rows = [x for x in layers if x.fixed_tokens], [x for x in layers if not x.fixed_tokens]

    assert [(x.index, x.window_tokens, x.grows) for x in rings] == [(n, 128, False) for n in range(43)]
    assert ring_bytes(layers, "fp8") == row["fixed_window_bytes_per_seq_fp8"] == 43 * 128 * 584
    kinds = [(x.tokens_per_row, x.index_bytes_per_token) for x in rows]
    assert (kinds.count((4, 132)), kinds.count((128, 0)), len(kinds)) == (21, 20, 41)
    assert {row_bytes(x, "bf16") - x.index_bytes_per_token for x in rows} == {1024}


def test_the_mtp_block_of_compressed_rows_keeps_its_window_only():
    """The 44th ratio of 43 layers is the MTP block's, and it is 0."""
    (block,) = geometry_of(_row(V4)["config"]).mtp_layers

    assert (block.index, block.window_tokens, block.tokens_per_row, block.index_bytes_per_token) == (43, 128, 1, 0)


def test_alternatives_of_sparse_latents():
    """Plain FP8 rows of 576, FP4 rows of 352, and an index key in every layer."""
    layers = geometry_of(_row("deepseek-ai/DeepSeek-V3.2")["config"]).layers
    shared = geometry_of(_row("zai-org/GLM-5.2")["config"]).layers

    index_bytes = sum(x.index_bytes_per_token for x in layers)
    assert sum(x.k_dim for x in layers) + index_bytes == 43188
    # 512 elements of four bits, one scale byte per 16, and 64 rotated ones in 8 bits.
    assert {x.k_dim - x.rope_dim for x in layers} == {512}
    assert len(layers) * (256 + 32 + 64) + index_bytes == 29524
    assert sum(x.k_dim * 2 + 132 for x in shared) == 100152


def test_indexers_that_are_shared():
    """GLM-5.2: 21 of 78 layers own an index key; the schedule's numbers say the same as its list."""
    config = _row("zai-org/GLM-5.2")["config"]
    owners = [0, 1, 2, *range(6, 78, 4)]

    for changes in ({}, {"indexer_types": None}, {"indexer_types": None, "index_topk_pattern": "FFFSSS" + "FSSS" * 18}):
        layers = geometry_of(config, **changes).layers
        assert [x.index for x in layers if x.index_bytes_per_token] == owners
        assert {x.index_bytes_per_token for x in layers} == {0, 132}


@_named(ALL)
def test_layers_are_in_order_and_counted(row):
    """Numbers never fall, and lie below the count of layers."""
    geometry = geometry_of(row["config"])
    numbers = [x.index for x in geometry.layers]

    assert numbers == sorted(numbers)
    assert numbers[-1] < geometry.layer_count
    config = row["config"].get("text_config", row["config"])
    assert geometry.layer_count == config["num_hidden_layers"]
