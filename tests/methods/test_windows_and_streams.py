"""Sinks, residual windows and groups: any cut of the tokens gives the same bytes, and every refusal is one line."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import Recipe, parse
from kvgate.methods import spec
from kvgate.methods._storage import TokenStorage, encoded_range
from kvgate.methods.spec import Window
from kvgate.methods.stream import open_layer

LAYER = LayerGeometry(0, "full_attention", 2, 64, 64)
MLA = LayerGeometry(1, "mla", 1, 576, 0, rope_dim=64)
RECIPES = (
    "q8_0/residual=7/sink=3",
    "q8_0+hadamard",
    "k=kivi:bits=4,v=q8_0/residual=32/sink=2",
    "kivi:bits=2:group=32/residual=64",
    "k=kvarn:group=64,v=kvarn:group=64/sink=1",
    "turboquant_4bit_nc/residual=16",
    "k=f16,v=turboquant_3bit_nc",
    "k=q4_0+smooth_k+hadamard,v=q4_0/sink=2",
    "k=kivi:bits=4+smooth_k,v=polarquant",
    "k=qjl,v=cold_page_nvfp4:page=16/residual=32/sink=5",
)


@settings(max_examples=40)
@given(
    recipe=st.sampled_from(RECIPES),
    cuts=st.lists(st.integers(1, 199), max_size=12, unique=True),
    tokens=st.integers(1, 200),
    seed=st.integers(0, 3),
)
def test_cuts_do_not_matter(recipe: str, cuts: list[int], tokens: int, seed: int) -> None:
    """Bytes held, values read and sizes are the same for any cut into chunks."""
    x = np.random.default_rng(seed).standard_normal((2, 1, 2, 200, 64)).astype(np.float32)[:, :, :, :tokens]
    whole, pieces = (open_layer(parse(recipe), LAYER) for _ in range(2))
    whole.append(*x)
    at = [0, *sorted(c for c in cuts if c < tokens), tokens]
    for a, b in itertools.pairwise(at):
        pieces.append(x[0, :, :, a:b], x[1, :, :, a:b])

    one, other = whole.packed(), pieces.packed()
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[n], other[n]) for n in one)
    assert np.array_equal(whole.read().k, pieces.read().k)
    assert whole.stored_bytes() == pieces.stored_bytes()


@pytest.mark.parametrize(
    ("window", "tokens", "encoded"),
    [
        (Window(0), 5, range(5)),
        (Window(4), 3, range(0)),
        (Window(4), 10, range(6)),
        (Window(4, 2), 10, range(2, 6)),
        (Window(4, 20), 10, range(20, 20)),
        (Window(0, 1), 1, range(1, 1)),
    ],
)
def test_the_sliding_rule(window: Window, tokens: int, encoded: range) -> None:
    """Sinks stay, the last R stay, the others are encoded one by one."""
    side = parse("q8_0").k
    assert side is not None
    storage = spec.storage_of(side, "k", window)

    assert isinstance(storage, TokenStorage)
    assert encoded_range(storage, tokens) == encoded


@pytest.mark.parametrize(("tokens", "encoded"), [(63, 0), (64, 64), (100, 64), (128, 128), (191, 128)])
def test_unfinished_groups_stay_native(tokens: int, encoded: int) -> None:
    """A tile of 64 tokens is encoded when it is full."""
    side = parse("kvarn:group=64").k
    assert side is not None
    storage = spec.storage_of(side, "v", Window())

    assert isinstance(storage, TokenStorage)
    assert encoded_range(storage, tokens) == range(encoded)


def test_a_plain_codec_with_a_window_costs_its_native_tokens() -> None:
    """q8_0 with 128 recent and 4 first tokens: 132 tokens at 2 instead of 34/32 bytes an element."""
    side = parse("q8_0").k
    assert side is not None
    storage = spec.storage_of(side, "k", Window(128, 4))

    assert storage.slot_bytes(LAYER, "k") == 2 * 68
    assert storage.fixed_bytes(LAYER) == 132 * 2 * (128 - 68)
    assert spec.storage_of(side, "k").fixed_bytes(LAYER) == 0


def test_a_sliding_layer_keeps_no_more_than_its_window() -> None:
    """Where only 16 tokens are held at all, no more than 16 are native."""
    small = LayerGeometry(0, "sliding_window", 2, 64, 64, window_tokens=16)
    side = parse("q8_0").k
    assert side is not None

    assert spec.storage_of(side, "k", Window(128, 4)).fixed_bytes(small) == 16 * 2 * (128 - 68)


def test_native_layers_hold_tokens_as_they_come() -> None:
    """`native` reads back what was appended, bit by bit, in each of the three dtypes."""
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 64)).astype(np.float32)
    for native, size in (("f32", 4), ("bf16", 2), ("f16", 2)):
        stream = open_layer(Recipe(), LAYER, native=native)
        stream.append(x, x)
        assert stream.stored_bytes() == 2 * x.size * size
        again = open_layer(Recipe(), LAYER, native=native)
        again.append(stream.read().k, stream.read().k)
        assert np.array_equal(again.read().k, stream.read().k)
    exact = open_layer(Recipe(), LAYER)
    exact.append(x, x)
    assert np.array_equal(exact.read().v, x)


def test_half_precision_tokens_are_held_in_two_bytes() -> None:
    """Tokens that come as float16 wait as float16, and read back exactly."""
    x = np.random.default_rng(0).standard_normal((1, 2, 20, 64)).astype(np.float16)
    stream = open_layer(parse("q8_0/residual=32"), LAYER)
    stream.append(x, x)

    assert stream.stored_bytes() == 2 * x.size * 2
    assert np.array_equal(stream.read().k, x.astype(np.float32))


def test_an_mla_layer_has_no_values() -> None:
    """One latent row is K; V stays None, and an array for it is refused."""
    x = np.random.default_rng(0).standard_normal((1, 1, 5, 576)).astype(np.float32)
    stream = open_layer(parse("q8_0+hadamard"), MLA)
    stream.append(x, None)

    assert stream.read().v is None
    assert stream.read().k.shape == x.shape
    assert stream.decode_view(4, "k") == range(5)
    with pytest.raises(UserError, match="K only"):
        stream.append(x, x)


def test_vllm_turboquant_prefill_sees_raw_tokens() -> None:
    """First chunk: raw. One token: stored. A later chunk of 129: raw behind stored; of 128: stored."""
    x = np.random.default_rng(0).standard_normal((1, 2, 400, 64)).astype(np.float32)
    stream = open_layer(parse("turboquant_4bit_nc"), LAYER)
    first = stream.step(x[:, :, :10], x[:, :, :10])
    one = stream.step(x[:, :, 10:11], x[:, :, 10:11])
    large = stream.step(x[:, :, 11:140], x[:, :, 11:140])
    small = stream.step(x[:, :, 140:268], x[:, :, 140:268])

    assert np.array_equal(first.k, x[:, :, :10])
    assert not np.array_equal(one.k[:, :, 10:], x[:, :, 10:11])
    assert np.array_equal(large.k[:, :, 11:], x[:, :, 11:140])
    assert not np.array_equal(large.k[:, :, :11], x[:, :, :11])
    assert not np.array_equal(small.k[:, :, 140:], x[:, :, 140:268])
    alone = open_layer(parse("turboquant_4bit_nc"), LAYER)
    assert not np.array_equal(alone.step(x[:, :, :1], x[:, :, :1]).k, x[:, :, :1])
    assert alone.decode_view(0, "k") == range(1)


@pytest.mark.parametrize(
    ("recipe", "raw"),
    [
        ("k=q8_0,v=kivi", True),
        ("k=kivi,v=q8_0", True),
        ("k=turboquant_4bit_nc,v=kivi", True),
        ("k=kivi,v=turboquant_4bit_nc", True),
        ("k=q8_0,v=turboquant_4bit_nc", False),
        ("q8_0", False),
    ],
)
def test_the_side_that_wants_raw_tokens_decides_for_both(recipe: str, raw: bool) -> None:
    """One attention reads both sides: a token is seen as it came if either side asks for that."""
    x = np.random.default_rng(0).standard_normal((1, 2, 256, 64)).astype(np.float32)
    stream = open_layer(parse(recipe), LAYER)
    stream.append(x[:, :, :255], x[:, :, :255])
    seen = stream.step(x[:, :, 255:256], x[:, :, 255:256])  # the 256th token, with which KIVI's window is full

    for side, values in (("k", seen.k), ("v", seen.v)):
        stored = stream.decode_view(255, side)  # type: ignore[arg-type]
        assert np.array_equal(values[:, :, 255], x[:, :, 255]) == (255 not in stored)
    assert len(stream.decode_view(255, "k")) == len(stream.k.encoded(255 if raw else 256))


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("nonsense", "unknown codec or method 'nonsense'"),
        ("q8_0+nonsense", "unknown method 'nonsense'"),
        ("q8_0+kivi", "kivi is no transform"),
        ("q8_0:bits=2", "takes no 'bits'"),
        ("kvquant", "give tables"),
        ("hadamard", "unknown codec or method 'hadamard'"),
        ("q8_0:head", "finds its own scales and takes no 'head'"),
        ("q8_0@checkpoint", "finds its own scales and takes no '@checkpoint'"),
        ("fp8_e4m3@checkpoint", "no scale was given"),
        ("fp8_e4m3:channel", "allowed: tensor, head"),
        ("fp8_e4m3@dynamic", "has no dynamic scale"),
        ("kivi@unit", "leave out @unit"),
        ("ultraquant_4bit:bits=3", "takes no 'bits=3'; allowed: no parameters"),
    ],
)
def test_recipes_that_cannot_be_opened(recipe: str, says: str) -> None:
    """One line with the word that is wrong."""
    with pytest.raises(UserError) as caught:
        open_layer(parse(recipe), LAYER)

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_that_do_not_fit_are_refused() -> None:
    """Another batch, another library, K and V of different lengths."""
    import torch

    x = np.ones((1, 2, 3, 64), np.float32)
    stream = open_layer(parse("q8_0"), LAYER)
    stream.append(x, x)
    with pytest.raises(UserError, match="holds 1 sequences"):
        stream.append(np.ones((2, 2, 1, 64), np.float32), np.ones((2, 2, 1, 64), np.float32))
    with pytest.raises(UserError, match="another library or device"):
        stream.append(torch.ones(1, 2, 1, 64), torch.ones(1, 2, 1, 64))
    with pytest.raises(UserError, match="K has 3 tokens and V has 2"):
        stream.append(x, x[:, :, :2])
    with pytest.raises(UserError, match="cannot be held in 'q8_0'"):
        open_layer(parse("kivi"), LAYER, native="q8_0")


@pytest.mark.parametrize("recipe", RECIPES)
def test_decoded_values_may_be_kept(recipe: str) -> None:
    """With `keep_decoded`, every read along the way is the same as without, and so are the bytes held."""
    x = np.random.default_rng(0).standard_normal((1, 2, 200, 64)).astype(np.float32)
    plain, kept = open_layer(parse(recipe), LAYER), open_layer(parse(recipe), LAYER, keep_decoded=True)
    for first, last in ((0, 1), (1, 65), (65, 66), (66, 140), (140, 200)):
        part = x[:, :, first:last]
        one, other = plain.step(part, part), kept.step(part, part)
        assert np.array_equal(one.k, other.k)
        assert np.array_equal(one.v, other.v)
    assert kept.stored_bytes() == plain.stored_bytes()


def test_scales_from_outside() -> None:
    """fp8 per head: each head's own scale is used, and one that the recipe excludes is refused."""
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 64)).astype(np.float32)
    x[:, 1] *= 1000
    scale = np.array([np.abs(x[:, 0]).max() / 448, np.abs(x[:, 1]).max() / 448], np.float32).reshape(2, 1, 1)
    stream = open_layer(parse("fp8_e4m3:head@calibrated#0123abcd"), LAYER, tables={"k": scale, "v": scale})
    stream.append(x, x)

    # E4M3: half a step is 1/16 of a value, or of the smallest step.
    assert np.all(np.abs(stream.read().k - x) <= np.maximum(np.abs(x) / 16, 2.0**-10 * scale))
    with pytest.raises(UserError, match="the recipe says @unit"):
        open_layer(parse("fp8_e4m3@unit"), LAYER, tables={"k": 0.5, "v": 0.5})


def test_a_nan_is_named_by_layer() -> None:
    """A method refuses what it has no code for, and says where."""
    layer = LayerGeometry(17, "full_attention", 2, 64, 64)
    x = np.ones((1, 2, 3, 64), np.float32)
    x[0, 1, 2, 5] = np.nan
    with pytest.raises(UserError, match="kivi: k of layer 17 holds a NaN or an infinity"):
        open_layer(parse("kivi"), layer).append(x, x)
    plain = open_layer(parse("f16"), layer)
    plain.append(x, x)
    assert np.isnan(plain.read().k).sum() == 1


def test_tokens_without_length_change_nothing() -> None:
    """An empty chunk is no chunk."""
    x = np.ones((1, 2, 3, 64), np.float32)
    stream = open_layer(parse("q8_0"), LAYER)
    stream.append(x[:, :, :0], x[:, :, :0])
    stream.append(x, x)
    stream.append(x[:, :, :0], x[:, :, :0])

    assert stream.tokens == 3
    assert stream.read().k.shape == (1, 2, 3, 64)


def test_sizes_need_no_numpy() -> None:
    """All methods are found and priced without numpy or torch."""
    code = (
        "import sys\n"
        "from kvgate.core.geometry import LayerGeometry\n"
        "from kvgate.methods import spec, mixed\n"
        "layer = LayerGeometry(0, 'full_attention', 2, 64, 64)\n"
        "for m in spec.methods():\n"
        "    if m.role == 'storage':\n"
        "        for kv in ('k', 'v'):\n"
        "            s = m.storage(kv, {}); s.slot_bytes(layer, kv); s.fixed_bytes(layer)\n"
        "print(*[m for m in ('numpy', 'torch', 'scipy') if m in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == ""
