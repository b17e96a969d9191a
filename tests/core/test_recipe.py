"""The recipe grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe, Side, parse

NAME = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda s: s not in ("native", "k", "v"))
ORIGIN = st.sampled_from(["unit", "checkpoint", "dynamic", "calibrated#9f2c1a07"])
PARAM = st.sampled_from(["tensor", "head", "token_head", "channel", "bits=2", "group=32", "x=1.5-a"])
SIDE = st.builds(
    Side,
    NAME,
    st.lists(PARAM, max_size=3).map(tuple),
    st.none() | ORIGIN,
    st.lists(NAME, max_size=3).map(tuple),
)
SELECTION = st.one_of(
    NAME, st.integers(0, 99).map(lambda i: f"L{i}"), st.integers(0, 99).map(lambda i: f"L{i}-{i + 3}")
)
BODY = st.none() | st.tuples(SIDE, SIDE)
RECIPES = st.builds(
    lambda body, keep, residual, sink: Recipe(*(body or (None, None)), tuple(keep), residual, sink),
    BODY,
    st.lists(SELECTION, max_size=3),
    st.none() | st.integers(0, 10**6),
    st.none() | st.integers(0, 10**6),
)


@given(RECIPES)
def test_a_recipe_reads_back_as_it_was_written(recipe: Recipe) -> None:
    """parse(str(r)) == r for every recipe."""
    assert parse(str(recipe)) == recipe


@given(st.text(max_size=80))
def test_any_text_is_a_recipe_or_one_line(text: str) -> None:
    """Nothing but a UserError of one line comes out, and what parses reads back."""
    try:
        recipe = parse(text)
    except UserError as e:
        assert "\n" not in str(e)
    else:
        assert parse(str(recipe)) == recipe


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("k=q8_0,v=q8_0", "q8_0"),  # both sides alike are written once
        ("q8_0 keep=L0-3 sink=4", "q8_0/keep=L0-3/sink=4"),  # blanks for shells that dislike "/"
        ("hadamard(k=q8_0,v=q4_0)", "k=q8_0+hadamard,v=q4_0+hadamard"),
        ("fp8_e4m3@unit/keep=sliding_window", "fp8_e4m3@unit/keep=sliding_window"),
        ("kivi:bits=2:group=32/residual=128", "kivi:bits=2:group=32/residual=128"),
    ],
)
def test_one_recipe_has_one_spelling(text: str, same: str) -> None:
    """Input sugar ends in the canonical spelling."""
    assert str(parse(text)) == same


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("Q8_0", "codec"),  # case matters: engines differ in what they accept
        ("k=q8_0", "gives k but not v"),
        ("v=q8_0,k=q4_0", "k first"),
        ("q8_0:tensr", "tensor"),
        ("q8_0@calibrated#12", "calibrated#8hex"),
        ("q8_0/keep=L9-4", "backwards"),
        ("q8_0/keep=L0/keep=L1", "given twice"),
        ("q8_0/residual=-1", "residual=TOKENS"),
        ("q8_0/quiet", "keep="),
        ("q8_0\x1b[31m", "codec"),
        ("native+hadamard", "codec"),  # native stores nothing that could be rotated
        ("x" * 2000, "1024"),
    ],
)
def test_a_wrong_recipe_names_the_part_and_the_way_out(text: str, word: str) -> None:
    """The message is one line and holds the allowed spelling."""
    with pytest.raises(UserError, match=word) as e:
        parse(text)

    assert "\n" not in str(e.value)
