"""Packed latents: bytes of vLLM's V4 kernel, the 656- and 352-byte rows by their rule, sizes and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from low_bit_checks import assert_same_on_torch, bf16, golden, over_bound, rows, to_bf16

import kvgate
from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.formats.spec import by_spelling, codec

WIDTHS = [("fp8_ds_mla", 576, 656), ("fp8_ds_mla", 512, 584), ("nvfp4_ds_mla", 576, 352)]
F = np.float32


def e4m3(x: np.ndarray) -> np.ndarray:
    """E4M3 bytes, saturating."""
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def bf16_bytes(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).view(np.uint8)


def row_656(x: np.ndarray) -> np.ndarray:
    """512 E4M3 | 4 scales float32 | 64 bfloat16."""
    tiles = x[:512].reshape(4, 128)
    scale = np.maximum(np.abs(tiles).max(1) / F(448), np.finfo(F).tiny).astype(F)
    return np.concatenate([e4m3(tiles / scale[:, None]).ravel(), scale.view(np.uint8), bf16_bytes(x[512:])])


def row_352(x: np.ndarray) -> np.ndarray:
    """256 bytes of E2M1 | 64 E4M3 | 32 scales, rounded up and permuted."""
    blocks = x[:512].reshape(32, 16)
    wanted = np.maximum(np.abs(blocks).max(1) / F(6), F(2.0**-9))
    codes = e4m3(wanted)
    codes += ((codes.view(ml_dtypes.float8_e4m3fn).astype(F) < wanted) & (codes < 0x7E)).astype(np.uint8)
    inverse = F(1) / codes.view(ml_dtypes.float8_e4m3fn).astype(F)
    q = np.clip(blocks * inverse[:, None], -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8).ravel()
    placed = np.zeros(32, np.uint8)
    for s in range(32):
        placed[8 * (s & 3) + (s >> 2)] = codes[s]
    return np.concatenate([q[0::2] | q[1::2] << 4, e4m3(x[512:]), placed])


def special(width: int) -> np.ndarray:
    """Zeros, equal, one-signed, tiny, huge rows, and a tile apart from its neighbours."""
    x = np.zeros((7, width), F)
    x[1], x[2] = 7.3, np.linspace(10, 11, width)
    x[3], x[4] = 1e-30, 1e30
    x[5, :16], x[5, 64:] = 1e-6, 1e3
    x[6] = np.linspace(-1e-3, 1e-3, width)
    return x


def test_v4_rows_are_those_of_vllms_kernel():
    """Data, rotary part and scales byte by byte; amax of 448 is scale 1, the next bfloat16 above it scale 2."""
    data = golden("vllm_mla_v4")
    x = bf16(data["x"])
    packed = kvgate.codecs["fp8_ds_mla"].encode(x)

    np.testing.assert_array_equal(packed[:, :576], data["data"])
    np.testing.assert_array_equal(packed[:, 576:], data["scales"])
    assert packed[8, 576] == 127 and packed[9, 576] == 128
    assert_same_on_torch("fp8_ds_mla", x)


@pytest.mark.parametrize(("name", "rule"), [("fp8_ds_mla", row_656), ("nvfp4_ds_mla", row_352)])
def test_wide_rows_follow_the_rule(name, rule, rng):
    """Each row by the layout's rule in plain float32, from numpy and torch."""
    x = to_bf16(np.concatenate([rows(rng, (60, 576), spread=4), special(576)[:4]]))

    np.testing.assert_array_equal(kvgate.codecs[name].encode(x), np.array([rule(row) for row in x]))
    assert_same_on_torch(name, x)


@pytest.mark.parametrize(("name", "width", "size"), WIDTHS)
def test_values_come_back_where_they_were(name, width, size, rng):
    """Loud tiles and a rotary part of other sizes: nothing is mixed up, and bfloat16 rotary values are kept exactly."""
    x = to_bf16(
        rng.standard_normal((20, width)) * np.exp(3 * rng.standard_normal((20, width // 64, 1))).repeat(64, 1)[..., 0]
    )
    packed = kvgate.codecs[name].encode(x)
    back = kvgate.codecs[name].decode(packed)

    assert packed.shape == (20, size) and back.shape == x.shape
    assert (over_bound(name, x) <= 1).all()
    if name == "fp8_ds_mla":
        np.testing.assert_array_equal(back[:, -64:], x[:, -64:])


@pytest.mark.parametrize(("name", "width", "size"), WIDTHS)
def test_special_rows(name, width, size):
    """Zeros stay zero; equal, one-signed, tiny and huge rows keep the bound; torch agrees."""
    x = special(width)
    assert (kvgate.codecs[name].roundtrip(x)[0] == 0).all()
    assert (over_bound(name, x) <= 1).all()
    assert_same_on_torch(name, x)


@pytest.mark.parametrize(("name", "width", "size"), WIDTHS)
@given(data=st.data())
def test_no_element_is_further_than_the_bound(name, width, size, data):
    """The bound holds for any finite row."""
    pool = data.draw(arrays(np.float32, 16, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
    order = data.draw(st.integers(0, 2**32 - 1))
    x = np.random.default_rng(order).choice(pool, (2, width))

    assert (over_bound(name, x) <= 1).all()


@pytest.mark.parametrize(("name", "width", "size"), WIDTHS)
def test_the_bound_is_reached(name, width, size):
    """At a tie in each tile and in the rotary part, and where the rotary part saturates."""
    x = np.zeros((1, width), F)
    tile = {656: 128, 584: 64, 352: 16}[size]
    largest, tie = (6, 5) if size == 352 else (448, 432)
    latent = x[:, :-64].reshape(1, -1, tile)
    latent[..., 0], latent[..., 1] = largest, tie
    x[0, -64], x[0, -63] = (1.0625, 900) if size == 352 else (1 + 2.0**-8, 1 + 3 * 2.0**-8)
    reached = over_bound(name, x)

    assert (reached[:, :-64].reshape(1, -1, tile)[..., 1] > 0.98).all()
    assert (reached[0, -64:-62] > 0.98).all()


@pytest.mark.parametrize("width", [576, 512])
def test_encoding_again_keeps_the_values(width, rng):
    """FP8 rows read back the same; V4's bytes may differ, where a scale halves and its codes double."""
    x = to_bf16(rows(rng, (300, width), spread=3))
    x[0, :64], x[0, 0] = 0, 224.5  # rounds to 224, which is 448 halves
    codec_ = kvgate.codecs["fp8_ds_mla"]
    once = codec_.encode(x)
    again = codec_.encode(codec_.decode(once))

    np.testing.assert_array_equal(codec_.decode(again), codec_.decode(once))
    if width == 576:
        np.testing.assert_array_equal(again, once)
    else:
        assert (again[0] != once[0]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("width", [576, 512])
def test_a_nonfinite_value_stays_in_its_tile(bad, width):
    """The tile decodes to NaN, its neighbours are untouched; a rotary NaN stays one."""
    x = np.ones((1, width), F)
    x[0, 3] = bad
    x[0, -1] = bad
    tile = 128 if width == 576 else 64
    back = kvgate.codecs["fp8_ds_mla"].roundtrip(x)

    assert np.isnan(back[0, :tile]).all()
    assert np.isfinite(back[0, tile:-1]).all()
    np.testing.assert_array_equal(back[0, -1], bad)
    on_torch = kvgate.codecs["fp8_ds_mla"].roundtrip(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(on_torch, back)


def test_nonfinite_values_saturate_in_the_fp4_row():
    """An infinity takes the block's scale to its end; a NaN becomes six scales, and stays NaN in the rotary part."""
    x = np.ones((1, 576), F)
    x[0, 3], x[0, 20], x[0, -1], x[0, -2] = np.inf, np.nan, np.nan, -np.inf
    back = kvgate.codecs["nvfp4_ds_mla"].roundtrip(x)

    assert back[0, 3] == 6 * 448 and np.isfinite(back[0, :512]).all()
    assert back[0, 20] > 0
    assert np.isnan(back[0, -1]) and back[0, -2] == -448
    assert_same_on_torch("nvfp4_ds_mla", x)


@pytest.mark.parametrize("kind", ["mla", "sparse_mla", "sliding_window"])
@pytest.mark.parametrize(("name", "width", "size"), WIDTHS)
def test_slots_have_the_rows_size(name, width, size, kind):
    """One latent a token and nothing for V, whatever the layer's kind."""
    layer = LayerGeometry(3, kind, 1, width, 0, rope_dim=64)

    assert codec(name).slot_bytes(layer, "k") == size
    assert codec(name).slot_bytes(layer, "v") == 0
    assert codec(name).row_dim(size) == width


def test_a_latent_without_a_rotary_part_is_filled_up():
    """vLLM fills the rotary part of GLM's 512 with zeros: 656 bytes; as V4's 448 and 64 it would be 584."""
    layer = LayerGeometry(3, "sparse_mla", 1, 512, 0)

    assert codec("fp8_ds_mla").slot_bytes(layer, "k") == 656
    with pytest.raises(UserError, match="0 elements rotary"):
        codec("nvfp4_ds_mla").slot_bytes(layer, "k")


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (LayerGeometry(5, "full_attention", 8, 128, 128), "layer 5 .full_attention. keeps 8 heads of 128 and 128"),
        (LayerGeometry(5, "mla", 1, 576, 0, rope_dim=32), "32 elements rotary"),
        (LayerGeometry(5, "mla", 1, 576, 64, rope_dim=64), "keeps 1 heads of 576 and 64"),
        (
            LayerGeometry(5, "mla", 1, 320, 0, rope_dim=64),
            "rows of 576 .512 and 64 rotary. or rows of 512.*320 is none",
        ),
    ],
)
def test_layers_that_are_no_such_latent_are_refused(layer, said):
    """Heads, a V, another rotary width, another rank: each with its reason."""
    with pytest.raises(UserError, match=said):
        codec("fp8_ds_mla").slot_bytes(layer, "k")


def test_rows_of_other_widths_are_refused():
    """Values and bytes alike; two rows are not one wide row."""
    with pytest.raises(UserError, match="1152 is none of these"):
        kvgate.codecs["fp8_ds_mla"].encode(np.ones((2, 1152), F))
    with pytest.raises(UserError, match="656 or 584 bytes, not 600"):
        kvgate.codecs["fp8_ds_mla"].decode(np.ones((2, 600), np.uint8))
    with pytest.raises(UserError, match="512 is none of these"):
        kvgate.codecs["nvfp4_ds_mla"].encode(np.ones((2, 512), F))
    assert kvgate.codecs["fp8_ds_mla"].encode(np.ones((0, 576), F)).shape == (0, 656)


def test_layers_without_rows_cost_nothing():
    """A recurrent layer has no latent."""
    assert codec("fp8_ds_mla").slot_bytes(LayerGeometry(1, "recurrent", 0, 0, 0), "k") == 0
    assert by_spelling("vllm", "fp8_ds_mla") == "fp8_ds_mla"


def shifted(packed: np.ndarray) -> np.ndarray:
    """Each scale one tile on."""
    out = packed.copy()
    if packed.shape[1] == 656:
        out[:, 512:528] = np.roll(packed[:, 512:528], 4, axis=1)
    elif packed.shape[1] == 584:
        out[:, 576:583] = np.roll(packed[:, 576:583], 1, axis=1)
    else:
        out[:, 320:] = np.roll(packed[:, 320:], 1, axis=1)
    return out


def misplaced(packed: np.ndarray) -> np.ndarray:
    """The rotary part where the scales are."""
    return np.roll(packed, 4, axis=1)


@pytest.mark.parametrize("mutant", [shifted, misplaced])
@pytest.mark.parametrize(("name", "width", "size"), WIDTHS)
def test_mutants_break_the_bound(mutant, name, width, size, rng):
    """A neighbour's scale, or bytes in the wrong place."""
    x = rng.standard_normal((40, width // 16, 16)) * np.exp(2 * rng.standard_normal((40, width // 16, 1)))
    x = to_bf16(x.reshape(40, width).astype(F))
    packed = kvgate.codecs[name].encode(x)

    with np.errstate(all="ignore"):
        wrong = np.abs(x - kvgate.codecs[name].decode(mutant(packed))) <= kvgate.codecs[name].error_bound(x)
    assert (~wrong).mean() > 0.2
