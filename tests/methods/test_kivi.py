"""KIVI against its definition, written out with loops; the flush rule; sizes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry
from kvgate.core.recipe import parse
from kvgate.methods import spec
from kvgate.methods.kivi import Kivi
from kvgate.methods.spec import Window
from kvgate.methods.stream import open_layer

LAYER = LayerGeometry(0, "full_attention", 2, 64, 64)


def by_hand(x: npt.NDArray[np.float32], bits: int) -> tuple[list[int], np.float16, np.float16]:
    """Codes, scale and zero of one group, value by value."""
    zero = np.float16(x.min())
    scale = np.float16((x.max() - np.float32(zero)) / np.float32(2**bits - 1))
    codes = []
    for value in x:
        q = np.rint((value - np.float32(zero)) / np.float32(scale)) if scale > 0 else 0
        codes.append(int(min(max(q, 0), 2**bits - 1)))
    return codes, scale, zero


def packed_words(codes: list[int], bits: int) -> bytes:
    """32-bit words, the first code in the lowest bits, as the reference packs them."""
    per = 32 // bits
    words = [sum(q << (bits * j) for j, q in enumerate(codes[i : i + per])) for i in range(0, len(codes), per)]
    return np.array(words, "<u4").tobytes()


@pytest.mark.parametrize("offset", [0, 500])  # at 500 float16 holds quarters: the zero point is far from the minimum
@pytest.mark.parametrize("bits", [2, 4])
def test_keys_are_quantized_per_channel_over_tokens(bits: int, offset: float, rng: np.random.Generator) -> None:
    """Each channel of 32 tokens has its own float16 scale and zero; codes lie in 32-bit words along tokens."""
    x = (offset + rng.standard_normal((1, 2, 128, 64))).astype(np.float32)
    stream = Kivi().open("k", {"bits": str(bits)}, LAYER)
    stream.append(x)
    held, read = stream.packed(), stream.read()

    for group, channel in ((0, 0), (3, 63), (2, 17)):
        tokens = slice(group * 32, group * 32 + 32)
        codes, scale, zero = by_hand(x[0, 1, tokens, channel], bits)
        width = 32 * bits // 8
        assert held["encoded.codes"][0, 1, group, channel * width : (channel + 1) * width].tobytes() == packed_words(
            codes, bits
        )
        assert held["encoded.scale"][0, 1, group].view("<f2")[channel] == scale
        assert held["encoded.zero"][0, 1, group].view("<f2")[channel] == zero
        back = np.array(codes, np.float32) * np.float32(scale) + np.float32(zero)
        assert np.array_equal(read[0, 1, tokens, channel], back)


@pytest.mark.parametrize("bits", [2, 4])
def test_values_are_quantized_per_token_over_channels(bits: int, rng: np.random.Generator) -> None:
    """Each token has a scale and zero per 32 channels."""
    x = rng.standard_normal((1, 2, 129, 64)).astype(np.float32)
    stream = Kivi().open("v", {"bits": str(bits)}, LAYER)
    stream.append(x)

    assert stream.encoded(129) == range(1)  # the last 128 are native
    codes, scale, zero = by_hand(x[0, 1, 0, 32:], bits)
    held, width = stream.packed(), 32 * bits // 8
    assert held["encoded.codes"][0, 1, 0, width:].tobytes() == packed_words(codes, bits)
    assert held["encoded.scale"][0, 1, 0].view("<f2")[1] == scale
    assert held["encoded.zero"][0, 1, 0].view("<f2")[1] == zero


@pytest.mark.parametrize(
    ("tokens", "keys", "values"),
    [(1, 0, 0), (127, 0, 0), (128, 128, 0), (129, 128, 1), (255, 128, 127), (256, 256, 128), (300, 256, 172)],
)
def test_the_flush_rule(tokens: int, keys: int, values: int) -> None:
    """Keys go in whole windows of 128 when one is full; values one by one as they become older than 128."""
    assert Kivi().open("k", {}, LAYER).encoded(tokens) == range(keys)
    assert Kivi().open("v", {}, LAYER).encoded(tokens) == range(values)


def test_a_step_sees_its_own_tokens_native(rng: np.random.Generator) -> None:
    """The token that fills the window is attended to before the flush; the next step sees the window quantized."""
    x = rng.standard_normal((1, 2, 130, 64)).astype(np.float32)
    stream = open_layer(parse("kivi:bits=2:group=32/residual=128"), LAYER)
    stream.append(x[:, :, :127], x[:, :, :127])
    at_128 = stream.step(x[:, :, 127:128], x[:, :, 127:128])
    at_129 = stream.step(x[:, :, 128:129], x[:, :, 128:129])

    assert np.array_equal(at_128.k, x[:, :, :128])
    assert not np.array_equal(at_129.k[:, :, :128], x[:, :, :128])
    assert np.array_equal(at_129.k[:, :, 128:], x[:, :, 128:129])
    # The same, told without running it: what a decoding step at each position sees encoded.
    assert stream.decode_view(127, "k") == range(0)
    assert stream.decode_view(128, "k") == range(128)
    assert stream.decode_view(128, "v") == range(0)
    assert stream.decode_view(129, "v") == range(1)


def test_prefill_sees_everything_native(rng: np.random.Generator) -> None:
    """A whole prompt attends to itself in full precision, and is stored quantized."""
    x = rng.standard_normal((1, 2, 300, 64)).astype(np.float32)
    stream = open_layer(parse("kivi"), LAYER)
    seen = stream.step(x, x)

    assert np.array_equal(seen.k, x)
    assert not np.array_equal(stream.read().k, x)


@pytest.mark.parametrize("constant", [0.0, 1.0, -3.25, 1e-5, 60000.0])
def test_a_constant_group_comes_back(constant: float) -> None:
    """Where the reference divides by zero, the constant is stored as its zero point."""
    x = np.full((1, 2, 128, 64), constant, np.float32)
    stream = Kivi().open("k", {}, LAYER)
    stream.append(x)

    assert np.array_equal(stream.read(), np.float32(np.float16(x)))


def test_storing_what_was_read_changes_almost_nothing(rng: np.random.Generator) -> None:
    """Encoding decoded groups again moves values by float16 rounding of scale and zero only."""
    x = rng.standard_normal((1, 2, 128, 64)).astype(np.float32)
    once, twice = Kivi().open("k", {"bits": "4"}, LAYER), Kivi().open("k", {"bits": "4"}, LAYER)
    once.append(x)
    twice.append(once.read())

    assert np.abs(twice.read() - once.read()).max() < np.abs(x).max() * 2.0**-10
    assert np.array_equal(twice.packed()["encoded.codes"], once.packed()["encoded.codes"])


@pytest.mark.parametrize(
    ("bits", "group", "dim", "bits_per_element"),
    [(2, 32, 128, 3.0), (4, 32, 128, 5.0), (2, 64, 128, 2.5), (2, 32, 64, 3.0)],
)
def test_bits_per_element(bits: int, group: int, dim: int, bits_per_element: float) -> None:
    """b + 32/g bits: two bits with groups of 32 cost three."""
    params = {"bits": str(bits), "group": str(group)}
    for side in ("k", "v"):
        assert 8 * Kivi().storage(side, params).row_bytes(dim) / dim == bits_per_element  # type: ignore[arg-type]


def test_the_window_costs_what_the_planner_adds() -> None:
    """128 native tokens lie above the slope by (2 - 3/8) bytes an element; a bigger window costs more."""
    for side in ("k", "v"):
        plain = Kivi().storage(side, {})  # type: ignore[arg-type]
        assert plain.fixed_bytes(LAYER) == 128 * 2 * 64 * (2 - 3 / 8)
        wide = plain.windowed(Window(residual_tokens=256, sink_tokens=4))
        assert wide.fixed_bytes(LAYER) == (256 + 4) * 2 * 64 * (2 - 3 / 8)


@pytest.mark.parametrize("residual", [0, 1, 33, 100])
def test_a_window_that_cuts_groups_is_refused(residual: int) -> None:
    """R must be a multiple of the group, and the message gives one."""
    side = parse("kivi:bits=2:group=32").k
    assert side is not None
    with pytest.raises(UserError, match=r"multiple of 32.*write /residual="):
        spec.storage_of(side, "k", Window(residual_tokens=residual))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kivi:bits=3", "bits=3 is not possible; allowed: bits=2|4"),
        ("kivi:group=16", "group=16 is not possible; allowed: group=32|64|128"),
        ("kivi:levels=4", "takes no 'levels=4'; allowed: bits=2|4, group=32|64|128"),
        ("kivi:head", "takes no 'head'"),
        ("kivi:bits=2:bits=4", "'bits' is given twice"),
    ],
)
def test_wrong_parameters(text: str, says: str) -> None:
    """One line that names the method and what it takes."""
    side = parse(text).k
    assert side is not None
    with pytest.raises(UserError) as caught:
        spec.storage_of(side, "k")

    assert says in str(caught.value)


def test_values_want_whole_groups_of_channels() -> None:
    """A head of 80 is no multiple of 32; keys do not mind."""
    with pytest.raises(UserError, match="nearest: 64 or 96"):
        Kivi().storage("v", {}).row_bytes(80)
    assert Kivi().storage("k", {}).row_bytes(80) == 30
