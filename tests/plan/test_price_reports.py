"""Sizes that people reported from running engines, as the planner's arithmetic has them. One row a public report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.core.units import GIB_BYTES, MIB_BYTES
from kvgate.plan.concurrency import cost, ideal
from kvgate.plan.parallel import split
from kvgate.plan.price import price, sequence_bytes
from kvgate.plan.terms import Budget, Term

HERE = Source("spec", "public report")
GQA = LayerGeometry(0, "full_attention", 8, 128, 128)
SPARSE = LayerGeometry(0, "sparse_mla", 1, 576, 0, rope_dim=64, index_bytes_per_token=132)
MLA = replace(SPARSE, kind="mla", index_bytes_per_token=0)


def model(count: int, layer: LayerGeometry) -> ModelGeometry:
    layers = tuple(replace(layer, index=i) for i in range(count))
    return ModelGeometry("reported", "reported", layers, 262_144, 1000, HERE, layer_count=count)


QWEN3_CODER_480B = model(62, GQA)


def test_fp8_weights_do_not_make_the_cache_fp8() -> None:
    """vllm recipes pull 12: with DP 8 each replica caches whole sequences, 62 GiB of BF16 at 262,144 tokens."""
    (share,) = split(QWEN3_CODER_480B, dp=8)
    bf16, fp8 = (price(share.geometry, parse(r)) for r in ("bf16", "fp8_e4m3"))

    assert bf16.bytes_per_token == 253_952
    assert sequence_bytes(bf16, 262_144) == 62 * GIB_BYTES
    assert sequence_bytes(fp8, 262_144) == 31 * GIB_BYTES


@pytest.mark.parametrize(("gib", "printed"), [(48.66, 205_728), (55.65, 235_296)])
def test_the_longest_context_that_fits(gib: float, printed: int) -> None:
    """The same report's estimated maximum lengths: whole blocks of 16 of the ideal tokens.

    A budget printed with two decimals is known to 0.005 GiB, which is 21 tokens here; and one block of 16 is open.
    """
    budget = Budget("gpu0", (Term("KV memory", int(gib * GIB_BYTES), "as printed", HERE),))
    found = ideal([cost("gpu0", [price(QWEN3_CODER_480B, parse("bf16"))])], [budget], context_tokens=1)
    open_tokens = 0.005 * GIB_BYTES / 253_952

    assert abs(found.tokens // 16 * 16 - printed) <= 16 + open_tokens
    assert abs(found.tokens // 16 * 16 - printed * 8 // 7) > 16 + open_tokens, "another layer count is told apart"


@pytest.mark.parametrize(
    ("tokens", "kv_bytes", "recipe", "layer"),
    [
        # sgl-project/sglang pull 11309: before the indexer was counted, and after.
        (1_462_784, 54.52 * GIB_BYTES, "fp8_e4m3", replace(SPARSE, index_bytes_per_token=0)),
        (975_424, 43.67 * GIB_BYTES, "fp8_e4m3", SPARSE),
    ],
)
def test_packed_rows_and_the_indexer(tokens: int, kv_bytes: float, recipe: str, layer: LayerGeometry) -> None:
    """656 bytes of packed row and 132 of index key a layer, to the two decimals of the log and one page of 64."""
    per_token = price(model(61, layer), parse(recipe), engine="sglang").bytes_per_token
    open_bytes = 0.005 * GIB_BYTES + 64 * per_token

    assert abs(tokens * per_token - kv_bytes) <= open_bytes
    assert abs(tokens * 61 * 576 - kv_bytes) > open_bytes, "plain FP8 rows are told apart"


def test_fp8_on_sparse_mla_is_not_half() -> None:
    """The gain is 1.63 with the indexer and 1.76 without it."""
    for layer, gain in ((SPARSE, 1.63), (replace(SPARSE, index_bytes_per_token=0), 1.76)):
        bf16, fp8 = (price(model(61, layer), parse(r)).bytes_per_token for r in ("bf16", "fp8_e4m3"))
        assert round(float(bf16 / fp8), 2) == gain


def test_mla_does_not_shrink_with_tensor_parallelism() -> None:
    """tenstorrent/tt-xla issue 5861: a budget times TP over-commits, since every rank holds the whole latent."""
    for tp in (1, 4, 8):
        (share,) = split(model(61, MLA), tp=tp)
        assert price(share.geometry, parse("bf16")).bytes_per_token == 70_272


def test_fp8_doubles_to_within_a_block() -> None:
    """vllm issue 42058, Qwen3-8B on an A100: 389,872 tokens in BF16 and 779,760 in FP8, one block more than twice."""
    bf16, fp8 = (price(model(36, GQA), parse(r)).bytes_per_token for r in ("bf16", "fp8_e4m3"))

    assert (bf16, fp8) == (147_456, 73_728)
    # The pool lies between the printed BF16 tokens and one block more; so do the FP8 tokens that it holds.
    least, most = 389_872 * bf16, (389_872 + 16) * bf16
    assert least // fp8 <= 779_760 <= most // fp8


def test_q8_0_is_not_half() -> None:
    """ggml-org/llama.cpp issue 11200: 32,768 tokens of a 64-layer model are 4,352 MiB in q8_0 and 8,192 in f16."""
    sizes = {r: sequence_bytes(price(model(64, GQA), parse(r)), 32_768) for r in ("f16", "q8_0")}

    assert sizes == {"f16": 8192 * MIB_BYTES, "q8_0": 4352 * MIB_BYTES}
