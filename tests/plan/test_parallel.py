"""Shares of ranks: published bytes per rank of real models, stages as each engine cuts them, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.plan import parallel
from kvgate.plan.parallel import sharded_tokens, split, split_by_weight
from kvgate.plan.price import price

MODELS = json.loads((Path(__file__).parent / "data" / "tp_splits.json").read_text())["models"]
SOURCE = Source("arithmetic", "made in the test")
NATIVE = parse("native")


def _model(layers, *, layer_count=0, mtp=()):
    return ModelGeometry("m", "test", tuple(layers), 8192, 0, SOURCE, layer_count, tuple(mtp), "bf16")


def _listed(row):
    layers = []
    for count, kind, heads, k, v, window, index, per_row, fixed in row["layers"]:
        for _ in range(count):
            layers.append(LayerGeometry(len(layers), kind, heads, k, v, window, 0, index, per_row, fixed))
    return _model(layers)


def _plain(count, heads=8, **kw):
    return _model([LayerGeometry(i, "full_attention", heads, 128, 128) for i in range(count)], **kw)


def _per_rank(row):
    """Bytes a token on one rank, as published; None where the split is refused."""
    found = {}
    for tp in row["bytes_per_token"]:
        try:
            share = split(_listed(row), tp=int(tp))[0].geometry
            found[tp] = float(price(share, NATIVE).bytes_per_token)
        except UserError:
            found[tp] = None
    return found


@pytest.mark.parametrize("row", MODELS, ids=lambda r: r["model"])
def test_bytes_per_rank_of_real_models(row):
    """Every published split of forty models, those that are refused too."""
    assert _per_rank(row) == row["bytes_per_token"]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("rank_layer", lambda layer, tp: layer),
        ("shared", lambda units, tp, what: max(1, -(-units // tp))),
        ("shared", lambda units, tp, what: units // tp),
    ],
    ids=["nothing divided", "rounded up", "no replication"],
)
def test_a_wrong_split_is_noticed(monkeypatch, name, broken):
    """Whole shares, rounding up and heads that vanish give other bytes than published."""
    monkeypatch.setattr(parallel, name, broken)

    assert any(_per_rank(row) != row["bytes_per_token"] for row in MODELS)


def test_latents_and_indexers_are_whole_on_every_rank():
    """MLA's vector and the indexer's row do not shrink, and the note says so."""
    layers = [LayerGeometry(i, "sparse_mla", 1, 576, 0, rope_dim=64, index_bytes_per_token=132) for i in range(61)]

    (rank,) = split(_model(layers), tp=8)

    assert price(rank.geometry, NATIVE).bytes_per_token == 61 * (576 * 2 + 132)
    assert rank.ranks == 8
    assert "does not shrink" in rank.notes[0]


def test_states_are_divided_by_their_own_units():
    """Heads are shared; groups that are fewer than ranks are padded to one a rank; whole states stay."""
    parts = (StatePart("conv", 128 * 64 * 3, "native", 128), StatePart("conv_groups", 2 * 128 * 3, "native", 1))
    layer = LayerGeometry(0, "mamba", 0, 0, 0, state=(*parts, StatePart("kept", 10, "f32", 0)))

    (rank,) = split(_model([layer]), tp=4)

    assert [p.elements for p in rank.geometry.layers[0].state] == [128 * 64 * 3 // 4, 2 * 128 * 3, 10]


def test_uneven_states_are_rounded_up_and_noted():
    """24 heads on 16 ranks: two a rank at most, and a note for the person."""
    layer = LayerGeometry(0, "mamba", 0, 0, 0, state=(StatePart("ssm", 24 * 100, "f32", 24),))

    (rank,) = split(_model([layer]), tp=16)

    assert rank.geometry.layers[0].state[0].elements == 200
    assert "24 parts of the ssm state" in rank.notes[0]


@pytest.mark.parametrize(
    ("engine", "layers", "pp", "sizes"),
    [
        # vLLM leaves the first and the last stage small; SGLang fills the last, TensorRT-LLM the first.
        ("vllm", 64, 4, (16, 16, 16, 16)),
        ("vllm", 61, 4, (15, 15, 16, 15)),
        ("vllm", 62, 4, (15, 16, 16, 15)),
        ("vllm", 63, 4, (16, 16, 16, 15)),
        ("sglang", 61, 4, (15, 15, 15, 16)),
        ("sglang", 63, 4, (15, 16, 16, 16)),
        ("trtllm", 61, 4, (16, 15, 15, 15)),
        # The output is one more layer on the last of equal devices.
        ("llama_cpp", 64, 2, (33, 31)),
    ],
)
def test_stages_are_cut_as_the_engine_cuts_them(engine, layers, pp, sizes):
    """Left-over layers go where this engine puts them."""
    found = split(_plain(layers), pp=pp, tp=2, dp=3, engine=engine)

    assert tuple(len(r.geometry.layers) for r in found) == sizes
    assert [r.name for r in found] == [f"pp{i}/tp0 of {2 * pp}" for i in range(pp)]
    assert {r.ranks for r in found} == {6}
    assert [(r.first_layer, r.last_layer) for r in found][-1] == (layers - sizes[-1], layers)


def test_stages_count_layers_without_a_cache_too():
    """A hybrid's attention layers fall where their numbers are: stages have unequal caches."""
    layers = [LayerGeometry(i, "full_attention", 8, 128, 128) for i in (3, 7, 11, 15)]

    found = split(_model(layers, layer_count=18), pp=3)

    assert [[x.index for x in r.geometry.layers] for r in found] == [[3], [7, 11], [15]]


def test_a_partition_is_taken_as_given():
    """VLLM_PP_LAYER_PARTITION and llama.cpp's measured split."""
    assert [len(r.geometry.layers) for r in split(_plain(64), pp=2, partition=(41, 23))] == [41, 23]
    assert split_by_weight(64, (41, 24)) == (41, 23)
    assert split_by_weight(4, (0, 1)) == (0, 4)


def test_the_engines_own_words_cut_too():
    """The environment variables of vLLM and SGLang, and llama.cpp's weights, by the options of a serving."""

    def sizes(engine, **options):
        return [len(r.geometry.layers) for r in split(_plain(64), pp=2, engine=engine, options=options)]

    assert sizes("vllm", VLLM_PP_LAYER_PARTITION="40,24") == [40, 24]
    assert sizes("sglang", SGLANG_PP_LAYER_PARTITION="24,40") == [24, 40]
    assert sizes("llama_cpp", **{"tensor-split": "41,24"}) == [41, 23]
    assert sizes("vllm", other="1") == [32, 32]
    with pytest.raises(UserError, match="names 3 devices, pp 2"):
        sizes("llama_cpp", **{"tensor-split": "1,1,1"})
    with pytest.raises(UserError, match="whole numbers between commas"):
        sizes("vllm", VLLM_PP_LAYER_PARTITION="40;24")


def test_multi_token_prediction_is_on_the_last_stage():
    """Its layers are cached with the last stage."""
    mtp = LayerGeometry(4, "full_attention", 8, 128, 128)

    found = split(_plain(4, mtp=[mtp]), pp=2, tp=8)

    assert [len(r.geometry.mtp_layers) for r in found] == [0, 1]
    assert found[1].geometry.mtp_layers[0].kv_heads == 1


def test_positions_are_sharded_in_full_layers_only():
    """Windows and cross attention stay whole under decode context parallelism."""
    full = LayerGeometry(0, "full_attention", 1, 128, 128)

    assert sharded_tokens(full, 1001, 4) == 251
    assert sharded_tokens(LayerGeometry(0, "sliding_window", 1, 1, 1, 128), 1001, 4) == 1001
    assert sharded_tokens(LayerGeometry(0, "cross_attention", 1, 1, 1, fixed_tokens=1500), 1001, 4) == 1001


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tp": 0}, "tp 0 is not a number of ranks"),
        ({"pp": -1}, "pp -1"),
        ({"dp": 10**6}, "dp 1000000"),
        ({"tp": 4}, "10 KV heads, which 4 tensor-parallel ranks cannot share.*allowed: 1, 2, 5, 10"),
        ({"tp": 2, "dcp": 4}, "dcp 4 does not divide tp 2"),
        ({"pp": 41}, "40 layers cannot be cut into 41 stages"),
        ({"pp": 2, "partition": (20, 21)}, "does not cut 40 layers into 2 stages"),
        ({"pp": 2, "partition": (40,)}, "does not cut 40 layers into 2 stages"),
    ],
)
def test_senseless_sizes_are_refused(sizes, says):
    """One line with what would do; phi-4's ten heads on four ranks among them."""
    with pytest.raises(UserError, match=says):
        split(_plain(40, heads=10), **sizes)


@pytest.mark.parametrize("weights", [(), (-1, 2), (0, 0)])
def test_senseless_tensor_splits_are_refused(weights):
    """No weights, negative ones and only zeros are no split."""
    with pytest.raises(UserError, match="is not a split"):
        split_by_weight(4, weights)
