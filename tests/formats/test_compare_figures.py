"""The figures of `kvgate formats compare` against their definitions, written out element by element in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import kvgate
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import parse
from kvgate.formats import compare
from kvgate.formats.clipping import Clipping
from kvgate.formats.compare import ArrayRows, Comparison, Tally, worst_channels
from kvgate.formats.probe import ends, largest_at_one
from kvgate.formats.spec import KVSide, codec
from kvgate.methods import compare as by_side
from kvgate.methods.compare import SideComparison, compare_side, side_of
from kvgate.methods.spec import methods
from kvgate.methods.stream import open_layer

Array = np.ndarray[Any, Any]
#: Sums of n float64 terms: each addition rounds by 2**-53, here over at most 2**16 of them.
EXACT = 2.0**16 * 2.0**-53


def through(x: Array, recipe: str, kv: KVSide = "k", scale: str | float = "unit") -> SideComparison:
    side, window = side_of(parse(recipe), kv)
    return compare_side(ArrayRows(x), side, kv, window=window, scale=scale)


def figures(x: Array, y: Array) -> dict[str, Any]:
    """By the definitions, one element at a time."""
    signal = noise = 0.0
    most, at, lost, zeroed, finite = 0.0, None, 0, 0, 0
    for place in np.ndindex(*x.shape):
        a, b = float(x[place]), float(y[place])
        if not math.isfinite(a):
            continue
        finite += 1
        signal += a * a
        if not math.isfinite(b):
            lost += 1
            continue
        noise += (a - b) ** 2
        zeroed += b == 0 and a != 0
        if abs(a - b) > most:
            most, at = abs(a - b), place
    return {
        "sqnr": 10 * math.log10(signal / noise) if signal and noise and not lost else None,
        "most": most,
        "at": at,
        "lost": lost,
        "zeroed": zeroed / finite if finite else 0.0,
        "finite": finite,
        "largest": max((abs(float(a)) for a in x.flat if math.isfinite(a)), default=0.0),
    }


def check(found: Comparison, x: Array, y: Array) -> None:
    want = figures(x, y)
    d = found.distance
    assert d.elements == want["finite"]
    assert d.lost == want["lost"]
    assert (d.sqnr_db is None) == (want["sqnr"] is None)
    if d.sqnr_db is not None:
        assert d.sqnr_db == pytest.approx(want["sqnr"], rel=0, abs=20 * EXACT)
    assert d.max_error == want["most"]
    assert d.max_abs == want["largest"]
    assert found.at == want["at"]
    assert found.zeroed == want["zeroed"]
    assert (found.x_nan, found.x_inf) == (np.isnan(x).sum(), np.isinf(x).sum())
    assert (found.y_nan, found.y_inf) == (np.isnan(y).sum(), np.isinf(y).sum())


def loud(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Values of several sizes with a loud channel."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 6, (*shape[:-1], 1)))
    x[..., 3] *= 100
    x[..., 5] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("name", [n for n in kvgate.codecs if not n.endswith("_ds_mla")])
def test_figures_are_their_definitions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every codec, on a shape that is cut into slices across heads: brute force over the decoded values agrees."""
    monkeypatch.setattr(by_side, "SLICE_ELEMENTS", 700)
    x = loud(np.random.default_rng(1), (2, 3, 4, 64))
    found = through(x, name)

    check(found.comparison, x, kvgate.codecs[name].decode(kvgate.codecs[name].encode(x)))
    assert float(found.bits) == 8 * codec(name).row_bytes(64) / 64


@pytest.mark.parametrize("shape", [(64,), (5, 64), (3, 7, 64), (2, 3, 1, 64), (2, 1, 2, 3, 64)])
def test_channels_are_elements_of_heads(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each channel's figures are those of its elements alone, over all batches and tokens; heads from three axes on."""
    monkeypatch.setattr(by_side, "SLICE_ELEMENTS", 64 * 2)
    x = loud(np.random.default_rng(2), shape)
    y = kvgate.codecs["q4_0"].roundtrip(x)
    found = through(x, "q4_0").comparison

    heads = shape[-3] if len(shape) > 2 else 1
    assert len(found.channels) == heads * 64
    by_head = x.reshape(-1, heads, shape[-2] if len(shape) > 1 else 1, 64)
    back = y.reshape(by_head.shape)
    for one in found.channels:
        mine = (slice(None), one.head or 0, slice(None), one.channel)
        want = figures(by_head[mine], back[mine])
        assert (one.head is None) == (len(shape) < 3)
        assert one.distance.max_error == want["most"]
        assert one.distance.max_abs == np.abs(by_head[mine]).max()
        if want["sqnr"] is not None:
            assert one.distance.sqnr_db == pytest.approx(want["sqnr"], abs=20 * EXACT)
    worst = worst_channels(found, 4)
    order = [c.distance.sqnr_db for c in worst]
    assert order == sorted(order)  # type: ignore[type-var]
    assert order[0] == min(c.distance.sqnr_db for c in found.channels if c.distance.sqnr_db is not None)


def test_figures_where_values_are_lost() -> None:
    """NaN and infinities among them, blocks that overflow: still by the definitions, and the largest x is counted."""
    x = loud(np.random.default_rng(13), (2, 3, 8, 64))
    x[0, 1, 2, 3], x[1, 2, 3, 40], x[1, 0, 0, 9], x[0, 0, 0, 60] = np.nan, np.inf, -np.inf, 3e38
    with np.errstate(all="ignore"):
        y = kvgate.codecs["q8_0"].decode(kvgate.codecs["q8_0"].encode(x))
        found = through(x, "q8_0").comparison
        check(found, x, y)

    assert found.distance.max_abs == np.float32(3e38)
    assert found.distance.lost == 3 * 31 + 32
    assert worst_channels(found, 1)[0].distance.lost


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row at a time gives the figures of all at once (sums of float64 in another order, so to their rounding)."""
    x = loud(np.random.default_rng(3), (2, 3, 50, 32))
    whole = through(x, "q5_1").comparison
    monkeypatch.setattr(by_side, "SLICE_ELEMENTS", 1)
    cut = through(x, "q5_1").comparison

    assert cut.distance.sqnr_db == pytest.approx(whole.distance.sqnr_db, abs=20 * EXACT)
    assert (cut.at, cut.clipped, cut.zeroed) == (whole.at, whole.clipped, whole.zeroed)
    assert [c.distance.max_error for c in cut.channels] == [c.distance.max_error for c in whole.channels]


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float32, (2, 2, 32), elements=st.floats(width=32, allow_subnormal=True)))
def test_any_values_have_figures(x: Array) -> None:
    """NaN, infinities, subnormals and zeros: counted as they are, and no figure is NaN."""
    with np.errstate(all="ignore"):
        y = kvgate.codecs["q8_0"].decode(kvgate.codecs["q8_0"].encode(x))
        found = through(x, "q8_0").comparison
        want = figures(x, y)

    assert found.distance.lost == want["lost"]
    assert (found.x_nan, found.y_nan) == (np.isnan(x).sum(), np.isnan(y).sum())
    assert not math.isnan(found.distance.max_error)
    assert found.distance.sqnr_db is None or math.isfinite(found.distance.sqnr_db)


@pytest.mark.parametrize(
    ("make", "recipe", "note"),
    [
        (lambda x: x, "f32", "exact"),
        (lambda x: x * 0, "q8_0", "exact"),
        (lambda x: np.where(x > 2, np.float32(np.nan), x), "q8_0", "lost"),
        (lambda x: x * np.float32(1e9), "q8_0", "lost"),
        (lambda x: x * np.float32(np.nan), "fp8_e4m3", "empty"),
    ],
)
def test_there_is_not_always_an_sqnr(make: Callable[[Array], Array], recipe: str, note: str) -> None:
    """None, and the reason: nothing is off, values were lost, or no value is a number."""
    found = through(make(np.random.default_rng(4).standard_normal((4, 64)).astype(np.float32)), recipe)

    assert found.comparison.distance.sqnr_db is None
    assert found.comparison.distance.note == note


def test_zeros_that_come_back_as_something_have_no_signal() -> None:
    """A codec that did that would not get an infinite SQNR, and not an exact one."""
    assert compare.sqnr(0.0, 1.0, 3, 0) == (None, "no signal")


@pytest.mark.parametrize(("name", "edge"), [("fp8_e4m3", 464.0), ("fp8_e4m3fnuz", 248.0), ("fp8_e5m2", 61440.0)])
def test_fp8_clips_beyond_half_a_step_over_its_largest(name: str, edge: float) -> None:
    """Nothing at the middle between the largest code and the next there would be; just beyond it, it is."""
    at, beyond = np.float32(edge), np.nextafter(np.float32(edge), np.float32(np.inf))
    x = np.array([[1.0, at, -at, beyond], [-beyond, 2 * beyond, 0, -1.0]], np.float32)

    assert through(x, name).comparison.clipped == 3 / 8
    # Ten times the values at ten times the scale (a power of two, to stay exact).
    assert through(x * 8, name, scale=8.0).comparison.clipped == 3 / 8


def test_int8_clips_at_both_of_its_ends() -> None:
    """-128 is a code and 128 is none; half a step is allowed."""
    x = np.array([[-129.0, -128.5, -128.0, 127.0, 127.5, 128.0]], np.float32)

    assert through(x, "int8").comparison.clipped == 2 / 6


@pytest.mark.parametrize("name", ["q8_0", "q4_1", "q5_1", "int8_per_token_head", "fp8_per_token_head", "bf16", "f16"])
def test_codecs_that_fit_their_scale_clip_nothing(name: str) -> None:
    """The scale is made of the largest element, so nothing lies beyond it."""
    assert through(loud(np.random.default_rng(5), (40, 64)), name).comparison.clipped == 0


@pytest.mark.parametrize("sign", [1, -1])
def test_q4_0_clips_the_end_opposite_to_its_extreme(sign: int) -> None:
    """The extreme becomes -8 steps (of a scale with its sign); 8 on the other side are cut, 7.4 are near enough."""
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = -8, 8, 7.4, 7.6

    assert through(x * sign, "q4_0").comparison.clipped == 2 / 32


def test_microscaling_clips_between_six_and_eight() -> None:
    """E2M1's largest is 6, its last step 2: 7 rounds to it, 7.5 is beyond."""
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = 6.5, 7, 7.5, -7.75

    assert through(x, "mxfp4").comparison.clipped == 2 / 32


def test_a_block_without_a_scale_is_zeroed_and_not_clipped() -> None:
    """Elements below the smallest scale are lost; that is another figure."""
    found = through(np.full((1, 32), 1e-9, np.float32), "q8_0").comparison

    assert (found.clipped, found.zeroed) == (0, 1)


@pytest.mark.parametrize("name", ["q4_0", "q5_0", "iq4_nl", "q8_0", "mxfp4", "ggml_nvfp4", "nvfp4", "fp8_ds_mla"])
def test_the_ends_are_those_of_all_codes(name: str) -> None:
    """The four masks give the lowest and highest values of the row among all of its codes, element by element."""
    spec = codec(name)
    dim = 576 if name.endswith("mla") else 64
    x = loud(np.random.default_rng(6), (3, dim))
    arithmetic = kvgate.codecs[name]
    packed = arithmetic.encode(x)
    found = ends(spec, dim)
    assert found is not None
    four = np.sort([arithmetic.decode((packed & found.keep) | put) for put in found.put], axis=0)
    tried = []
    for byte in range(256):
        codes = packed.copy()
        codes[:, found.keep != 255] = (packed & found.keep)[:, found.keep != 255] | (
            np.uint8(byte) & ~found.keep[found.keep != 255]
        )
        tried.append(arithmetic.decode(codes))
    # q5_0's codes lie in two places, and one byte for all does not reach every mix; its ends are among them.
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(tried), tried, np.nan)
    assert np.array_equal(four[0], np.nanmin(finite, axis=0))
    assert np.array_equal(four[3], np.nanmax(finite, axis=0))


def test_rotated_rows_do_not_show_their_range() -> None:
    """int4_per_token_head has no clipped share, and neither have methods: not known is not 0."""
    x = loud(np.random.default_rng(7), (2, 8, 64))

    assert through(x, "int4_per_token_head").comparison.clipped is None
    assert through(x, "turboquant_4bit_nc").comparison.clipped is None
    assert not Clipping(kvgate.codecs["int4_per_token_head"], 64).known
    assert not Clipping(kvgate.codecs["nvfp4"], 1024).known
    assert Clipping(kvgate.codecs["q8_0"], 1024).known


@pytest.mark.parametrize(
    ("recipe", "largest"), [("fp8_e4m3", 448), ("int8", 127), ("nvfp4", 2688), ("fp8_e5m2", 57344)]
)
def test_amax_scales_by_the_largest_magnitude(recipe: str, largest: float) -> None:
    """The tensor's largest over the codec's largest, as float32; the bytes are those that this scale gives."""
    x = loud(np.random.default_rng(8), (2, 3, 5, 64))
    scale = np.float32(float(np.abs(x).max()) / largest)
    found = through(x, recipe, scale="amax")

    assert largest_at_one(codec(recipe)) == largest
    assert found.scale == (scale, scale)
    used = kvgate.codecs[recipe]
    check(found.comparison, x, used.decode(used.encode(x, scale=float(scale)), scale=float(scale)))


def test_amax_of_each_head() -> None:
    """With `:head`, each head has the scale of its own largest; a neighbour's would give other figures."""
    x = loud(np.random.default_rng(9), (2, 3, 5, 64)) * np.float32([1, 10, 0.1]).reshape(3, 1, 1)
    x = x.astype(np.float32)
    scale = (np.abs(x).max(axis=(0, 2, 3)).astype(np.float64) / 448).astype(np.float32).reshape(3, 1, 1)
    fp8 = kvgate.codecs["fp8_e4m3"]
    found = through(x, "fp8_e4m3:head", scale="amax")

    check(found.comparison, x, fp8.decode(fp8.encode(x, scale=scale), scale=scale))
    moved = np.roll(scale, 1)
    wrong = figures(x, fp8.decode(fp8.encode(x, scale=moved), scale=moved))
    assert abs(wrong["sqnr"] - (found.comparison.distance.sqnr_db or 0)) > 1


@pytest.mark.parametrize("kv", ["k", "v"])
@pytest.mark.parametrize(
    "recipe",
    [
        "q8_0+hadamard",
        "q4_0+hadamard_random",
        "q4_0+smooth_k",
        "q8_0/residual=32/sink=4",
        "kivi:bits=2:group=32/residual=32",
        *(m.name for m in methods() if m.role == "storage" and not getattr(m, "calibrated", False)),
    ],
)
def test_methods_are_read_as_attention_reads_them(recipe: str, kv: KVSide) -> None:
    """Head by head, appended in slices: the figures are those of the whole layer's stream."""
    x = loud(np.random.default_rng(10), (2, 3, 170, 64))
    layer = LayerGeometry(0, "full_attention", 3, 64, 64)
    stream = open_layer(parse(recipe), layer, native="f32")
    stream.append(x, x)
    y = stream.read().k if kv == "k" else stream.read().v
    assert y is not None
    found = through(x, recipe, kv)

    check(found.comparison, x, y)
    if found.tokens is not None:
        side = stream.k if kv == "k" else stream.v
        assert side is not None
        within = side.encoded(170)
        assert (found.encoded_tokens, found.tokens) == (len(within), 170)
        assert float(found.bits) == 8 * side.stored_bytes() / x.size
        if len(within):
            part = slice(within.start, within.stop)
            want = figures(x[:, :, part], y[:, :, part])
            assert found.encoded is not None
            assert found.encoded.sqnr_db == pytest.approx(want["sqnr"], abs=20 * EXACT)


def test_transforms_keep_a_tensors_own_basis() -> None:
    """Compared is what comes back rotated back: left in the rotated basis, the figures would be far off."""
    x = loud(np.random.default_rng(11), (3, 64, 64))
    rotated = through(x, "q8_0+hadamard").comparison.distance.sqnr_db
    plain = through(x, "q8_0").comparison.distance.sqnr_db

    assert rotated is not None
    assert plain is not None
    assert rotated > 30
    assert plain > 30


@pytest.mark.parametrize(
    ("recipe", "shape", "said"),
    [
        ("q4_0", (4, 48), "nearest: 32 or 64"),
        ("nvfp4", (4, 20), "nearest: 16 or 32"),
        ("kivi", (4, 32), "(heads, tokens, head_dim)"),
        ("kivi", (2, 2, 2, 4, 32), "(batch, heads, tokens, head_dim)"),
        ("v=q4_0,k=q4_0", (4, 32), "k first"),
        ("kvquant", (2, 4, 32), "needs tables from a calibration"),
        ("q4_0:bits=2", (4, 32), "takes no 'bits'"),
        ("fp8_e4m3@calibrated#0123abcd", (4, 32), "a tensor alone has no scales"),
        ("native", (4, 32), "native stores values as they are"),
        ("q8_0/keep=L1", (4, 32), "no layers to keep"),
        ("q8_0+kivi", (4, 32), "kivi is no transform"),
        ("turboquant_4bit_nc", (2, 4, 48), "48"),
    ],
)
def test_what_does_not_fit_is_refused(recipe: str, shape: tuple[int, ...], said: str) -> None:
    """In one line, with what would fit."""
    with pytest.raises(UserError) as refused:
        through(np.ones(shape, np.float32), recipe)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e60, 1e-60])
def test_scales_that_are_none_are_refused(scale: float) -> None:
    """Zero, negative, NaN, infinite; also what is so in float32 only."""
    with pytest.raises(UserError, match="not positive and finite"):
        through(np.ones((2, 32), np.float32), "fp8_e4m3", scale=scale)


def test_a_head_of_zeros_has_no_amax() -> None:
    """The head is named."""
    x = np.ones((3, 4, 32), np.float32)
    x[1] = 0
    with pytest.raises(UserError, match="head 1 holds nothing but zeros"):
        through(x, "fp8_e4m3:head", scale="amax")


@pytest.mark.parametrize("mutant", ["rows swapped", "noise of the first slice", "float32 sums"])
def test_mutants_of_the_tally_are_noticed(mutant: str) -> None:
    """Rows of another place, a forgotten slice, sums that lose places: the comparison with brute force fails."""
    x = loud(np.random.default_rng(12), (2, 3, 40, 64)) + np.float32(1000)
    y = kvgate.codecs["q4_0"].roundtrip(x)
    rows, back = x.reshape(-1, 64), y.reshape(-1, 64)
    tally = Tally(x.shape)
    for start in range(0, len(rows), 60):
        part = back[start : start + 60]
        if mutant == "rows swapped":
            part = part[::-1]
        if mutant == "noise of the first slice" and start == 0:
            continue
        tally.add(start, rows[start : start + 60], part, None)
    if mutant == "float32 sums":
        tally._noise = tally._noise.astype(np.float32)

    with pytest.raises(AssertionError):
        check(tally.result(), x, y)
