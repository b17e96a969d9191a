"""`keep=`, methods' own native layers, and recipes by layer as data."""

from __future__ import annotations

import pytest

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.methods.mixed import Mixed, is_hybrid, layer_recipes, native_layers, selected, sequence_bytes

KINDS = ("sliding_window", "sliding_window", "full_attention") * 2
LAYERS = tuple(
    LayerGeometry(i, kind, 2, 64, 64, window_tokens=512 if kind == "sliding_window" else None)
    for i, kind in enumerate(KINDS)
)
MODEL = ModelGeometry("made", "gemma3", LAYERS, 8192, 1000, Source("assumed", "made"), len(LAYERS))


def native(text: str, model: ModelGeometry = MODEL) -> list[int]:
    return [i for i, r in enumerate(layer_recipes(parse(text), model)) if r.is_native]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("q8_0", []),
        ("q8_0/keep=L0", [0]),
        ("q8_0/keep=L1-3", [1, 2, 3]),
        ("q8_0/keep=sliding_window", [0, 1, 3, 4]),
        ("q8_0/keep=full_attention,L0", [0, 2, 5]),
        ("turboquant_4bit_nc", [0, 1, 4, 5]),
        ("k=turboquant_4bit_nc,v=q8_0/keep=L2", [0, 1, 2, 4, 5]),
        ("native", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_kept_layers_are_native(text: str, kept: list[int]) -> None:
    """Selectors by number, range and kind, and a method's boundary layers, add up."""
    assert native(text) == kept


def test_the_others_have_the_recipe_without_keep() -> None:
    """What a layer stores says nothing of other layers; sinks and windows stay."""
    recipes = layer_recipes(parse("q8_0/keep=L0/residual=64/sink=4"), MODEL)

    assert str(recipes[1]) == "q8_0/residual=64/sink=4"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("q8_0/keep=L6", "made has layers L0 to L5; write up to L5"),
        ("q8_0/keep=mla", "allowed: full_attention, sliding_window, L0-5"),
    ],
)
def test_selectors_that_name_nothing(text: str, says: str) -> None:
    """A layer or kind that the model does not have is refused, with what it has."""
    with pytest.raises(UserError) as caught:
        layer_recipes(parse(text), MODEL)

    assert says in str(caught.value)


def test_hybrids_keep_no_boundary_layers() -> None:
    """A model with recurrent layers has few attention layers; vLLM leaves none of them native."""
    state = LayerGeometry(0, "mamba", 0, 0, 0, state=(StatePart("ssm", 10),))
    hybrid = ModelGeometry("made", "jamba", (state, *LAYERS[1:]), 8192, 1000, Source("assumed", "made"), 6)

    assert is_hybrid(hybrid)
    assert not is_hybrid(MODEL)
    assert native_layers(parse("turboquant_4bit_nc"), hybrid) == ()


def test_layers_without_a_cache_count_for_the_boundary() -> None:
    """The last layers of the model are meant, also where only some of them have a cache."""
    some = ModelGeometry("made", "llama", LAYERS[:4], 8192, 1000, Source("assumed", "made"), 32)

    assert native_layers(parse("turboquant_4bit_nc"), some) == (0, 1, 30, 31)
    assert native("turboquant_4bit_nc", some) == [0, 1]


def test_a_table_of_recipes() -> None:
    """Later entries win, and the table comes back as it was written."""
    table = {"*": "k=q8_0,v=q4_0", "L0-1,L5": "native", "sliding_window": "q8_0"}
    mixed = Mixed.parse(table)

    assert [str(r) for r in mixed.layers(MODEL)] == ["q8_0", "q8_0", "k=q8_0,v=q4_0", "q8_0", "q8_0", "native"]
    assert mixed.as_table() == table
    assert Mixed.parse(mixed.as_table()) == mixed


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"L0-1": "q8_0"}, "says nothing about L2, L3, L4, L5"),
        ({"*": "q8_0/keep=L0"}, "has its own keep="),
        ({"*": "q8_0", "L9": "native"}, "made has layers L0 to L5"),
        ({"*": "k=q8_0"}, "gives k but not v"),
    ],
)
def test_wrong_tables(table: dict[str, str], says: str) -> None:
    """Holes, own keeps, unknown layers and wrong recipes are refused in one line."""
    with pytest.raises(UserError) as caught:
        Mixed.parse(table).layers(MODEL)

    assert says in str(caught.value)


def test_bytes_of_a_mix() -> None:
    """Each layer is priced by its own recipe, inside its own window."""
    recipes = Mixed.parse({"*": "q8_0", "L0": "native", "L5": "kivi:bits=2:group=32/residual=128"}).layers(MODEL)
    q8, full, tokens = 2 * 2 * 68, 2 * 2 * 64 * 2, 4096

    kivi = 2 * (2 * 24 * (tokens - 128) + 2 * 64 * 2 * 128) - 2 * 128 * (
        64 * 2 - 24
    )  # keys: 4,096 is a whole number of windows
    assert sequence_bytes(recipes, MODEL.layers, tokens) == 512 * full + 3 * 512 * q8 + tokens * q8 + kivi


def test_selected_takes_both_ends() -> None:
    """L1-1 is one layer."""
    assert selected(("L1-1",), MODEL) == {1}
