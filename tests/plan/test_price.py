"""Ideal bytes of recipes: from the codecs' rows, per cache, with everything that a recipe may keep native."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.plan.price import price, sequence_bytes


def model(*layers: LayerGeometry, **more: object) -> ModelGeometry:
    return replace(
        ModelGeometry("toy", "toy", layers, 131_072, 1000, Source("spec", "made for this test")),
        **more,  # type: ignore[arg-type]
    )


def stack(count: int, layer: LayerGeometry, first: int = 0) -> tuple[LayerGeometry, ...]:
    return tuple(replace(layer, index=first + i) for i in range(count))


GQA = LayerGeometry(0, "full_attention", 8, 128, 128)
SLIDING = LayerGeometry(0, "sliding_window", 16, 128, 128, window_tokens=1024)
MLA = LayerGeometry(0, "mla", 1, 576, 0, rope_dim=64)
QWEN3_32B = model(*stack(64, GQA))


@pytest.mark.parametrize(
    ("recipe", "per_token"),
    [
        ("native", 262_144),
        ("bf16", 262_144),
        ("fp8_e4m3", 131_072),
        ("q8_0", 139_264),
        ("k=q8_0,v=q4_0", 64 * 8 * (136 + 72)),
        ("nvfp4", 131_072 * 9 // 16),
    ],
)
def test_rows_come_from_the_codecs(recipe: str, per_token: int) -> None:
    """Bytes per token are heads times the codec's row, K and V apart."""
    priced = price(QWEN3_32B, parse(recipe))

    assert priced.bytes_per_token == per_token
    assert priced.growth_bytes_per_token == per_token
    assert sequence_bytes(priced, 32_768) == 32_768 * per_token


def test_a_window_bounds_what_a_sequence_holds() -> None:
    """A windowed layer counts in the bytes per token, not in the growth, and holds at most its window."""
    priced = price(
        model(*stack(10, replace(SLIDING, kind="full_attention", window_tokens=None)), *stack(52, SLIDING, 10)),
        parse("bf16"),
    )

    assert (priced.bytes_per_token, priced.growth_bytes_per_token) == (507_904, 81_920)
    assert sequence_bytes(priced, 512) == 512 * 507_904
    assert sequence_bytes(priced, 32_768) == 32_768 * 81_920 + 1024 * (507_904 - 81_920)


def test_states_and_cross_attention_are_fixed_bytes() -> None:
    """States count once a sequence, in their own dtype or the native one; cross attention once for its source."""
    state = (StatePart("conv", 100), StatePart("ssm", 1000, "f32"))
    cross = LayerGeometry(2, "cross_attention", 2, 64, 64, fixed_tokens=1500)
    priced = price(
        model(replace(GQA, kv_heads=0, state=state, kind="linear_attention"), replace(GQA, index=1), cross),
        parse("bf16"),
    )

    assert priced.bytes_per_token == 4096
    assert priced.fixed_bytes_per_sequence == 100 * 2 + 1000 * 4 + 1500 * 2 * 128 * 2


def test_compressed_rows_are_fractions() -> None:
    """A row that four tokens share costs a quarter of itself per token, and a begun row its whole room."""
    layer = LayerGeometry(0, "full_attention", 1, 512, 0, tokens_per_row=4, index_bytes_per_token=132)
    priced = price(model(layer), parse("bf16"))

    assert priced.bytes_per_token == Fraction(1024 + 132, 4)
    assert sequence_bytes(priced, 5) == 2 * 1156


def test_one_vector_has_one_type() -> None:
    """A latent layer stores K only; K and V recipes that differ are refused with what to write."""
    assert price(model(*stack(61, MLA)), parse("bf16")).bytes_per_token == 70_272
    assert price(model(*stack(61, MLA)), parse("fp8_e4m3")).bytes_per_token == 35_136
    with pytest.raises(UserError, match=r"one vector for K and V.*write q8_0"):
        price(model(MLA), parse("k=q8_0,v=q4_0"))


HYBRID = model(*stack(4, replace(SLIDING, kv_heads=8, window_tokens=128)), *stack(4, GQA, 4), layer_count=8)


@pytest.mark.parametrize(
    ("recipe", "native_layers"),
    [
        ("fp8_e4m3/keep=sliding_window", {0, 1, 2, 3}),
        ("fp8_e4m3/keep=L0-1,L7", {0, 1, 7}),
        ("fp8_e4m3/keep=L3,full_attention", {3, 4, 5, 6, 7}),
        ("fp8_e4m3", set()),
    ],
)
def test_kept_layers_stay_native(recipe: str, native_layers: set[int]) -> None:
    """`keep=` takes layer kinds and numbers, both sides of them native."""
    priced = price(HYBRID, parse(recipe), native="bf16")

    assert {p.layer.index for p in priced.layers if p.k == p.v == "bf16"} == native_layers
    assert {p.layer.index for p in priced.layers if p.k == p.v == "fp8_e4m3"} == set(range(8)) - native_layers
    assert priced.bytes_per_token == sum(4096 if n in native_layers else 2048 for n in range(8))


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("fp8_e4m3/keep=chunked_attention", "no layers of that kind; allowed: full_attention, sliding_window"),
        ("fp8_e4m3/keep=L8", "has the layers L0 to L7"),
        ("fp8_e4m3/keep=L6-9", "has the layers L0 to L7"),
        ("no_such_codec", "unknown codec or method 'no_such_codec'; allowed: bf16"),
    ],
)
def test_what_the_model_does_not_have_is_refused(recipe: str, says: str) -> None:
    """A kind, a layer or a codec that is not there is one line with what there is."""
    with pytest.raises(UserError) as error:
        price(HYBRID, parse(recipe))

    assert says in str(error.value)


def test_a_head_that_a_block_does_not_divide_is_refused() -> None:
    """q8_0 on heads of 80 names the block and what fits."""
    with pytest.raises(UserError, match="80 is not a multiple of 32"):
        price(model(replace(GQA, k_dim=80, v_dim=80)), parse("q8_0"))


def test_native_tokens_beside_stored_ones_cost_the_difference() -> None:
    """A residual window and sinks are native instead of stored, so they add native minus stored bytes once."""
    plain = price(model(GQA), parse("q8_0"), native="f16")
    windowed = price(model(GQA), parse("q8_0/residual=128/sink=4"), native="f16")
    native, stored = 4096, 8 * 2 * 136

    assert windowed.bytes_per_token == plain.bytes_per_token
    assert sequence_bytes(windowed, 1000) == 1000 * stored + 132 * (native - stored)
    assert sequence_bytes(windowed, 100) == 100 * native, "a sequence shorter than the window is just native"
    assert sequence_bytes(windowed, 132) == 132 * native
    assert sequence_bytes(windowed, 133) == 132 * native + stored


def test_boundary_layers_of_a_method_stay_native_on_dense_models() -> None:
    """vLLM's TurboQuant leaves the first and last two layers native, except in models with recurrent layers."""
    dense = price(QWEN3_32B, parse("turboquant_4bit_nc"), native="bf16")
    state = LayerGeometry(64, "linear_attention", 0, 0, 0, state=(StatePart("ssm", 10),))
    hybrid = price(model(*stack(64, GQA), state), parse("turboquant_4bit_nc"), native="bf16")

    assert [p.layer.index for p in dense.layers if p.k == "bf16"] == [0, 1, 62, 63]
    assert dense.bytes_per_token == 4 * 4096 + 60 * 8 * 134
    assert not [p for p in hybrid.layers if p.k == "bf16"]


SPARSE = replace(MLA, kind="sparse_mla", index_bytes_per_token=132)


@pytest.mark.parametrize(
    ("layer", "recipe", "engine", "row"),
    [
        (SPARSE, "fp8_e4m3", "vllm", 656 + 132),
        (SPARSE, "fp8_e4m3", "sglang", 656 + 132),
        (SPARSE, "fp8_e4m3", "", 656 + 132),
        (SPARSE, "fp8_e4m3", "lab", 576 + 132),
        (SPARSE, "nvfp4_ds_mla", "vllm", 352 + 132),
        (SPARSE, "bf16", "vllm", 1152 + 132),
        (SPARSE, "fp8_e4m3/keep=sparse_mla", "vllm", 1152 + 132),
        (MLA, "fp8_e4m3", "vllm", 576),
        (MLA, "fp8_ds_mla", "vllm", 656),
        (replace(SPARSE, k_dim=512, tokens_per_row=4), "fp8_e4m3", "vllm", Fraction(584 + 132, 4)),
    ],
)
def test_sparse_mla_is_packed_by_engines_that_have_only_packed_kernels(
    layer: LayerGeometry, recipe: str, engine: str, row: int | Fraction
) -> None:
    """FP8 on sparse MLA is 656 bytes a row on vLLM and SGLang, not 576; the indexer's key is FP8 in any recipe."""
    assert price(model(layer), parse(recipe), native="bf16", engine=engine).bytes_per_token == row


def test_scales_of_tokens_and_heads_lie_inline() -> None:
    """A scale per tensor or head is outside the cache; one per token and head is four bytes in each row."""
    plain, head = price(QWEN3_32B, parse("fp8_e4m3")), price(QWEN3_32B, parse("fp8_e4m3:head@checkpoint"))
    token_head = price(QWEN3_32B, parse("fp8_e4m3:token_head"))

    assert plain.bytes_per_token == head.bytes_per_token == 131_072
    assert token_head.bytes_per_token == 64 * 8 * 264 == price(QWEN3_32B, parse("fp8_per_token_head")).bytes_per_token


def test_native_is_what_the_engine_computes_in() -> None:
    """llama.cpp's default cache is f16 and its states are f32; vLLM runs a float32 checkpoint in 16 bits."""
    state = (StatePart("conv", 100),)
    both = model(GQA, replace(GQA, index=1, kv_heads=0, kind="linear_attention", state=state), native_dtype="f32")

    assert price(both, parse("native")).layers[0].k == "f32"
    assert price(both, parse("native"), engine="vllm").layers[0].k == "bf16"
    assert price(both, parse("native"), engine="llama_cpp").layers[0].k == "f16"
    assert price(both, parse("native"), engine="llama_cpp").layers[1].state_bytes == 400
    assert price(both, parse("native"), engine="vllm").layers[1].state_bytes == 200


def test_cross_attention_stays_native_where_the_engine_keeps_it() -> None:
    """TensorRT-LLM quantizes only the decoder's self attention."""
    cross = LayerGeometry(0, "cross_attention", 2, 64, 64, fixed_tokens=10)

    assert price(model(cross), parse("fp8_e4m3"), engine="vllm").fixed_bytes_per_sequence == 10 * 2 * 128
    assert price(model(cross), parse("fp8_e4m3"), engine="trtllm").fixed_bytes_per_sequence == 10 * 2 * 128 * 2


def test_layers_of_multi_token_prediction_count_only_when_they_run() -> None:
    """Speculation by the model's own extra layers costs their cache."""
    spoken = model(GQA, mtp_layers=(replace(GQA, index=1),))

    assert price(spoken, parse("bf16")).bytes_per_token == 4096
    assert price(spoken, parse("bf16"), mtp=True).bytes_per_token == 8192


def test_no_layers_and_no_length_are_refused() -> None:
    """A model without a cache and a sequence of negative length do not have a price."""
    with pytest.raises(UserError, match="no layers with a KV cache"):
        price(model(), parse("bf16"))
    with pytest.raises(UserError, match="a sequence of -1 tokens does not exist"):
        sequence_bytes(price(model(GQA), parse("bf16")), -1)
