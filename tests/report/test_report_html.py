"""The page: what it says, in which order, and that nothing of others is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest
from jinja2 import Environment
from report_page import offences, tags
from report_runs import GOLDEN_TEXTS, foreign, golden_records, hostile, realistic

from kvgate.core.estimate import Estimate
from kvgate.core.observation import PairScore, Raw, Records
from kvgate.report import html as page_module
from kvgate.report.html import environment, html
from kvgate.report.sections import golden
from kvgate.report.sections.setup import when
from kvgate.report.sections.verdicts import verdict_views


def words(page: str) -> str:
    """The page's text, spaces collapsed."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<style>.*?</style>", "", page))).split())


@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize("make", [realistic, hostile])
def test_nothing_can_run_or_load(make: Any, outputs: bool) -> None:
    """No script, handler, form, image or foreign address; one style; the policy before everything."""
    assert offences(html(make(), outputs=outputs)) == []


def without_autoescape(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the same templates, escaping off."""
    real: Environment = environment()
    mutant = Environment(
        loader=real.loader,
        autoescape=False,
        finalize=real.finalize,
        undefined=real.undefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    mutant.filters.update(real.filters)
    monkeypatch.setattr(page_module, "environment", lambda: mutant)


def test_escaping_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above fails for templates without autoescape."""
    without_autoescape(monkeypatch)

    assert any("<script>" in o for o in offences(html(hostile())))


def test_a_missing_policy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above fails without a Content-Security-Policy, and for one that allows scripts."""
    monkeypatch.setattr(page_module, "CONTENT_SECURITY_POLICY", "default-src *")
    assert "no Content-Security-Policy" in offences(html(realistic()))

    loose = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'"
    monkeypatch.setattr(page_module, "CONTENT_SECURITY_POLICY", loose)
    assert offences(html(realistic()))


def test_templates_in_data_are_not_evaluated() -> None:
    """A model that writes {{7*7}} is quoted."""
    text = words(html(hostile()))

    assert "{{7*7}}" in text
    assert " 49 " not in text


def test_long_names_are_cut_where_they_are_repeated() -> None:
    """Names of 10,000 signs in hundreds of places are no page of many megabytes, and the title is one line."""
    page = html(foreign())

    assert len(page) < 1_000_000
    assert len(re.findall(r"<title>(.*)</title>", page)[0]) < 400


@pytest.mark.parametrize("make", [hostile, foreign])
def test_no_hidden_character_reaches_the_page(make: Any) -> None:
    """Controls, direction overrides and half surrogates are named, and the page is UTF-8."""
    page = html(make())

    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
    assert "‹U+202E›" in page
    assert "‹ESC›" in page


def test_the_verdict_comes_first() -> None:
    """Decision, reason, change, untested and next step stand before any chart."""
    text = words(html(realistic()))
    order = [
        text.index(x)
        for x in (
            "PASS (smoke: not a ship decision)",
            "Why Mean KL, prefill",
            "Not tested Contexts over 1,024 tokens – and 2 more below",
            "Next Run the default policy at your own context length",
            "q4_0: FAIL",
            "What changed: the KV cache native → q8_0 , which this engine runs as q8_0+hadamard",
            "Tool calls behind a long history",
            "kvgate check smollm2 --kv k=q8_0,v=q4_0 --policy smoke",
            "How to read the distances: the noise floor",
            "Mean KL by category, prefill",
        )
    ]

    assert order == sorted(order)


@pytest.mark.parametrize(
    "said",
    [
        "11.95 KiB",
        "1.882 × the base's tokens",
        "excess over the base's own noise",
        "takes another kernel for f16 and f32",
        "the largest floor (ubatch32) is 0.00376 nat, which is 87 % of the candidate's 0.00430 nat",
        "0.052 nat 0.042 to 0.065",
        "average distance of the next-token predictions from the base's; nat, 0 is identical",
        "Mean KL, prefill, over the noise floor: 0.0484 nat (90 % interval 0.0422 to 0.0547), "
        "all of it at or above the limit of 0.01 nat",
        "p = 0.12 (luck alone gives this or more in 12 % of such runs)",
        "Confirmed breaks 3 of 12 prompts",
        "Mean KL by position, prefill",
        "Confident flips (base margin over 0.1)",
        "invalid_json confirmed by reruns",
        "reruns do not decide yet",
        "-100 pt",
        "declared change: ubatch_tokens 512 → 32",
        "Confirmed breaks 3 of 12",
        "equal to the engine's log",
        "12 prompts: a 22 % break rate would go unseen",
        "about 20 documents or prompts would decide (80 % power, if the estimate is true)",
        "engine.options.n_ubatch",
        "panel device unknown ? ?",
        "kernel changed: tiled flash attention -> vector flash attention",
        "2,304 observations in 12 independent units",
        "cluster bootstrap, percentile, B=2000, 90 % two-sided",
    ],
)
def test_the_page_says(said: str) -> None:
    """Each part of the report is there in words, not only in colour or on hover."""
    assert said in words(html(realistic()))


def test_unknown_numbers_carry_their_reason_in_the_text() -> None:
    """A ? has a note under its table and the same words on hover."""
    page = html(realistic())

    assert "? – 2304 positions; kl_p999 needs at least 10000" in words(page)
    assert any("needs at least 10000" in a.get("title", "") for t, a in tags(page) if t == "sup")


def test_the_break_is_marked_where_the_texts_part() -> None:
    """Equal text is plain, the rest of both sides is marked, an early end is said."""
    page = html(realistic())

    same = re.escape("{&#34;invoice&#34;: &#34;A-113&#34;, &#34;total&#34;: 48.50, &#34;currency&#34;: &#34;EUR&#34;")
    assert re.search(f'<span class="same">{same}</span><mark>}}</mark>', page)
    assert re.search(f'<span class="same">{same}</span><mark class="end"', page)


def test_outputs_can_stay_out() -> None:
    """Without outputs neither prompts nor answers nor break details are on the page, and it says so."""
    page = html(realistic(), outputs=False)

    assert not any(word in page for word in ("Oslo", "Prompt of", "seen in"))
    assert "left out of this report on request" in page
    assert "invalid_json" in page


def test_the_page_is_accessible() -> None:
    """Every table has a caption and scoped headers, every drawing has words, headings do not skip."""
    found = tags(html(realistic()))

    assert all(a.get("scope") in ("col", "row") for t, a in found if t == "th")
    assert sum(t == "table" for t, _ in found) == sum(t == "caption" for t, _ in found)
    assert all(
        a.get("aria-label") or a.get("aria-hidden") for t, a in found if t == "svg" and (a.get("class") or "role" in a)
    )
    levels = [int(t[1]) for t, _ in found if re.fullmatch("h[1-6]", t)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert [(a, b) for a, b in pairwise(levels) if b > a + 1] == []
    ids = [a["id"] for _, a in found if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for t, a in found if t == "a"} <= set(ids)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


STYLE = files("kvgate.report.html").joinpath("page.css").read_text()
SCHEMES = re.findall(r":root \{([^}]*--bg[^}]*--ink[^}]*)\}", STYLE)


@pytest.mark.parametrize("scheme", SCHEMES, ids=["light", "dark"])
def test_contrast_is_aa(scheme: str) -> None:
    """Text has 4.5 to 1 on every ground it stands on, marks in charts 3 to 1, in both schemes."""
    c = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", scheme))
    texts = [(ink, ground) for ink in ("ink", "soft", "link") for ground in ("bg", "paper", "wash")]
    texts += [(d, f"{d}-bg") for d in ("pass", "fail", "inconclusive", "invalid")]
    texts += [(d, "paper") for d in ("pass", "fail", "inconclusive", "invalid", "untested", "warn")]
    texts += [("ink", f"{d}-bg") for d in ("pass", "fail", "inconclusive", "invalid")]
    texts += [("ink", "mark-ref"), ("ink", "mark-got")]

    assert [p for p in texts if contrast(c[p[0]], c[p[1]]) < 4.5] == []
    assert [s for s in ("s0", "s1", "s2", "s3", "s4", "s5", "f") if contrast(c[s], c["paper"]) < 3] == []


def test_contrast_by_definition() -> None:
    """Black on white is 21 to 1, a colour on itself 1 to 1."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == 1


def many(prompts: int, chars: int, broke: str) -> Records:
    base = "The answer goes on in the same way. " * (chars // 36)
    texts = tuple((f"p{i}", "chat", base, base[: 20 + i] + "<&>" + base[20 + i :], broke) for i in range(prompts))
    return golden_records(texts)


@pytest.mark.parametrize("broke", ["", "repetition_loop"])
def test_many_prompts_stay_a_page(broke: str) -> None:
    """250 long answers that all differ on two candidates stay below 3 MB; what is hidden is counted."""
    run = realistic()
    records = many(250, 8000, broke)
    both = replace(
        records,
        raws={key: records.raws["q4_0", key[1]] if key[0] == "q8_0" else value for key, value in records.raws.items()},
        pairs={
            key: records.pairs["q4_0", key[1]] if key[0] == "q8_0" else value for key, value in records.pairs.items()
        },
    )

    page = html(replace(run, records={"golden": both}))

    assert len(page.encode()) < 3_000_000
    assert "more differing answers are in the store" in page


def test_the_counts_of_golden_add_up() -> None:
    """Same, other and broken are all prompts; an engine failure is none of these."""
    records = golden_records()
    dead = next(iter(records.cases))
    raws = {**records.raws, ("q8_0", dead): (Raw(None, "EngineDied: exit 9"),)}
    view = replace(realistic(), records={"golden": replace(records, raws=raws)})

    q8, q4 = golden.golden_views(view, outputs=True)

    assert (q8.identical, q8.failed, q8.broken) == (len(GOLDEN_TEXTS) - 1, 1, 0)
    assert q4.identical + q4.drifted + q4.broken + q4.failed == q4.prompts == len(GOLDEN_TEXTS)
    assert q4.classes == (("invalid_json", 1, 0, 0), ("number_drift", 0, 0, 1), ("repetition_loop", 1, 0, 0))


def test_a_break_that_a_floor_shows_too_does_not_count() -> None:
    """Reproduced on the candidate but broken between the base and itself: said, and not among the confirmed."""
    records = golden_records()
    first = next(iter(records.cases))
    pairs = {**records.pairs, ("restart", first): PairScore("invalid_json")}
    run = replace(realistic(), records={"golden": replace(records, pairs=pairs)})

    _, q4 = golden.golden_views(run, outputs=True)

    assert q4.classes[0] == ("invalid_json", 0, 1, 0)
    assert q4.breaks[0].confirmed == "not counted: the base breaks against itself here"
    assert "broken on floor arms (restart: invalid_json)" in words(html(run))


def test_needles_are_no_golden_prompts() -> None:
    """A needle run has a map; its haystacks are not printed as prompts."""
    run = realistic()
    needle = run.records["needle"]
    raws = {key: (Raw({"text": "the code is 1234"}),) for key in needle.scores}
    pairs = {key: PairScore("lost_needle") for key in needle.scores if key[0] == "q4_0"}
    records = {"needle": replace(needle, raws=raws, pairs=pairs)}

    assert golden.golden_views(replace(run, records=records), outputs=True) == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2026-11-30T10:03:13.627705+00:00", "2026-11-30 10:03 UTC"),
        ("2026-11-30T12:03:00+02:00", "2026-11-30 10:03 UTC"),
        ("2026-11-30T12:03:00", "2026-11-30 12:03"),
        ("yesterday", "yesterday"),
    ],
)
def test_times_are_utc_to_the_minute(given: str, shown: str) -> None:
    """A time with a zone is said in UTC; one without is not given one."""
    assert when(given) == shown


def test_what_decides_a_pass_is_said_first() -> None:
    """The measured rule stands before the rules that only made the run comparable."""
    card = verdict_views(realistic())[0]

    assert [f.rule for f in card.reasons] == ["kl-mean", "engaged", "golden-breaks"]


def test_a_suite_that_nobody_knew_is_shown() -> None:
    """A new suite's metrics appear without an edit of the report."""
    run = realistic()
    e = run.evidence["q8_0"]
    accuracy = Estimate(0.5, 0.4, 0.6, 0.9, 40, 40, "1", "Wilson")
    odd = e.summaries["golden"].metrics["golden.net_breaks"]
    new = replace(e.summaries["needle"], metrics={"tools.call_accuracy": accuracy, "not a metric id": odd})

    text = words(html(replace(run, evidence={"q8_0": replace(e, summaries={"tools": new})})))

    assert "Call accuracy 50 % 40 to 60" in text


def test_a_run_without_anything_is_a_page() -> None:
    """No candidate, no capacity, no records: still a page, and it says INVALID."""
    empty = replace(realistic(), arms=(), capacity=(), evidence={}, verdicts=(), records={}, manifest={}, caveats=())

    assert offences(html(empty)) == []
    assert "INVALID" in html(empty)
