"""Cold-page NVFP4: what moves, what it costs, and what many cycles do."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import parse
from kvgate.formats.codec import codecs
from kvgate.methods import spec
from kvgate.methods.cold_page_nvfp4 import ColdPageNvfp4, PageTier
from kvgate.methods.spec import Window

LAYER = LayerGeometry(0, "full_attention", 2, 128, 128)
Floats = npt.NDArray[np.float32]


def kv(rng: np.random.Generator, tokens: int = 96) -> Floats:
    """N(0, 1) with loud channels."""
    x = rng.standard_normal((1, 2, tokens, 128)) * np.exp(0.5 * rng.standard_normal(128))
    return x.astype(np.float32)


def cycled(tier: PageTier, times: int) -> list[Floats]:
    """What is read after each of so many trips of all pages."""
    found = []
    for _ in range(times):
        tier.offload(range(tier.count))
        tier.onboard(range(tier.count))
        found.append(tier.read())
    return found


@pytest.mark.parametrize("hot", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("scale", [None, 0.02])
def test_the_second_trip_changes_nothing(hot: str, scale: float | None, rng: np.random.Generator) -> None:
    """With a hot dtype of 16 or 32 bits, twenty trips leave what the first one left, to the bit."""
    x = kv(rng)
    reads = cycled(PageTier(x, hot=hot, scale=scale), 20)

    assert not np.array_equal(reads[0], x)
    assert all(np.array_equal(r, reads[0]) for r in reads[1:])


def test_tiny_blocks_may_move_again(rng: np.random.Generator) -> None:
    """Below 0.094 of the global scale a block's E4M3 scale is subnormal: a second trip moves some, and it ends.

    A global scale that fits the values (here 1/1000) keeps them out of that.
    """
    x = kv(rng, 960) * np.float32(0.004)
    reads = cycled(PageTier(x), 12)
    moved = [int((a != b).sum()) for a, b in itertools.pairwise(reads)]
    scaled = cycled(PageTier(x, scale=0.001), 3)

    assert moved[0] > 0
    assert moved[-1] == 0
    assert np.array_equal(scaled[0], scaled[2])
    assert np.abs(scaled[0] - x).mean() < np.abs(reads[-1] - x).mean()


def test_fp8_pages_round_on_the_first_trip_only(rng: np.random.Generator) -> None:
    """A hot cache in FP8 cannot hold every product of element and scale; it rounds them once, and then nothing moves.

    Rounding moves a value by 1/16 at most, which leaves the block its scale and every element its code.
    """
    x = codecs["fp8_e4m3"].roundtrip(kv(rng, 960))
    reads, exact = cycled(PageTier(x, hot="fp8_e4m3"), 10), cycled(PageTier(x), 1)

    assert not np.array_equal(reads[0], exact[0])
    assert all(np.array_equal(r, reads[0]) for r in reads[1:])


def test_pages_move_one_by_one(rng: np.random.Generator) -> None:
    """Only the pages named are encoded; bytes are counted on both sides; moving twice is moving once."""
    x = kv(rng).astype(np.float16)
    tier = PageTier(x)
    page_hot, page_cold = 2 * 32 * 128 * 2, 2 * 32 * 128 * 9 // 16
    assert (tier.count, tier.hot_bytes(), tier.cold_bytes()) == (3, 3 * page_hot, 0)

    tier.offload([1])
    tier.offload([1])
    assert (tier.hot_bytes(), tier.cold_bytes()) == (2 * page_hot, page_cold)
    read = tier.read()
    assert np.array_equal(read[:, :, :32], x[:, :, :32].astype(np.float32))
    assert np.array_equal(
        read[:, :, 32:64], np.float32(np.float16(codecs["nvfp4"].roundtrip(x[:, :, 32:64].astype(np.float32))))
    )

    tier.onboard([0, 1])
    assert (tier.hot_bytes(), tier.cold_bytes()) == (3 * page_hot, 0)
    assert np.array_equal(tier.read(), read)


def test_the_stream_is_one_trip_of_whole_pages(rng: np.random.Generator) -> None:
    """First and recent tokens stay out of it in whole pages, and so does a page that is not full."""
    x = kv(rng, 200)
    side = parse("cold_page_nvfp4:page=32").k
    assert side is not None
    stream = ColdPageNvfp4().open("k", {}, LAYER, window=Window(residual_tokens=33, sink_tokens=1))
    stream.append(x)

    assert stream.encoded(200) == range(32, 128)  # 200 - 64 = 136 leaves three whole pages behind the first
    tier = PageTier(x[:, :, 32:128])
    tier.offload(range(3))
    assert np.array_equal(stream.read()[:, :, 32:128], tier.read())
    assert np.array_equal(stream.read()[:, :, :32], x[:, :, :32])


def test_the_planner_counts_hot_bytes() -> None:
    """On the GPU nothing gets smaller; on the host an element takes 9/16 of a byte."""
    side = parse("cold_page_nvfp4").k
    assert side is not None
    storage = ColdPageNvfp4().storage("k", {})

    assert spec.storage_of(side, "k", Window(64, 32)).slot_bytes(LAYER, "k") == 2 * 128 * 2
    assert spec.storage_of(side, "k", Window(64, 32)).fixed_bytes(LAYER) == 0
    assert spec.storage_of(side, "k", Window(native_bytes=1)).slot_bytes(LAYER, "k") == 2 * 128
    assert storage.cold_row_bytes(128) == 72


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PageTier(np.ones((1, 1, 33, 128), np.float32)), "not whole pages of 32"),
        (lambda: PageTier(np.ones((1, 1, 32, 128), np.float64)), "not float64"),
        (lambda: ColdPageNvfp4().storage("k", {"page": "20"}), "page=20 is not possible"),
        (lambda: ColdPageNvfp4().storage("k", {}).row_bytes(24), "24 is not a multiple of 16"),
    ],
)
def test_refusals(make: object, says: str) -> None:
    """Broken pages, other dtypes, page sizes and heads that NVFP4 cannot hold."""
    with pytest.raises(UserError, match=says):
        make()  # type: ignore[operator]
