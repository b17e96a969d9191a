"""Markdown in which nothing of others is markup, checked with a Markdown parser."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_runs import ATTACKS, hostile, realistic

from kvgate.report.markdown import code, escape, fence, markdown, table

ANY = st.text(st.one_of(st.sampled_from("`~|\\*_[]()<>#!&-+=.:1 \n"), st.characters(codec=None, categories=None)))
ACTIVE = {"html_inline", "html_block", "link_open", "image"}


def tokens(text: str) -> list[Token]:
    """All tokens, inline ones too, with HTML allowed as on a code host."""
    flat: list[Token] = []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        flat += [token, *(token.children or [])]
    return flat


@given(ANY)
@example("[a](http://x) <b> `c` &amp; 1. x")
def test_escaped_text_is_text(text: str) -> None:
    """One paragraph that says the text, whatever is in it."""
    found = tokens("x " + escape(text))

    assert {t.type for t in found} <= {"paragraph_open", "inline", "text", "paragraph_close", "text_special"}


@given(ANY)
@example("```\n<b>")
@example("a\n````\n# b")
def test_a_fence_cannot_be_closed_from_inside(text: str) -> None:
    """The block ends where we end it."""
    found = tokens(fence(text) + "\n\nafter")

    assert [t.type for t in found if t.level == 0 and t.type not in ("text", "inline")] == [
        "fence",
        "paragraph_open",
        "paragraph_close",
    ]


@given(ANY)
@example("a`b|c``<b>")
def test_inline_code_cannot_be_closed_from_inside(text: str) -> None:
    """One code span, and in a table cell it adds no column."""
    found = tokens(table(("a", "b"), [(code(text), "end")]))

    assert sum(t.type == "td_open" for t in found) == 2
    assert not ACTIVE & {t.type for t in found}


@pytest.mark.parametrize("outputs", [True, False])
def test_a_hostile_run_has_no_active_element(outputs: bool) -> None:
    """No HTML, link or image in the whole document."""
    found = tokens(markdown(hostile(), outputs=outputs))

    assert ACTIVE & {t.type for t in found} == set()


def test_raw_attacks_would_be_active() -> None:
    """The check above sees what it looks for."""
    found = {t.type for t in tokens("<b>\n\n" + "\n\n".join(ATTACKS))}

    assert found >= ACTIVE


def test_the_verdict_comes_first() -> None:
    """Decision, reasons and next step stand before any table of numbers."""
    text = markdown(realistic())

    assert text.startswith("# kvgate: ❌ FAIL")
    assert text.index("### Next step") < text.index("The noise floor") < text.index("## Fidelity")
    assert "kvgate check smollm2 --kv k=q8_0,v=q4_0 --policy smoke" in text


def test_outputs_can_stay_out() -> None:
    """Without outputs neither prompts nor answers nor break details are written."""
    text = markdown(realistic(), outputs=False)

    assert not any(word in text for word in ("Oslo", "Prompt of", "seen in"))
    assert "invalid_json" in text
