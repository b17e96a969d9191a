"""KVQuant's own identities: outliers exact, pre-RoPE channels, tables checked, sizes fixed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.methods.kvquant import UNUSED, KVQuant, KVQuantTables, slots
from kvgate.methods.lloyd_max import normal_levels
from kvgate.methods.spec import Window

LAYER = LayerGeometry(0, "full_attention", 2, 64, 64)
Floats = npt.NDArray[np.float32]


def key_tables(x: Floats, bits: int = 3, percentile: float = 99.5) -> KVQuantTables:
    levels = tuple(v / 2.6 for v in normal_levels(1 << bits).levels)
    return KVQuantTables(levels, np.percentile(x, 100 - percentile, (0, 2)), np.percentile(x, percentile, (0, 2)))


def even_levels(bits: int) -> KVQuantTables:
    n = (1 << bits) - 1
    return KVQuantTables(tuple(2 * i / n - 1 for i in range(n + 1)))


def test_outliers_and_the_sink_come_back_exactly(rng: np.random.Generator) -> None:
    """A value beyond its channel's threshold is float16, in either side; the first token is untouched."""
    x = rng.standard_normal((1, 2, 50, 64)).astype(np.float32)
    tables = key_tables(x, percentile=100)
    x[0, 1, 20, 33], x[0, 0, 20, 5] = 40.0, -31.0
    for side, given in (("k", tables), ("v", even_levels(3))):
        stream = KVQuant().open(side, {}, LAYER, tables=given)  # type: ignore[arg-type]
        stream.append(x)
        read = stream.read()
        assert read[0, 1, 20, 33] == 40.0
        assert read[0, 0, 20, 5] == -31.0
        assert np.array_equal(read[:, :, 0], x[:, :, 0])
        assert np.abs(read - x)[0, :, 20].max() < 1.2  # without the slots, the range of the token would be 71


def test_without_slots_outliers_are_cut(rng: np.random.Generator) -> None:
    """outliers=0 sends what lies beyond a threshold to the end level."""
    x = rng.standard_normal((1, 2, 50, 64)).astype(np.float32)
    tables = key_tables(x, percentile=100)
    x[0, 1, 20, 33] = 40.0
    stream = KVQuant().open("k", {"outliers": "0"}, LAYER, tables=tables)
    stream.append(x)

    middle, half = (tables.upper + tables.lower)[1, 33] / 2, (tables.upper - tables.lower)[1, 33] / 2
    assert stream.read()[0, 1, 20, 33] == pytest.approx(middle + half * tables.levels[-1], rel=1e-6)


def test_keys_beyond_the_cap_keep_the_farthest(rng: np.random.Generator) -> None:
    """With two slots a token, the two elements farthest out of their channels are exact and the third is cut."""
    x = np.clip(rng.standard_normal((1, 2, 50, 64)), -2, 2).astype(np.float32)
    tables = replace(key_tables(x), lower=np.full((2, 64), -2.1), upper=np.full((2, 64), 2.1))
    x[0, 0, 7, 1], x[0, 0, 7, 2], x[0, 1, 7, 3] = 5.0, -9.0, 7.0
    stream = KVQuant().open("k", {}, LAYER, tables=tables)
    stream.append(x)
    read = stream.read()[0, :, 7]

    assert slots(128, 10) == 2
    assert (read[0, 2], read[1, 3]) == (-9.0, 7.0)
    assert read[0, 1] == pytest.approx(2.1 * tables.levels[-1], rel=1e-6)


def test_codes_are_the_nearest_levels(rng: np.random.Generator) -> None:
    """Every inlier of K goes to the level nearest to it in its channel's scale."""
    x = rng.standard_normal((1, 2, 30, 64)).astype(np.float32)
    tables = replace(key_tables(x), lower=np.full((2, 64), -6.0), upper=np.full((2, 64), 5.0))
    stream = KVQuant().open("k", {}, LAYER, tables=tables)
    stream.append(x)

    levels = np.array(tables.levels) * 5.5 - 0.5
    nearest = levels[np.abs(x[..., None] - levels).argmin(-1)]
    assert np.allclose(stream.read()[:, :, 1:], nearest[:, :, 1:], rtol=0, atol=1e-5)


def rope(x: npt.NDArray[np.float64], base: float = 10_000.0) -> npt.NDArray[np.float64]:
    dim, tokens = x.shape[-1], x.shape[2]
    angle = np.arange(tokens)[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def test_keys_before_rope_are_easier(rng: np.random.Generator) -> None:
    """Channels with means of their own: quantized before RoPE the error is a fraction of what it is after.

    RoPE keeps the square error, so the two are compared in the basis that attention sees.
    """
    means = 6 * rng.standard_normal((1, 2, 1, 64))
    before = (means + rng.standard_normal((1, 2, 400, 64))).astype(np.float32)
    after = rope(before.astype(np.float64)).astype(np.float32)
    errors = []
    for x in (before, after):
        stream = KVQuant().open("k", {}, LAYER, tables=key_tables(x))
        stream.append(x)
        errors.append(float(((stream.read() - x) ** 2).mean()))
    turned = rope(before.astype(np.float64))
    stream = KVQuant().open("k", {}, LAYER, tables=key_tables(before))
    stream.append(before)
    in_attention = float(((rope(stream.read().astype(np.float64)) - turned) ** 2).mean())

    assert KVQuant().basis == "pre_rope"
    assert in_attention == pytest.approx(errors[0], rel=1e-4)
    assert errors[0] < errors[1] / 5


def test_q_norm_is_a_table(rng: np.random.Generator) -> None:
    """Levels may be read back as others than those that codes were chosen by."""
    x = rng.standard_normal((1, 2, 30, 64)).astype(np.float32)
    tables = replace(key_tables(x), lower=np.full((2, 64), -4.0), upper=np.full((2, 64), 4.0))
    wider = replace(tables, read_levels=tuple(1.1 * v for v in tables.levels))
    reads = []
    for given in (tables, wider):
        stream = KVQuant().open("k", {"outliers": "0"}, LAYER, tables=given)
        stream.append(x)
        reads.append(stream.read()[:, :, 1:])

    assert np.allclose(reads[1], 1.1 * reads[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"levels": (0.0, 1.0)}, "3 bits need 8 levels"),
        ({"levels": tuple(0.1 * i for i in range(7, -1, -1))}, "not ascending"),
        ({"levels": tuple(0.5 * i for i in range(8))}, r"in \[-1, 1\]"),
        ({"levels": (float("nan"), *(0.1 * i for i in range(1, 8)))}, "not ascending"),
        ({"lower": None}, r"lower thresholds have shape \(\), and this layer's keys need \(2, 64\)"),
        ({"upper": np.zeros((64,))}, r"upper thresholds have shape \(64,\)"),
        ({"lower": np.zeros((2, 64)), "upper": np.zeros((2, 64))}, "not above its lower one"),
        ({"read_levels": (0.0,)}, "3 bits need 8 levels"),
    ],
)
def test_tables_that_do_not_fit(change: dict[str, object], says: str, rng: np.random.Generator) -> None:
    """Wrong counts, shapes, orders and empty ranges are refused before anything is stored."""
    tables = replace(key_tables(rng.standard_normal((1, 2, 50, 64)).astype(np.float32)), **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=says):
        KVQuant().open("k", {}, LAYER, tables=tables)


def test_sizes() -> None:
    """3 bits, 1 % outliers of 8 x 128: 384 + 12 slots of 4 bytes; values have range and middle besides."""
    wide = LayerGeometry(0, "full_attention", 8, 128, 128)

    assert slots(1024, 10) == 12
    assert KVQuant().storage("k", {}).slot_bytes(wide, "k") == 384 + 48
    assert KVQuant().storage("v", {}).slot_bytes(wide, "v") == 384 + 48 + 4
    assert KVQuant().storage("k", {}).fixed_bytes(wide) == 1024 * 2 - (384 + 48)  # the sink
    five = KVQuant().storage("k", {}).windowed(Window(sink_tokens=5))
    assert five.fixed_bytes(wide) == 5 * (1024 * 2 - (384 + 48))


def test_indices_over_32767_are_whole(rng: np.random.Generator) -> None:
    """The index is an unsigned 16-bit number: an outlier in element 40,000 of a token comes back there."""
    big = LayerGeometry(0, "full_attention", 160, 256, 256)
    x = np.clip(rng.standard_normal((1, 160, 2, 256)), -1, 1).astype(np.float32)
    x[0, 40_000 // 256, 1, 40_000 % 256] = 99.0
    tables = KVQuantTables(normal_scaled(), np.full((160, 256), -2.0), np.full((160, 256), 2.0))
    stream = KVQuant().open("k", {"outliers": "1"}, big, tables=tables)
    stream.append(x)
    held = stream.packed()["encoded.index"].view("<u2").ravel()

    assert stream.read()[0, 40_000 // 256, 1, 40_000 % 256] == 99.0
    assert sorted(set(held.tolist())) == [40_000, UNUSED]
    with pytest.raises(UserError, match="16-bit index"):
        slots(65_536, 10)


def normal_scaled() -> tuple[float, ...]:
    return tuple(v / 2.6 for v in normal_levels(8).levels)


def test_values_are_coded_against_the_range_that_is_stored(rng: np.random.Generator) -> None:
    """Half width and middle are rounded to float16 first, and codes are made with what is read back."""
    x = rng.standard_normal((1, 2, 400, 64)).astype(np.float32) + np.float32(3)
    stream = KVQuant().open("v", {"bits": "4"}, LAYER, tables=even_levels(4), window=Window(0, 0))
    stream.append(x)
    held = stream.packed()
    codes = held["encoded.codes"]
    found = np.stack([codes & 15, codes >> 4], -1).reshape(1, 2, 400, 64)

    each = slots(128, 10) // 2
    rows = np.sort(x[0].swapaxes(0, 1).reshape(400, 128))
    low, high = rows[:, each], rows[:, -1 - each]
    half, middle = ((high - low) / 2).astype(np.float16), ((high + low) / 2).astype(np.float16)
    assert np.array_equal(held["encoded.half"].view("<f2")[0, 0, :, 0], half)
    assert np.array_equal(held["encoded.middle"].view("<f2")[0, 0, :, 0], middle)
    scaled = (x - middle[:, None].astype(np.float32)) / half[:, None].astype(np.float32)
    edges = (np.arange(15) + 0.5) * 2 / 15 - 1
    want = (scaled[..., None] > edges.astype(np.float32)).sum(-1)
    assert np.array_equal(found, want)
