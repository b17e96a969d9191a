"""The plan's page: one file, no script, no request, it fits a phone, and its pictures say what the table says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from kvgate.cli._plan_page import page_of
from kvgate.cli.main import main
from kvgate.core.geometry import LayerGeometry, ModelGeometry
from kvgate.core.recipe import parse
from kvgate.core.source import Source
from kvgate.plan.answer import DeviceMemory, Question, answer
from kvgate.plan.curve import curve, curve_contexts
from kvgate.plan.terms import Serving
from kvgate.report.plan_page import plan_html
from kvgate.report.plan_page.chart import concurrency, tokens_text
from kvgate.report.plan_page.model import Curve, Point

HERE = Source("spec", "made for this test")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
HOSTILE = "<script>window.__ran=1</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


def question(name: str = "Qwen3-32B", device: bool = True) -> Question:
    layer = LayerGeometry(0, "full_attention", 8, 128, 128)
    geometry = ModelGeometry(
        name, "qwen3", tuple(replace(layer, index=i) for i in range(64)), 40_960, 1000, HERE, notes=(name,)
    )
    return Question(
        geometry,
        tuple(parse(r) for r in ("bf16", "fp8_e4m3", "nvfp4")),
        Serving("vllm", 32_768),
        name,
        65_520_000_000,
        name,
        DeviceMemory(name, 150_754_820_096, HERE, 4_800_000_000_000) if device else None,
    )


def page(name: str = "Qwen3-32B", device: bool = True) -> str:
    return plan_html(page_of(answer(question(name, device))))


class Tags(HTMLParser):
    """Tags and attributes of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_is_alone() -> None:
    """No script, no outside address, a policy that forbids both."""
    tags = Tags(page()).tags

    assert not {t for t, _ in tags} & {"script", "iframe", "object", "embed", "form", "base"}
    policy = next(a["content"] for t, a in tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'") and "script" not in policy
    for _, attrs in tags:
        assert not [k for k in attrs if k.startswith("on")]
        for key in ("src", "href"):
            assert (attrs.get(key) or "#").startswith(("#", "data:"))


def test_what_others_wrote_is_text() -> None:
    """A hostile model name is shown and does nothing."""
    text = page(HOSTILE)

    assert "<script>" not in text and "<img" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text and "\u202e" not in text


def test_the_table_and_both_columns_are_there() -> None:
    """Ideal and reserved, storage and speed, budget, conditions and every step."""
    text = page()

    for words in ("ideal: sequences", "vllm: sequences", "storage ratio", "time ratio", "KV budget", "Try first"):
        assert words in text
    assert "GPU KV cache size: 256,240 tokens" in text
    assert len(re.findall(r'class="seg p-weights"', text)) == 3, "one bar a recipe"


def test_without_a_device_the_page_says_why() -> None:
    """No chart and no bars, but the bytes and the reason."""
    text = page(device=False)

    assert "no device: give --device" in text
    assert '<svg class="lines"' not in text and "262,144" in text


def test_bars_add_up_to_the_device() -> None:
    """Parts of a GPU's memory are all of it, and the used part is whole sequences."""
    for bar in page_of(answer(question())).bars:
        assert sum(p.bytes for p in bar.parts) == bar.bytes == 150_754_820_096
        used = next(p.bytes for p in bar.parts if p.kind == "used")
        assert used % (32_768 * 64 * 8 * {"bf16": 512, "fp8_e4m3": 256, "nvfp4": 144}[bar.recipe]) == 0


def test_the_curve_is_the_plan_at_each_context() -> None:
    """Each point is what a plan for that context says; the asked one is among them."""
    q = question()
    contexts = curve_contexts(q)
    points = curve(q, contexts)

    assert contexts == (1024, 2048, 4096, 8192, 16_384, 32_768)
    assert points[-1].ideal == (7, 15, 27)
    assert points[0].ideal == tuple(
        r.ideal.sequences for r in answer(replace(q, serving=Serving("vllm", 1024))).recipes if r.ideal
    )


def test_the_chart_puts_more_sequences_higher() -> None:
    """Both scales are logarithmic: doubling the context is the same step right as doubling the sequences is up."""
    curves = [Curve("a", tuple(Point(1024 << i, 1024 >> i, None) for i in range(5)))]
    chart = concurrency(curves, asked_tokens=4096, engine="vllm")
    assert chart is not None
    (series,) = chart.series
    xs, ys = [m.x for m in series.marks], [m.y for m in series.marks]

    assert xs == sorted(xs) and ys == sorted(ys)
    assert max(b - a for a, b in pairwise(xs)) == pytest.approx(min(b - a for a, b in pairwise(xs)), abs=0.02)
    assert chart.asked == pytest.approx(xs[2])
    assert concurrency([], asked_tokens=1, engine="x") is None
    assert concurrency([Curve("a", (Point(1024, 0, 0), Point(2048, None, None)))], asked_tokens=1, engine="x") is None
    assert [tokens_text(t) for t in (1500, 32_768, 1 << 20)] == ["1,500", "32K", "1M"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield instance
        instance.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("name", ["Qwen3-32B", HOSTILE], ids=["plain", "hostile"])
def test_the_page_in_a_browser(browser: Browser, tmp_path: Path, name: str, width: int) -> None:
    """Nothing runs, nothing is asked for, nothing is wider than the window, and markers lie inside their chart."""
    file = tmp_path / "plan.html"
    file.write_text(page(name), encoding="utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 800})
    requests: list[str] = []
    errors: list[str] = []
    tab.on("request", lambda r: requests.append(r.url))
    tab.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("dialog", lambda d: (errors.append(d.message), d.dismiss()))
    tab.goto(file.as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    outside = tab.evaluate(
        "(() => { const box = document.querySelector('svg.lines').getBoundingClientRect();"
        " return [...document.querySelectorAll('svg.lines path.m')].map(m => m.getBoundingClientRect())"
        ".filter(r => r.left < box.left || r.right > box.right || r.top < box.top || r.bottom > box.bottom).length })()"
    )

    assert [r for r in requests if r not in (file.as_uri(), "data:,")] == []
    assert errors == []
    assert tab.evaluate("window.__ran") is None
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert outside == 0
    tab.close()


def test_the_command_writes_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--html FILE` writes it whole, and a place that cannot be written is one line and leaves nothing behind."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = tmp_path / "plan.html"
    args = ["plan", "Qwen/Qwen3-32B", "--device", "h200", "--kv", "bf16", "--context", "32768"]

    assert main([*args, "--html", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main([*args, "--html", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]
    assert "cannot be written" in capsys.readouterr().err
