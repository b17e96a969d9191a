"""One run in four documents and the terminal: the same decisions, findings, untested things and next steps in all."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from io import StringIO
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from report_runs import foreign, hostile, realistic
from rich.console import Console

from kvgate.cli._show import ending, print_ending
from kvgate.core.text import one_line
from kvgate.report.html import html
from kvgate.report.json import check_json
from kvgate.report.junit import junit
from kvgate.report.markdown import markdown
from kvgate.report.model import RunView
from kvgate.report.visible import bounded, visible


def flat(text: str) -> str:
    """Blanks do not count, since each renderer breaks lines where it likes, nor what stands for half a pair."""
    return re.sub(r"\s+|\ufffd|‹U\+D[89A-F]..›", "", text)


def as_html(view: RunView) -> str:
    return unescape(re.sub(r"<[^>]+>", "", re.sub(r"(?s)<style>.*?</style>", "", html(view))))


def rendered(text: str) -> list[Token]:
    """Tokens as a code host reads them: tables, struck text, HTML."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return [t for token in parser.parse(text) for t in (token, *(token.children or []))]


def as_markdown(view: RunView) -> str:
    kinds = ("text", "code_inline", "fence", "text_special")
    return "".join(t.content for t in rendered(markdown(view)) if t.type in kinds)


def as_junit(view: RunView) -> str:
    root = ET.fromstring(junit(view))
    return "\n".join(x for node in root.iter() for x in (*node.attrib.values(), node.text or ""))


def as_terminal(view: RunView) -> str:
    out = StringIO()
    print_ending(Console(file=out, width=200, color_system=None), ending(view, "/r/report.html"))
    return out.getvalue()


@pytest.mark.parametrize("make", [hostile, foreign])
def test_a_terminal_gets_nothing_to_act_on(make: Callable[[], RunView]) -> None:
    """No escape, bell, direction override or half pair in any line; a path keeps its blanks."""
    view = replace(make(), run_id="r")
    out = StringIO()
    print_ending(Console(file=out, width=60, color_system=None), ending(view, "/r/\x1b]0;t\x07\u202e/a  b.html"))

    assert [c for c in out.getvalue() if unicodedata.category(c)[0] == "C" and c not in "\n\t"] == []
    assert out.getvalue().endswith("report: /r/‹ESC›]0;t‹BEL›‹U+202E›/a  b.html\n")


def shown(text: str) -> str:
    """What the documents make of a foreign text."""
    return visible(bounded(text))


PLACES: dict[str, tuple[Callable[[RunView], str], Callable[[str], str]]] = {
    "html": (as_html, shown),
    "markdown": (as_markdown, shown),
    "junit": (as_junit, shown),
    "terminal": (as_terminal, one_line),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", [realistic, hostile, foreign])
def test_all_say_what_the_json_says(make: Callable[[], RunView], place: str) -> None:
    """Each candidate's headline, every finding's message, every untested thing, the next action and its command."""
    view = make()
    render, cleaned = PLACES[place]
    text = flat(render(view))
    missing = []
    for v in check_json(view, None)["verdicts"]:
        wanted = [v["candidate"][:100], v["headline"], *v["untested"], v["next"]["action"], v["next"]["command"] or ""]
        wanted += [f["message"].split(" | ")[0] for f in v["findings"]]
        # Every output cuts a text of ten thousand signs somewhere.
        missing += [w[:60] for w in wanted if flat(cleaned(w)[:1500]) not in text]

    assert missing == []


# A cell and its end as GitHub's own scanner finds them (cmark-gfm, ext_scanners.re): a backslash takes the next sign.
CELL = re.compile(r"(?:\\.|[^|\\\r\n])*\|")


def tables(text: str) -> list[list[str]]:
    """The lines of every table outside of code blocks."""
    found: list[list[str]] = [[]]
    fence = ""
    for line in text.splitlines():
        bar = re.match("`{3,}", line)
        if bar and (not fence or line == fence):
            fence = "" if fence else bar[0]
        if line.startswith("|") and not fence:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [t for t in found if t]


@pytest.mark.parametrize("make", [realistic, hostile, foreign])
def test_no_table_gains_or_loses_a_column(make: Callable[[], RunView]) -> None:
    """Each row of each Markdown table has as many cells as its head, whatever a model or a folder's name holds."""
    found = tables(markdown(make()))

    assert len(found) > 8
    for table in found:
        assert {len(CELL.findall(line)) for line in table} == {len(CELL.findall(table[0]))}, table[0]


@pytest.mark.parametrize(
    ("text", "cells"), [("| a | b |", 3), ("| a|b | c |", 4), (r"| a\|b | c |", 3), (r"| a\\|b | c |", 4)]
)
def test_a_bar_ends_a_cell_unless_a_backslash_takes_it(text: str, cells: int) -> None:
    """The count above sees a bar that nothing escapes, and one behind a backslash that is escaped itself."""
    assert len(CELL.findall(text)) == cells
