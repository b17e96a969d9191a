"""The rotations: matrices, when they apply, and that llama.cpp's prediction says the same."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import block_diag, hadamard

from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import parse
from kvgate.engines._llama_rotation import rotation_of_part
from kvgate.methods import spec
from kvgate.methods.hadamard import Hadamard, RandomHadamard, fast_hadamard, random_signs
from kvgate.methods.stream import open_layer, transforms_of


@pytest.mark.parametrize(("dim", "size"), [(64, 64), (128, 64), (192, 64), (256, 256), (576, 64), (8, 8), (2, 2)])
def test_the_fast_transform_is_the_matrix(dim: int, size: int, rng: np.random.Generator) -> None:
    """Sums and differences give the product with the block-diagonal normalised Sylvester matrix."""
    x = rng.standard_normal((3, 5, dim))
    matrix = block_diag(*[hadamard(size) / np.sqrt(size)] * (dim // size))

    assert np.allclose(fast_hadamard(x, size), x @ matrix, rtol=0, atol=1e-14)
    assert np.allclose(fast_hadamard(fast_hadamard(x, size), size), x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("codec", ["q8_0", "q4_0", "iq4_nl", "f16", "bf16", "f32"])
@pytest.mark.parametrize(
    ("k_dim", "v_dim"), [(64, 64), (128, 128), (192, 128), (256, 256), (80, 80), (96, 64), (576, 0)]
)
def test_sizes_are_those_that_the_engine_rule_predicts(codec: str, k_dim: int, v_dim: int) -> None:
    """K: largest power of two in head_dim, V: 64, neither unless 64 divides it, nothing for plain types."""
    layer = LayerGeometry(0, "full_attention", 2, k_dim, v_dim)
    predicted = rotation_of_part([layer], codec, codec)

    assert Hadamard().bind("k", k_dim, codec).size == predicted.k
    assert Hadamard().bind("v", v_dim, codec).size == predicted.v


def test_k_and_v_are_decided_apart() -> None:
    """f16 keys stay as they are beside rotated q8_0 values."""
    recipe = parse("k=f16+hadamard,v=q8_0+hadamard")
    (_, k), (_, v) = recipe.sides()

    assert transforms_of(k, "k", 128) == ()
    assert [t.size for t in transforms_of(v, "v", 128)] == [64]


@pytest.mark.parametrize(
    ("kv", "dim", "codec", "why"), [("k", 80, "q8_0", "multiple of 64"), ("v", 64, "f16", "not quantized")]
)
def test_where_it_does_not_apply_is_stated(kv: spec.KVSide, dim: int, codec: str, why: str) -> None:
    """`why_not` says what is in the way, and the values stay."""
    bound = Hadamard().bind(kv, dim, codec)
    x = np.arange(dim, dtype=np.float32)

    assert why in bound.why_not
    assert bound.forward(x) is x
    assert bound.inverse(x) is x


@pytest.mark.parametrize("method", [Hadamard(), RandomHadamard()], ids=lambda m: m.name)
def test_scores_stay_under_rotation(method: spec.Transform, rng: np.random.Generator) -> None:
    """Attention scores of 512 keys change by less than 1e-6 relative in float64, also with loud channels."""
    for dim in (64, 128, 192, 256):
        q, k = rng.standard_normal((4, dim)), rng.standard_normal((512, dim)) * np.exp(2 * rng.standard_normal(dim))
        bound = method.bind("k", dim, "q4_0")
        exact, turned = q @ k.T, bound.forward(q) @ bound.forward(k).T

        assert np.abs(turned - exact).max() <= 1e-6 * np.abs(exact).max()
        assert not np.allclose(bound.forward(k), k)


def test_signs_are_fixed_for_good() -> None:
    """The first signs of the default seed are what they were when stored caches were made with them."""
    signs = random_signs(300)

    assert signs[:16] == FIRST_SIGNS
    assert random_signs(64) == signs[:64]
    assert random_signs(64, seed=1) != signs[:64]
    assert abs(sum(signs)) < 60  # 3.5 standard deviations


#: Written down at the first release; a change makes older stored bytes unreadable.
FIRST_SIGNS = (-1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0)


def test_random_signs_are_not_the_plain_matrix(rng: np.random.Generator) -> None:
    """A constant row, which the plain matrix packs into one element, is spread by the random signs."""
    x = np.full((1, 64), 3.0)
    plain, spread = fast_hadamard(x, 64), RandomHadamard().bind("v", 64, "q4_0").forward(x)

    assert np.count_nonzero(np.abs(plain) > 1e-9) == 1
    assert np.count_nonzero(np.abs(spread) > 1e-9) > 32


def test_a_rotated_codec_stores_rotated_values_and_gives_back_the_models(rng: np.random.Generator) -> None:
    """`q8_0+hadamard` holds the bytes of the rotated rows; what is read is near the unrotated ones."""
    from kvgate.formats.codec import codecs

    layer = LayerGeometry(0, "full_attention", 2, 64, 64)
    x = rng.standard_normal((1, 2, 40, 64)).astype(np.float32)
    stream = open_layer(parse("q8_0+hadamard"), layer)
    stream.append(x, x)

    assert np.array_equal(stream.packed()["k.encoded.rows"], codecs["q8_0"].encode(fast_hadamard(x, 64)))
    # Half a step of 1/127 of the largest of 32 elements, on each of 64 rotated elements, keeps its norm.
    assert np.abs(stream.read().k - x).max() < 64**0.5 * np.abs(fast_hadamard(x, 64)).max() / 127 / 2


def test_transforms_have_no_size() -> None:
    """A transform asked for its bytes is a programming error."""
    for method in spec.methods():
        if method.role == "transform":
            with pytest.raises(TypeError):
                method.storage("k", {})
