"""Quotes travel from the claims to report, JSON and terminal, apart from what was measured, and decide nothing."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from report_runs import hostile, realistic
from rich.console import Console

import kvgate
from kvgate.cli._show import print_verdict
from kvgate.evidence.family import subject_of
from kvgate.evidence.match import NOT_TESTED
from kvgate.evidence.quote import quotes_for
from kvgate.report.html import html
from kvgate.report.json import check_json
from kvgate.report.markdown import markdown
from kvgate.report.model import PublishedView, RunView

ATTACK = "<script>alert(1)</script> | [x](javascript:y) \x1b[31m"


def quoted(name: str = "Qwen3.6-27B", kv: str = "q8_0") -> RunView:
    """The realistic run with the quotes of a model that others have published on, for both candidates."""
    found = quotes_for(subject_of(name), kv, "llama_cpp")
    views = tuple(PublishedView(q.id, q.statement, q.carries, q.caveats, q.source) for q in found)
    return replace(realistic(), published={"q8_0": views, "q4_0": ()})


@pytest.fixture(autouse=True)
def _no_width_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the test runner may have COLUMNS set, which wins over a terminal's own width."""
    monkeypatch.delenv("COLUMNS", raising=False)


def terminal(view: RunView, candidate: str, width: int) -> str:
    out = StringIO()
    verdict = next(v for v in view.verdicts if v.candidate == candidate)
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    print_verdict(console, verdict, view.published.get(candidate))
    return out.getvalue()


def test_the_words_are_the_same_everywhere() -> None:
    """The sentence for no claim stands once in the code, for the report, the terminal and `kvgate evidence`."""
    written = [p.name for p in Path(kvgate.__file__).parent.rglob("*.py") if f'"{NOT_TESTED}"' in p.read_text()]

    assert written == ["source.py"]


def test_quotes_stand_in_every_output() -> None:
    """HTML, Markdown, JSON and terminal have statement, distance and caveats, marked as not measured here."""
    view = quoted()
    quotes = view.published["q8_0"]

    assert 1 <= len(quotes) <= 3
    assert check_json(view, None)["published"]["q8_0"][0]["id"] == quotes[0].id
    page, text = html(view), markdown(view)
    words = " ".join(terminal(view, "q8_0", 400).split())
    assert "Published elsewhere, not measured here" in page
    assert "Published elsewhere, not measured here" in text
    for q in quotes:
        assert q.statement in page
        assert q.source in page
        assert q.statement.split("%")[0] in text.replace("\\", "")
        assert f"not measured here: {q.statement} ({q.distance})" in words


def test_nothing_published_is_one_line() -> None:
    """A candidate that nobody wrote about has one line that says so, everywhere."""
    view = quoted()

    assert check_json(view, None)["published"]["q4_0"] == []
    assert f"Published elsewhere, not measured here: {NOT_TESTED}" in html(view)
    assert f"Published elsewhere, not measured here: {NOT_TESTED}" in markdown(view)
    assert terminal(view, "q4_0", 100).count(NOT_TESTED) == 1
    assert f"   published  {NOT_TESTED}\n" in terminal(view, "q4_0", 100)


def test_what_was_not_looked_up_is_not_mentioned() -> None:
    """A run without the field shows neither quotes nor the line."""
    view = realistic()

    assert "ublished" not in html(view)
    assert "ublished" not in markdown(view)
    assert "ublished" not in terminal(view, "q8_0", 100)
    assert check_json(view, None)["published"] == {}


def test_quotes_decide_nothing() -> None:
    """Verdicts, exit code and results are the same with and without them."""
    plain, told = check_json(realistic(), None), check_json(quoted(), None)

    assert {k: v for k, v in plain.items() if k != "published"} == {k: v for k, v in told.items() if k != "published"}


def test_a_hostile_claim_stays_text() -> None:
    """Claims are files that others may write: markup in them is shown, never run."""
    bad = PublishedView("x", ATTACK, (ATTACK,), (ATTACK,), ATTACK)
    view = replace(hostile(), published={v.candidate: (bad,) for v in hostile().verdicts})

    page = html(view)

    assert "<script>alert(1)</script> |" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)</script> |" not in markdown(view)
    out = StringIO()
    print_verdict(Console(file=out, width=80), view.verdicts[0], (bad,))
    assert "\x1b[31m" not in out.getvalue()


@pytest.mark.parametrize("width", [40, 80])
def test_the_terminal_breaks_lines(width: int) -> None:
    """Quotes fit narrow terminals."""
    lines = [line for line in terminal(quoted(), "q8_0", width).splitlines() if "$ kvgate" not in line]

    assert any("published" in line for line in lines)
    assert max(map(len, lines)) <= width
