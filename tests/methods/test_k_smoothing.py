"""K smoothing: the mean is frozen, softmax does not see it, and loud means stop costing codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import parse
from kvgate.methods import spec
from kvgate.methods.hadamard import fast_hadamard
from kvgate.methods.k_smoothing import WARMUP_TOKENS, SmoothKeys
from kvgate.methods.spec import Unfitted, Window
from kvgate.methods.stream import open_layer

LAYER = LayerGeometry(0, "full_attention", 2, 64, 64)
Floats = npt.NDArray[np.float32]


def biased(rng: np.random.Generator, tokens: int = 300) -> Floats:
    """Keys with a mean per channel that is far larger than their spread."""
    return (10 * rng.standard_normal((1, 2, 1, 64)) + rng.standard_normal((1, 2, tokens, 64))).astype(np.float32)


def softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_softmax_does_not_see_the_mean(rng: np.random.Generator) -> None:
    """Weights from smoothed keys equal those from the keys to 1e-6 in float64."""
    k, q = biased(rng).astype(np.float64), rng.standard_normal((1, 2, 5, 64))
    bound = SmoothKeys().bind("k", 64, "q4_0")
    assert isinstance(bound, Unfitted)
    fitted, held = bound.fit(k[:, :, :128].astype(np.float32))

    exact = softmax(q @ k.swapaxes(-1, -2) / 8)
    smoothed = softmax(fitted.query(q) @ fitted.forward(k).swapaxes(-1, -2) / 8)
    assert np.abs(exact - smoothed).max() < 1e-6
    assert np.array_equal(held["mean"].view("<f2")[0, :, 0].astype(np.float32), fitted.mean[0, :, 0])  # type: ignore[attr-defined]


def test_the_mean_is_frozen(rng: np.random.Generator) -> None:
    """Keys wait native until 128 are there; the mean is theirs, and later tokens do not change it."""
    x = biased(rng)
    first, second = (open_layer(parse("k=q4_0+smooth_k,v=q4_0"), LAYER) for _ in range(2))
    first.append(x[:, :, :127], x[:, :, :127])
    assert first.k.encoded(127) == range(0)
    assert np.array_equal(first.read().k, x[:, :, :127])
    first.append(x[:, :, 127:128], x[:, :, 127:128])
    assert first.k.encoded(128) == range(128)
    assert not np.array_equal(first.read().k, x[:, :, :128])

    first.append(x[:, :, 128:], x[:, :, 128:])
    changed = np.concatenate([x[:, :, :200], x[:, :, 200:] * 5], 2)
    second.append(changed, changed)
    mean = first.packed()["k.table.mean"]
    assert np.array_equal(mean, second.packed()["k.table.mean"])
    assert np.allclose(mean.view("<f2")[0, :, 0], x[0, :, :128].mean(1), rtol=2.0**-10, atol=1e-6)
    assert np.array_equal(first.read().k[:, :, :200], second.read().k[:, :, :200])


def test_sinks_do_not_enter_the_mean(rng: np.random.Generator) -> None:
    """With two sinks, the mean is that of tokens 2 to 129."""
    x = biased(rng)
    x[:, :, :2] *= 100
    stream = open_layer(parse("k=q4_0+smooth_k,v=q4_0/sink=2"), LAYER)
    stream.append(x, x)

    mean = stream.packed()["k.table.mean"].view("<f2")[0, :, 0]
    assert np.allclose(mean, x[0, :, 2:130].mean(1), rtol=2.0**-10, atol=1e-6)
    assert np.array_equal(stream.read().k[:, :, :2], x[:, :, :2])


def test_the_mean_is_taken_in_the_basis_of_its_place(rng: np.random.Generator) -> None:
    """Behind a rotation it is the mean of rotated keys; before one, of the model's own."""
    x = biased(rng)
    means = []
    for order in ("q4_0+smooth_k+hadamard", "q4_0+hadamard+smooth_k"):
        stream = open_layer(parse(f"k={order},v=q4_0"), LAYER)
        stream.append(x, x)
        means.append(stream.packed()["k.table.mean"].view("<f2").astype(np.float32))
        assert np.abs(stream.read().k - x).max() < 1

    assert np.allclose(fast_hadamard(means[0], 64), means[1], rtol=2.0**-8, atol=0.05)
    assert not np.allclose(means[0], means[1], rtol=0.1, atol=0.1)


def test_keys_with_means_come_back_better(rng: np.random.Generator) -> None:
    """q4_0 spends its codes on a mean of ten deviations: smoothing takes the error down by a factor of ten and more."""
    x, errors = biased(rng), []
    for recipe in ("q4_0", "k=q4_0+smooth_k,v=q4_0"):
        stream = open_layer(parse(recipe), LAYER)
        stream.append(x, x)
        errors.append(float(((stream.read().k - x) ** 2).mean()))

    assert errors[1] < errors[0] / 10


def test_values_and_plain_keys_are_left_alone() -> None:
    """The transform says why it does nothing, and costs nothing there."""
    for kv, codec, why in (("v", "q4_0", "keep their mean"), ("k", "f16", "not quantized")):
        bound = SmoothKeys().bind(kv, 64, codec)  # type: ignore[arg-type]
        assert why in bound.why_not
        side = parse(f"{codec}+smooth_k").k
        assert side is not None
        assert spec.storage_of(side, kv).fixed_bytes(LAYER) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", ["q8_0+smooth_k", "kivi:bits=4+smooth_k", "q8_0+smooth_k+hadamard"])
def test_the_planner_counts_the_mean_and_the_wait(recipe: str) -> None:
    """Two bytes per channel and head, and at least 128 native tokens; the stream holds just that."""
    side = parse(recipe).k
    assert side is not None
    storage = spec.storage_of(side, "k", Window(native_bytes=4))
    stream = open_layer(parse(f"k={recipe},v=f32"), LAYER)
    x = np.random.default_rng(0).standard_normal((1, 2, 150, 64)).astype(np.float32)
    stream.append(x, x)

    fixed = 2 * 2 * 64 + (128 * (2 * 64 * 4) - 128 * storage.slot_bytes(LAYER, "k"))
    assert storage.fixed_bytes(LAYER) == fixed
    assert stream.k.stored_bytes() == storage.sequence_bytes(LAYER, 150)  # type: ignore[attr-defined]
    assert WARMUP_TOKENS == 128
