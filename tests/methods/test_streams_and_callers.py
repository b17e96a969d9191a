"""Streams beside their callers: memory of their own, refusals that change nothing, arrays of a wrong kind."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import parse
from kvgate.methods import residual_window, spec
from kvgate.methods.cold_page_nvfp4 import PageTier
from kvgate.methods.kvquant import KVQuantTables
from kvgate.methods.stream import LayerStream, open_layer

LAYER = LayerGeometry(4, "full_attention", 2, 64, 64)
ONE_HEAD = LayerGeometry(0, "mla", 1, 64, 0)
RECIPES = ("kivi", "q8_0", "q8_0/residual=16/sink=4", "native", "cold_page_nvfp4", "turboquant_4bit_nc/residual=50")

LEVELS = tuple(float(v) for v in np.linspace(-1, 1, 8))
LOW, HIGH = -np.ones((2, 64), np.float32), np.ones((2, 64), np.float32)


def opened(recipe: str, keep_decoded: bool = False) -> LayerStream:
    return open_layer(parse(recipe), LAYER, keep_decoded=keep_decoded)


def values(tokens: int = 40, batch: int = 1) -> Any:
    return np.random.default_rng(3).standard_normal((batch, 2, tokens, 64)).astype(np.float32)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("keep_decoded", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_caller_may_use_its_arrays_again(recipe: str, keep_decoded: bool, library: str) -> None:
    """Neither what was appended nor what was read is memory of the stream's."""
    import torch

    x = values() if library == "numpy" else torch.from_numpy(values())
    stream = opened(recipe, keep_decoded)
    stream.append(x, x)
    held = np.asarray(stream.read().k).copy()
    x[:] = 99
    assert np.array_equal(np.asarray(stream.read().k), held)

    stream.read().k[:] = 77
    assert np.array_equal(np.asarray(stream.read().k), held)


def test_pages_are_their_own_memory() -> None:
    """A page that was handed over does not change with the caller's array."""
    x = values(64)
    tier = PageTier(x[:, :1])  # pages of one head lie in one piece
    held = tier.read()
    x[:] = 99

    assert np.array_equal(tier.read(), held)


@pytest.mark.parametrize("recipe", ["q8_0/sink=4", "q8_0/residual=4", "kivi/residual=32"])
def test_a_few_native_tokens_do_not_hold_the_others(recipe: str) -> None:
    """What stays native of a long chunk is a copy, not a window onto the whole of it."""
    layer = ONE_HEAD
    stream = open_layer(parse(recipe), layer).k
    stream.append(np.zeros((1, 1, 1001, 64), np.float32))

    for part in (*stream._sink, *stream._recent):
        owner = part
        while owner.base is not None:
            owner = owner.base
        assert owner.nbytes == part.nbytes


STORED = (
    "q4_0+hadamard/residual=9/sink=3",
    "q8_0+smooth_k",
    "kivi/residual=32",
    "kvarn:group=64",
    "kvquant",
    "turboquant:bits=3:qjl=1",
    "turboquant_4bit_nc",
    "turboquant_3bit_nc",
    "turboquant_k8v4",
    "ultraquant_4bit",
    "polarquant",
    "qjl",
    "cold_page_nvfp4:page=16",
    "int4_per_token_head",
)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("recipe", STORED)
def test_work_in_small_chunks_changes_nothing(recipe: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few elements are worked on at once, bytes and values are the same."""
    import torch

    x = values(150, batch=2) if library == "numpy" else torch.from_numpy(values(150, batch=2))
    found = []
    for elements in (residual_window.CHUNK_ELEMENTS, 5000):
        monkeypatch.setattr(residual_window, "CHUNK_ELEMENTS", elements)
        tables = {"k": KVQuantTables(LEVELS, LOW, HIGH), "v": KVQuantTables(LEVELS)} if recipe == "kvquant" else None
        stream = open_layer(parse(recipe), LAYER, tables=tables)  # type: ignore[arg-type]
        stream.append(x, x)
        read = stream.read()
        found.append({"k": read.k, "v": read.v, **stream.packed()})

    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(np.array_equal(other[name], found[0][name]) for name in other)


def test_temporaries_of_a_long_chunk_are_bounded() -> None:
    """Appending 8 MiB needs the native copy, one more, and the temporaries of one chunk of elements."""
    x = np.random.default_rng(0).standard_normal((1, 2, 16384, 64)).astype(np.float32)
    stream = open_layer(parse("turboquant_4bit_nc"), replace(LAYER, v_dim=0)).k
    stream.append(x[:, :, :64])
    tracemalloc.start()
    stream.append(x[:, :, 64:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # Without chunks it is over six times the input; a chunk has up to twelve temporaries.
    assert peak < 2 * x.nbytes + 12 * 4 * residual_window.CHUNK_ELEMENTS


@pytest.mark.parametrize("wrong", ["nan in v", "nan in k", "short v", "v of another library", "v of two sequences"])
def test_what_is_refused_changes_neither_side(wrong: str) -> None:
    """A refused step leaves K and V as they were, and the next one goes on."""
    import torch

    x = values()
    bad = x.copy()
    bad[0, 1, 7, 5] = np.nan
    pairs: dict[str, tuple[Any, Any]] = {
        "nan in v": (x, bad),
        "nan in k": (bad, x),
        "short v": (x, x[:, :, 1:]),
        "v of another library": (x, torch.from_numpy(x)),
        "v of two sequences": (x, np.concatenate([x, x])),
    }
    stream, want = opened("kivi"), opened("kivi")
    for s in (stream, want):
        s.append(x, x)
    with pytest.raises(UserError):
        stream.append(*pairs[wrong])
    for s in (stream, want):
        s.append(x, x)

    assert stream.tokens == 80
    assert np.array_equal(stream.read().v, want.read().v)


def test_a_refused_first_append_decides_nothing() -> None:
    """Batch, library and dtype are those of the first tokens that were taken."""
    stream = opened("kivi")
    bad = np.full((2, 2, 3, 64), np.inf, np.float16)
    with pytest.raises(UserError, match="k of layer 4 holds a NaN or an infinity"):
        stream.append(bad, bad)
    stream.append(values(), values())

    assert stream.tokens == 40


def test_native_tokens_are_not_narrowed_in_silence() -> None:
    """Float16 tokens take no float32 behind them, unless the stream was told so; float32 holds the others exactly."""
    x = values(5)
    half = x.astype(np.float16)
    stream = opened("kivi")
    stream.append(half, half)
    with pytest.raises(UserError, match="holds native tokens in f16, and the array is f32"):
        stream.append(x, x)

    told = open_layer(parse("kivi"), LAYER, native="f16")
    told.append(half, half)
    told.append(x, x)
    wide = opened("kivi")
    wide.append(x, x)
    wide.append(half, half)
    assert np.array_equal(told.read().k[:, :, 5:], half.astype(np.float32))
    assert np.array_equal(wide.read().k[:, :, 5:], half.astype(np.float32))


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_tokens_read_as_no_tokens(recipe: str) -> None:
    """After an empty chunk there is an empty array to read."""
    stream = opened(recipe)
    stream.append(values(0), values(0))

    assert stream.read().k.shape == (1, 2, 0, 64)
    assert stream.read().k.dtype == np.float32


@pytest.mark.parametrize(
    ("k", "says"),
    [
        ([1.0], "numpy arrays and torch tensors, not list"),
        (np.ones(64, np.float32), r"and the array is \(64,\)"),
        (np.float32(1), "numpy arrays and torch tensors"),
        (np.ones((0, 2, 3, 64), np.float32), "holds no sequence"),
        (np.ones((1, 2, 3, 64), bool), "not bool"),
        (np.ones((1, 2, 3, 64), complex), "not complex128"),
    ],
)
@pytest.mark.parametrize("recipe", ["kivi", "q8_0", "native"])
def test_what_is_no_chunk_of_tokens(recipe: str, k: Any, says: str) -> None:
    """One line, from the first look."""
    with pytest.raises(UserError, match=says):
        opened(recipe).append(k, k)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("q8_0:bits=2", "a codec takes no 'bits'"),
        ("q8_0+nonsense", "unknown method 'nonsense'"),
        ("q8_0+hadamart", "did you mean 'hadamard'"),
        ("kivii", "did you mean 'kivi'"),
        ("q8_0+kivi", "kivi is no transform"),
        ("q4_0+hadamard+hadamard", "hadamard is given twice"),
        ("q4_0+none+hadamard", "none stands alone"),
        ("fp8_e4m3:head:tensor", "'scale' is given twice"),
    ],
)
def test_what_cannot_be_opened_has_no_size(recipe: str, says: str) -> None:
    """The planner refuses the same recipes as the arithmetic."""
    side = parse(recipe).k
    assert side is not None
    with pytest.raises(UserError, match=says):
        spec.storage_of(side, "k")
    with pytest.raises(UserError, match=says):
        opened(recipe)


def test_a_method_that_is_not_there_has_a_nearest() -> None:
    """Looking one up by name suggests what was meant."""
    with pytest.raises(UserError, match="did you mean 'polarquant'"):
        spec.method("polar_quant")


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.ones((2, 64), int), "floating-point values, not int64"),
        (np.ones((2, 64), bool), "floating-point values, not bool"),
        (np.ones((2, 100), np.float32), "rows of a multiple of 64"),
        (np.ones((), np.float32), "rows of a multiple of 64"),
    ],
)
@pytest.mark.parametrize("way", ["forward", "inverse", "query"])
def test_rotations_take_floating_point_rows(way: str, x: Any, says: str) -> None:
    """Integers would come out as zeros."""
    bound = spec.method("hadamard").bind("k", 64, "q8_0")  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=says):
        getattr(bound, way)(x)
    for dtype in (np.float16, np.float32, np.float64, ">f4"):
        assert getattr(bound, way)(np.ones((2, 64), dtype)).max() == 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"upper": HIGH * np.inf}, "not a finite float32"),
        ({"upper": HIGH * np.nan}, "not a finite float32"),
        ({"lower": LOW * 3e38, "upper": HIGH * 3e38}, "not a finite float32"),
        ({"lower": HIGH.astype(float), "upper": HIGH.astype(float) + 1e-12}, "not above its lower one"),
        ({"upper": HIGH.astype(complex)}, "complex numbers"),
        ({"read_levels": (float("nan"),) * 8}, "as read back are not finite"),
        ({"read_levels": LEVELS[:4]}, "need 8 levels, and the tables have 4"),
    ],
)
def test_kvquant_tables_that_would_store_nonsense(change: dict[str, Any], says: str) -> None:
    """Thresholds that are no range in float32, and levels to read back that are no numbers."""
    tables = replace(KVQuantTables(LEVELS, LOW, HIGH), **change)
    with pytest.raises(UserError, match=says):
        open_layer(parse("kvquant"), LAYER, tables={"k": tables, "v": KVQuantTables(LEVELS)})


def test_kvquant_thresholds_may_be_bfloat16_tensors() -> None:
    """Tables from a calibration in torch fit, and mean the same."""
    import torch

    x, read = values(), []
    for low, high in ((LOW, HIGH), (torch.from_numpy(LOW).bfloat16(), torch.from_numpy(HIGH).bfloat16())):
        tables = {"k": KVQuantTables(LEVELS, low, high), "v": KVQuantTables(LEVELS)}
        stream = open_layer(parse("kvquant"), LAYER, tables=tables)  # type: ignore[arg-type]
        stream.append(x, x)
        read.append(stream.read().k)

    assert np.array_equal(*read)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda x: PageTier(x).offload([-1]), "there is no page -1; allowed: 0 to 1"),
        (lambda x: PageTier(x).offload([0, 2]), "there is no page 2"),
        (lambda x: PageTier(x).onboard([7]), "there is no page 7"),
        (lambda x: PageTier(x.astype(int), hot="f16"), "not int64"),
        (lambda x: PageTier(x.astype(float), hot="fp8_e4m3"), "not float64"),
        (lambda x: PageTier(x, hot="q4_0"), "cannot be hot in 'q4_0'"),
        (lambda x: PageTier(x, page=0), "a page of 0 tokens"),
        (lambda x: PageTier(x, page=-32), "a page of -32 tokens"),
        (lambda x: PageTier(x[0]), "pages are"),
        (lambda x: PageTier(x[:, :, :0]), "0 tokens are not whole pages"),
        (lambda x: PageTier(x[..., :50]), "50 is not a multiple of 16"),
    ],
)
def test_pages_that_are_not_there(make: Callable[[Any], Any], says: str) -> None:
    """Page numbers, page sizes, dtypes and shapes that no page has."""
    with pytest.raises(UserError, match=says):
        make(values(64))


def test_a_stream_of_a_refused_page_is_as_before() -> None:
    """No page moves if one of those named is not there."""
    tier = PageTier(values(64))
    with pytest.raises(UserError):
        tier.offload([0, 5])

    assert tier.cold_bytes() == 0


@pytest.mark.parametrize(
    "recipe", ["kivi/residual=32", "turboquant", "turboquant_4bit_nc", "polarquant", "kvarn:group=64"]
)
def test_float16_scales_end_where_float16_does(recipe: str) -> None:
    """Beyond 65,504 nothing finite is read, below 2**-25 zeros are; in between all values are finite. As documented."""
    x = values(128)
    for factor, finite, zero in ((1e30, False, False), (1.0, True, False), (1e-9, True, True)):
        stream = opened(recipe)
        with np.errstate(all="raise"):  # overflows on the way are nobody's warning
            stream.append(x * np.float32(factor), x * np.float32(factor))
            read = stream.read()
        for side, y in (("k", read.k), ("v", read.v)):
            span = getattr(stream, side).encoded(128)
            y = y[:, :, span.start : span.stop]
            assert bool(np.isfinite(y).all()) is finite
            assert bool(np.all(np.abs(y) <= 2.0**-24)) is zero


def test_a_constant_row_is_far_off_in_vllms_turboquant() -> None:
    """All of it is one coefficient, whose level is short of it, and zeros, which have no level."""
    x = np.full((1, 2, 3, 64), 3.7, np.float32)
    stream = opened("turboquant_4bit_nc")
    stream.append(x, x)
    read = stream.read()

    assert np.abs(read.k - x).max() / 3.7 == pytest.approx(2.7, abs=0.05)
    assert np.abs(read.v - x).max() <= 2.0**-10  # half a step of float16 at 3.7


@pytest.mark.parametrize("scale", [None, 0.25])
def test_cold_pages_saturate(scale: float | None) -> None:
    """The largest value that comes back is 6 * 448 times the global scale."""
    tier = PageTier(np.full((1, 2, 32, 64), 1e6, np.float32), scale=scale)
    tier.offload([0])

    assert tier.read().max() == np.float32(2688 * np.float32(scale or 1.0))
