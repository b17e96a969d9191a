"""The page in a real browser: nothing runs, nothing is requested, it fits a phone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, sync_playwright
from report_runs import MARKER, foreign, hostile, realistic
from test_report_html import without_autoescape

from kvgate.report.html import html

pytestmark = pytest.mark.browser
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield instance
        instance.close()


class Seen(NamedTuple):
    """What a page did: requests beside itself and why they failed, dialogs, errors, a script that ran, its widths."""

    requests: list[str]
    failures: dict[str, str | None]
    dialogs: list[str]
    errors: list[str]
    ran: bool
    page_px: int
    window_px: int
    title: str


def look(browser: Browser, file: Path, width: int, scheme: str = "light") -> Seen:
    """Open a file, open every fold, and report."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    requests: list[str] = []
    failures: dict[str, str | None] = {}
    dialogs: list[str] = []
    errors: list[str] = []
    page.on("request", lambda r: requests.append(r.url))
    page.on("requestfailed", lambda r: failures.update({r.url: r.failure}))
    page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.wait_for_load_state("networkidle")
    seen = Seen(
        [r for r in requests if r not in (file.as_uri(), "data:,")],
        failures,
        dialogs,
        errors,
        bool(page.evaluate("window.__kvgate_ran === 1")),
        page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"),
        page.evaluate("window.innerWidth"),
        page.title(),
    )
    context.close()
    return seen


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, run in (("realistic", realistic()), ("hostile", hostile()), ("foreign", foreign())):
        written[name] = folder / f"{name}.html"
        written[name].write_text(html(run), encoding="utf-8")
    return written


@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("name", ["realistic", "hostile", "foreign"])
def test_the_page_is_still(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    """No script, no request, no dialog, no console error, no sideways scrolling; not with every fold open either."""
    seen = look(browser, pages[name], width)

    assert seen.requests == []
    assert seen.dialogs == []
    assert seen.errors == []
    assert not seen.ran
    assert seen.page_px <= seen.window_px == width


def test_the_test_would_see_a_script(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With escaping off and the policy removed the hostile page runs and requests: both walls hold something back."""
    without_autoescape(monkeypatch)
    naked = re.sub(r"<meta http-equiv[^>]*>", "", html(hostile()), count=1)
    open_page = tmp_path / "open.html"
    open_page.write_text(naked, encoding="utf-8")

    seen = look(browser, open_page, 1280)

    assert seen.ran
    assert any("127.0.0.1:9" in r and seen.failures.get(r) != "csp" for r in seen.requests)


def test_the_policy_alone_stops_scripts(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With escaping off the policy is the second wall: the marker script does not run and no request leaves."""
    without_autoescape(monkeypatch)
    page = html(hostile())
    assert f"<script>{MARKER}</script>" in page
    (tmp_path / "unescaped.html").write_text(page, encoding="utf-8")

    seen = look(browser, tmp_path / "unescaped.html", 1280)

    assert not seen.ran
    assert seen.requests
    assert {seen.failures.get(r) for r in seen.requests} == {"csp"}
    assert any("Content Security Policy" in e for e in seen.errors)


def test_both_schemes_paint_differently(browser: Browser, pages: dict[str, Path]) -> None:
    """Light and dark are both defined; the body's ground differs."""
    grounds = []
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(pages["realistic"].as_uri())
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()

    assert grounds[0] != grounds[1]


#: Every text with less than 4.5 to 1 on the grounds under it (WCAG 2), as painted; drawings have 3 to 1 of their own.
FAINT = """() => {
  const part = x => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4
  const light = c => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2])
  const colour = s => { const n = s.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1] }
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat([1])
  const paint = e => colour(getComputedStyle(e).backgroundColor)
  const ground = e => e ? over(paint(e), ground(e.parentElement)) : [255, 255, 255, 1]
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim()
    if (!text || e.closest("svg") || e.closest(".skip")) continue
    const under = ground(e), a = light(over(colour(getComputedStyle(e).color), under)), b = light(under)
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) found.push(text.slice(0, 40))
  }
  return found }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    """4.5 to 1 as painted, with every fold open; the same check sees a page with one faint word."""
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(pages["realistic"].as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")

    assert page.evaluate(FAINT) == []
    page.evaluate(
        "document.querySelector('.sub').style.opacity = 1, document.querySelector('.sub').style.color = '#888'"
    )
    assert len(page.evaluate(FAINT)) == (scheme == "light")
    context.close()


def test_a_phone_reads_tables_down(browser: Browser, pages: dict[str, Path]) -> None:
    """At 375 px each number of a table of metrics lies within the width, under its metric and beside its arm's name."""
    context = browser.new_context(viewport={"width": 375, "height": 800})
    page = context.new_page()
    page.goto(pages["realistic"].as_uri())
    ends = page.evaluate("[...document.querySelectorAll('.stack .num')].map(e => e.getBoundingClientRect().right)")

    assert len(ends) > 50 and max(ends) <= 375
    assert page.get_by_role("cell").first.is_visible()
    assert page.get_by_role("rowheader", name="Mean KL average distance").first.is_visible()
    context.close()


def test_it_reads_without_javascript(browser: Browser, pages: dict[str, Path]) -> None:
    """With scripting off the verdicts, the charts and the folds are there."""
    context = browser.new_context(java_script_enabled=False, viewport={"width": 375, "height": 800})
    page = context.new_page()
    page.goto(pages["realistic"].as_uri())

    assert page.get_by_role("heading", name="q4_0 FAIL").is_visible()
    assert page.get_by_role(
        "img", name=re.compile("^q4_0. q4_0: 0.052 nat .90 % interval 0.042 to 0.065")
    ).first.is_visible()
    page.get_by_text("14 entries").click()
    assert page.get_by_text("engine.options.n_ubatch").is_visible()
    context.close()
