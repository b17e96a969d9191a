"""KVarN against a second implementation in logarithms, as the authors write it; balance; sizes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvgate.core.geometry import LayerGeometry
from kvgate.formats.xp import numpy_namespace
from kvgate.methods.hadamard import fast_hadamard
from kvgate.methods.kvarn import KVarN, balance, imbalance

Floats = npt.NDArray[np.float64]


def in_logarithms(tile: Floats) -> tuple[Floats, Floats]:
    """Column and row scales of one tile by float64 logarithms, with the best round kept."""

    def uneven(t: Floats) -> float:
        columns, rows = t.std(0, ddof=1), t.std(1, ddof=1)
        return float(columns.max() / columns.min() + rows.max() / rows.min())

    log_c, log_r = np.zeros((1, tile.shape[1])), np.zeros((tile.shape[0], 1))
    best = (uneven(tile), log_c, log_r)
    for _ in range(16):
        now = tile / np.exp(log_c) / np.exp(log_r)
        log_c = np.clip(log_c + np.log(np.clip(now.std(0, ddof=1, keepdims=True), 1e-3, 1e3)), -0.3, 10)
        now = tile / np.exp(log_c) / np.exp(log_r)
        log_r = np.clip(log_r + np.log(np.clip(now.std(1, ddof=1, keepdims=True), 1e-3, 1e3)), -0.3, 10)
        score = uneven(tile / np.exp(log_c) / np.exp(log_r))
        if score <= best[0]:
            best = (score, log_c, log_r)
    return np.exp(best[1]), np.exp(best[2])


def loud(rng: np.random.Generator, tokens: int, dim: int) -> npt.NDArray[np.float32]:
    """Tokens and channels with magnitudes of their own."""
    x = rng.standard_normal((1, 1, tokens, dim)) * np.exp(rng.standard_normal((tokens, 1)))
    return (x * np.exp(rng.standard_normal(dim))).astype(np.float32)


@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("bits", [2, 4])
def test_codes_are_those_of_the_logarithmic_form(side: str, bits: int, rng: np.random.Generator) -> None:
    """All but one code in a thousand agree; those lie on a rounding edge and differ by one."""
    x = loud(rng, 128, 64)
    layer = LayerGeometry(0, "full_attention", 1, 64, 64)
    stream = KVarN().open(side, {"bits": str(bits)}, layer)  # type: ignore[arg-type]
    stream.append(x)
    held = stream.packed()["encoded.codes"][0, 0, 0]

    tile = fast_hadamard(x[0, 0], 64).astype(np.float64)
    tile = tile.T if side == "k" else tile
    column, row = in_logarithms(tile)
    even = tile / column / row
    low, top = even.min(1, keepdims=True), 2**bits - 1
    step = (even.max(1, keepdims=True) - low) / top
    codes = np.clip(np.rint((even - low) / step), 0, top).astype(np.int64)
    per = 8 // bits
    ours = (held[:, None] >> (bits * np.arange(per))) & top
    ours = ours.reshape(tile.shape).astype(np.int64)

    assert np.abs(ours - codes).max() <= 1
    assert (ours != codes).mean() < 1e-3
    back = (codes * (step * row) + low * row) * column
    read = fast_hadamard(stream.read()[0, 0], 64).astype(np.float64)
    # float16 scales: half a unit in the last place on each of two factors.
    same = ours == codes
    assert np.all(np.abs((read.T if side == "k" else read) - back)[same] <= 2.5 * 2.0**-11 * np.abs(tile).max())


def test_balancing_evens_a_tile_out(rng: np.random.Generator) -> None:
    """Rows and columns over two orders of magnitude come nearer to each other by a factor of ten and more."""
    xp = numpy_namespace()
    tile = loud(rng, 128, 64) * 1000
    column, row = balance(xp, tile)

    assert imbalance(xp, tile).item() > 50
    assert 2 < imbalance(xp, tile / column / row).item() < imbalance(xp, tile).item() / 10


def test_quiet_tiles_are_not_evened_out(rng: np.random.Generator) -> None:
    """The authors' lower clamp: no scale goes below e^-0.3, so rows and columns below it are left as they are."""
    xp = numpy_namespace()
    tile = loud(rng, 128, 64)
    tile = tile / tile.std(-1, keepdims=True).max() / 100
    column, row = balance(xp, tile)

    assert min(column.min(), row.min()) >= np.float32(np.exp(-0.3))
    assert imbalance(xp, tile / column / row).item() > 0.9 * imbalance(xp, tile).item()


def test_constant_tiles_survive() -> None:
    """A tile without any variance comes back as it was, to float16."""
    layer = LayerGeometry(0, "full_attention", 1, 64, 64)
    for side in ("k", "v"):
        stream = KVarN().open(side, {}, layer)  # type: ignore[arg-type]
        x = np.full((1, 1, 128, 64), 2.5, np.float32)
        stream.append(x)
        assert np.allclose(stream.read(), x, rtol=2.0**-8, atol=0)


def test_two_axes_beat_one(rng: np.random.Generator) -> None:
    """On tokens of very different size, keys in 2 bits come back better than KIVI's per-channel groups."""
    from kvgate.methods.kivi import Kivi

    x = loud(rng, 256, 64)
    layer = LayerGeometry(0, "full_attention", 1, 64, 64)
    errors = []
    for method in (KVarN(), Kivi()):
        stream = method.open("k", {}, layer)
        stream.append(x)
        # Token by token, so that the loud ones do not decide alone.
        errors.append(float((((stream.read() - x) ** 2).sum(-1) / (x**2).sum(-1)).mean()))

    assert errors[0] < errors[1] / 2


@pytest.mark.parametrize(
    ("dim", "bits", "group", "side", "size"),
    [(256, 2, 128, "k", 9_472), (256, 4, 128, "k", 17_664), (128, 4, 128, "k", 8_960), (128, 2, 64, "v", 2_560)],
)
def test_sizes(dim: int, bits: int, group: int, side: str, size: int) -> None:
    """Bytes of a tile; 2 bits at head_dim 256 are 2.31 bits an element."""
    storage = KVarN().storage(side, {"bits": str(bits), "group": str(group)})  # type: ignore[arg-type]

    assert storage.group_bytes(dim) == size
    assert round(8 * 9_472 / 256 / 128, 2) == 2.31


def test_of_equal_rounds_the_latest_counts() -> None:
    """A tile of zeros is as balanced after every round as before: its scales are the last ones, at the lower clamp."""
    stream = KVarN().open("k", {"group": "64"}, LayerGeometry(0, "full_attention", 1, 64, 64))
    stream.append(np.zeros((1, 1, 64, 64), np.float32))

    assert np.all(stream.packed()["encoded.column"].view("<f2") == np.float16(np.exp(-0.3)))
    assert not stream.read().any()
