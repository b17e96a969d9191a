"""PolarQuant against angles computed with atan2; QJL's estimator has no bias; sizes of all methods."""

from __future__ import annotations

from math import pi

import numpy as np
import numpy.typing as npt
import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats.xp import numpy_namespace
from kvgate.methods import spec
from kvgate.methods.lloyd_max import angle_levels
from kvgate.methods.polarquant import SEED, PolarQuant, _turn
from kvgate.methods.qjl import Qjl, random_sketch
from kvgate.methods.turboquant import random_rotation

LAYER = LayerGeometry(0, "full_attention", 1, 64, 64)
Doubles = npt.NDArray[np.float64]


def unpack(held: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.int64]:
    flat = np.unpackbits(held, axis=-1, bitorder="little")[..., : count * bits]
    return (flat.reshape(*flat.shape[:-1], count, bits) << np.arange(bits)).sum(-1)


def test_angles_are_those_of_atan2(rng: np.random.Generator) -> None:
    """Every level's code is the cell of its angle; only angles on an edge, to float32, may fall to the other side."""
    x = rng.standard_normal((1, 1, 300, 64)).astype(np.float32)
    x[0, 0, 0] = 0
    stream = PolarQuant().open("k", {}, LAYER)
    stream.append(x)
    held = stream.packed()

    radii: Doubles = x[0, 0].astype(np.float64) @ random_rotation(64, SEED).T
    for level, bits in enumerate((4, 2, 2, 2), start=1):
        a, b = radii[..., 0::2], radii[..., 1::2]
        angle = np.arctan2(b, a) % (2 * pi)
        edges = np.arange(1, 16) * pi / 8 if level == 1 else np.array(angle_levels(4, level).edges)
        codes = np.searchsorted(edges, angle, side="right")
        ours = unpack(held[f"encoded.angles{level}"][0, 0], bits, angle.shape[-1])
        edge = np.abs(angle[..., None] - np.append(edges, 2 * pi)).min(-1) < 1e-5
        assert np.array_equal(ours[1:][~edge[1:]], codes[1:][~edge[1:]])
        assert not ours[0].any()
        radii = np.sqrt(a * a + b * b)
    assert np.allclose(held["encoded.radii"][0, 0].view("<f2"), radii, rtol=2.0**-10, atol=1e-7)
    assert not stream.read()[0, 0, 0].any()


@pytest.mark.parametrize(
    ("a", "b", "cell"),
    [
        (1, 0, 0),
        (1, 1, 2),
        (0, 1, 4),
        (-1, 1, 6),
        (-1, 0, 8),
        (-1, -1, 10),
        (0, -1, 12),
        (1, -1, 14),
        (0, 0, 0),
        (2, -1e-6, 15),
    ],
)
def test_cells_of_the_circle(a: float, b: float, cell: int) -> None:
    """The axes and diagonals open their own cells, counter-clockwise; the zero vector is in the first."""
    x = np.array([[a, b]], np.float32)

    assert _turn(numpy_namespace(), x[:, :1], x[:, 1:]).item() == cell


def test_polarquant_does_not_depend_on_the_data(rng: np.random.Generator) -> None:
    """Loud channels and sparse rows come back as well as normal ones, within 0.5 dB."""
    found = []
    for x in (
        rng.standard_normal((1, 1, 500, 64)),
        rng.standard_normal((1, 1, 500, 64)) * np.exp(2 * rng.standard_normal(64)),
        np.eye(64)[rng.integers(0, 64, (1, 1, 500))],
    ):
        stream = PolarQuant().open("v", {}, LAYER)
        stream.append(x.astype(np.float32))
        off = ((stream.read() - x) ** 2).sum(-1) / (x**2).sum(-1)
        found.append(-10 * np.log10(off.mean()))

    assert max(found) - min(found) < 0.5


def test_qjl_has_no_bias(rng: np.random.Generator) -> None:
    """Over 60 sketches, scores of queries with keys that have loud channels are right on average, within 1 %.

    One sketch's score is off by half of |q||k| at most; its mean over 60 sketches and 128 keys by well under 1 %.
    """
    x = rng.standard_normal((1, 1, 128, 64))
    x[..., (3, 40)] *= 8
    x = x.astype(np.float32)
    exact, total = (x * x).sum(-1), 0.0
    for seed in range(60):
        stream = Qjl().open("k", {"seed": str(seed)}, LAYER)
        stream.append(x)
        total = total + (stream.read() * x).sum(-1) / 60

    assert (total / exact).mean() == pytest.approx(1, abs=0.01)


def test_loud_channels_are_kept_apart(rng: np.random.Generator) -> None:
    """Each group of 32 tokens names its own 8 loudest channels; without them the rest is estimated ten times better."""
    x = rng.standard_normal((1, 1, 128, 64)).astype(np.float32)
    loud = [5, 9, 17, 22, 31, 40, 55, 60]
    x[:, :, :32, loud] *= 30
    stream = Qjl().open("k", {}, LAYER)
    stream.append(x)

    assert sorted(stream.packed()["encoded.channels"][0, 0, 0].tolist()) == loud
    assert sorted(stream.packed()["encoded.channels"][0, 0, 1].tolist()) != loud
    rest = [i for i in range(64) if i not in loud]
    off = (stream.read() - x)[0, 0, :32][:, rest]
    assert (off**2).mean() < 0.3  # as in a group without loud channels, where 0.1 to 0.2 of the square is noise


def test_the_sketch_is_orthogonal_in_blocks() -> None:
    """Each block of head_dim columns times its transpose is head_dim times the identity."""
    s = random_sketch(64, 256, 1)

    for block in np.split(s, 4, axis=1):
        assert np.allclose(block.T @ block, 64 * np.eye(64), rtol=0, atol=1e-9)


#: Square error of keys relative to the values', after one and after ten times of storing what was read; measured.
CYCLES = {
    "ultraquant_4bit": (0.0151, 0.0193),
    "turboquant": (0.0093, 0.0262),
    "kvarn": (0.24, 1.29),
    "qjl": (0.19, 8.9),
}


@pytest.mark.parametrize("name", CYCLES)
def test_error_of_many_cycles(name: str, rng: np.random.Generator) -> None:
    """The drift that the pages state, within a quarter."""
    layer = LayerGeometry(0, "full_attention", 2, 128, 128)
    x = (rng.standard_normal((1, 2, 512, 128)) * np.exp(0.5 * rng.standard_normal(128))).astype(np.float32)
    errors, now = [], x
    for _ in range(10):
        stream = spec.method(name).open("k", {}, layer)  # type: ignore[attr-defined]
        stream.append(now)
        now = stream.read()
        errors.append(float(((now - x) ** 2).mean() / (x**2).mean()))

    assert errors[0] == pytest.approx(CYCLES[name][0], rel=0.25)
    assert errors[-1] == pytest.approx(CYCLES[name][1], rel=0.25)


#: Bytes per element, K and V together, at head_dim 64 and 128 (arithmetic of each layout's parts).
BYTES_PER_ELEMENT = {
    "turboquant_k8v4": (0.78125, 0.765625),
    "turboquant_4bit_nc": (0.546875, 0.5234375),
    "turboquant_k3v4_nc": (0.484375, 0.4609375),
    "turboquant_3bit_nc": (0.421875, 0.3984375),
    "ultraquant_4bit": (0.53125, 0.53125),
    "kivi:bits=4": (0.625, 0.625),
    "kivi:bits=2": (0.375, 0.375),
    "kivi:bits=2:group=64": (0.3125, 0.3125),
    "polarquant": (0.484375, 0.484375),
}


@pytest.mark.parametrize("name", BYTES_PER_ELEMENT)
def test_bytes_per_element(name: str) -> None:
    """What each method costs, scales, norms and radii included."""
    head, *params = name.split(":")
    given = dict(p.split("=") for p in params)
    for dim, expected in zip((64, 128), BYTES_PER_ELEMENT[name], strict=True):
        layer = LayerGeometry(0, "full_attention", 1, dim, dim)
        sides = [spec.method(head).storage(kv, given).slot_bytes(layer, kv) for kv in ("k", "v")]  # type: ignore[arg-type]
        assert sum(sides) / (2 * dim) == expected


def test_qjl_keys_cost_three_and_a_quarter_bits() -> None:
    """52.25 bytes a token at head_dim 128 with 256 signs, rounded up for one head alone."""
    storage = Qjl().storage("k", {})
    layer = LayerGeometry(0, "full_attention", 8, 128, 128)

    assert storage.slot_bytes(layer, "k") == 418
    assert storage.row_bytes(128) == 53


@pytest.mark.parametrize("dim", [8, 320])
def test_heads_that_qjl_cannot_number(dim: int) -> None:
    """Channels are numbered in one byte, and eight are taken apart."""
    with pytest.raises(UserError, match=f"no head of {dim}"):
        Qjl().storage("k", {}).row_bytes(dim)


def test_heads_that_polarquant_cannot_cut() -> None:
    """Blocks of 16: a head of 72 does not fit."""
    with pytest.raises(UserError, match="nearest: 64 or 80"):
        PolarQuant().storage("k", {}).row_bytes(72)


def test_a_projection_of_zero_is_negative() -> None:
    """Rows of zeros store no sign at all, and come back as zeros."""
    stream = Qjl().open("k", {}, LAYER)
    stream.append(np.zeros((1, 1, 128, 64), np.float32))

    held = stream.packed()
    assert not held["encoded.signs"].any()
    assert not held["encoded.outlier_signs"].any()
    assert not stream.read().any()


def test_qjl_waits_for_128_tokens() -> None:
    """Keys are stored 128 at a time, values one by one behind the last 128."""
    keys, values = (Qjl().open(side, {}, LAYER) for side in ("k", "v"))  # type: ignore[arg-type]

    assert [len(keys.encoded(n)) for n in (127, 128, 255, 256)] == [0, 128, 128, 256]
    assert [len(values.encoded(n)) for n in (127, 128, 129, 256)] == [0, 0, 1, 128]
