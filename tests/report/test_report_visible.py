"""Text of others becomes visible and nothing else."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.report.visible import bounded, excerpt, first_difference, one_line, visible

ANY = st.text(st.characters(codec=None, categories=None), max_size=300)


@given(ANY)
def test_no_hidden_character_is_left(text: str) -> None:
    """After `visible` only newline, tab and the two joiners remain of all control and format characters."""
    shown = visible(text)

    hidden = [
        c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t\u200c\u200d"
    ]
    assert hidden == []
    assert shown.encode("utf-8").decode("utf-8") == shown


@given(ANY)
def test_twice_is_once(text: str) -> None:
    """A text that is already visible does not change, so that renderers may be careful twice."""
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize("text", ["Grüße, 日本語, العربية, हिन्दी", "👩\u200d🚀 é\u0301", "tab\there\nline"])
def test_honest_text_is_untouched(text: str) -> None:
    """Other scripts, emoji and accents pass through."""
    assert visible(text) == text


def test_what_is_hidden_gets_a_name() -> None:
    """A reader sees which character it was."""
    assert visible("a\x1b[0m\u202eb\ud800\x00\r") == "a‹ESC›[0m‹U+202E›b‹U+D800›‹NUL›‹CR›"


@given(st.text("ab", max_size=60), st.text("ab", max_size=60))
def test_first_difference_by_definition(a: str, b: str) -> None:
    """The bisection finds what walking along both texts finds."""
    walked = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    assert first_difference(a, b) == walked


@given(ANY, st.integers(0, 300), st.integers(1, 200))
def test_an_excerpt_accounts_for_every_character(text: str, around: int, limit: int) -> None:
    """Shown and not shown add up to the text, and the position asked for is inside."""
    cut = excerpt(text, around, limit)

    assert cut.text == visible(text[cut.before : len(text) - cut.after])
    assert len(text) - cut.before - cut.after == min(limit, len(text))
    assert cut.before <= min(around, len(text))
    assert around >= len(text) or around < len(text) - cut.after


def test_long_texts_say_that_they_were_cut() -> None:
    """Nothing disappears without a note."""
    assert bounded("x" * 12_000).endswith("(2,000 more characters are not shown)")
    assert one_line("a\nb" * 400, 50).endswith("…")
    assert len(one_line("a\nb" * 400, 50)) == 50
