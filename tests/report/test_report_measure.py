"""Numbers end where their intervals do, and none that is printed contradicts what was decided by it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core.estimate import Estimate, Test
from kvgate.core.registry import discover
from kvgate.core.verdict import Finding, Status
from kvgate.report.measure import cell, rounded
from kvgate.report.sections.findings import finding_view
from kvgate.report.sections.verdicts import verdict_views
from kvgate.report.words import metric_meaning, metric_title, metric_words

from report_runs import realistic  # isort: skip


def estimate(value: float, lo: float | None, hi: float | None, unit: str = "nat") -> Estimate:
    return Estimate(value, lo, hi, 0.9, 100, 12, unit, "m", "open")


@pytest.mark.parametrize(
    ("value", "lo", "hi", "unit", "metric", "shown"),
    [
        (0.004803, 0.004493, 0.005114, "nat", "prefill.kl_mean", ("0.00480 nat", "0.00449 to 0.00511")),
        (7.26e-4, 5.96e-4, 8.57e-4, "nat", "prefill.kl_mean", ("0.00073 nat", "0.00060 to 0.00086")),
        (0.0434, 0.03299, 0.05382, "1", "prefill.top1_flip_rate", ("4.3 %", "3.3 to 5.4")),
        (0.75, 0.3562, 0.9421, "1", "needle.accuracy", ("75 %", "36 to 94")),
        (22.74, 16.83, 30.73, "1", "prefill.ppl", ("22.7", "16.8 to 30.7")),
        (0.9956, 0.9892, 1.002, "1", "prefill.ppl_ratio", ("0.9956 ×", "0.9892 to 1.0020")),
        (0.75, None, None, "ratio", "needle.accuracy_ratio", ("0.75 ×", "?")),
        (0.5, 0.25, None, "nat", "x.y", ("0.50 nat", "0.25 to ?")),
        (0.0, 0.0, 0.0, "nat", "x.y", ("0 nat", "0 to 0")),
        (4.7e-9, 3.1e-9, 6.4e-9, "nat", "x.y", ("4.7e-09 nat", "3.1e-09 to 6.4e-09")),
        (12345.6, 11000.0, 13600.0, "ms", "x.y", ("12,300 ms", "11,000 to 13,600")),
    ],
)
def test_digits_follow_the_interval(
    value: float, lo: float | None, hi: float | None, unit: str, metric: str, shown: tuple[str, str]
) -> None:
    """Two digits of the interval's half width, the value to the same place; a ? where there is no bound."""
    c = cell(estimate(value, lo, hi, unit), metric)

    assert (c.text, c.interval) == shown


FINITE = st.floats(-1e6, 1e6).map(lambda x: round(x, 9))


@given(st.tuples(FINITE, FINITE, FINITE).map(sorted), FINITE)
def test_no_printed_number_crosses_its_limit(numbers: list[float], limit: float) -> None:
    """Whatever is rounded: value and both ends stay on their side of the limit they are held to, or exactly on it."""
    lo, value, hi = numbers
    shown = rounded(estimate(value, lo, hi), "x.y", against=limit)

    for exact, text in zip((value, lo, hi), shown, strict=True):
        if hi > lo and abs(exact - limit) > 1e-9:
            printed = float(text.replace(",", ""))
            assert (printed > limit, printed < limit) == (exact > limit, exact < limit)


def test_without_the_limit_one_would() -> None:
    """The property above has something to see: 0.01004 alone reads 0.010."""
    e = estimate(0.006, 0.002, 0.01004)

    assert rounded(e, "x.y").hi == "0.0100"
    assert float(rounded(e, "x.y", against=0.01).hi) > 0.01


@pytest.mark.parametrize(("p", "said"), [(1.0, "p = 1"), (0.125, "p = 0.12"), (2e-5, "p under 0.001")])
def test_a_test_says_what_it_counted(p: float, said: str) -> None:
    """The p value with two digits, and how many cases changed sides."""
    c = cell(Test(-1.0, p, "greater", "McNemar, exact", 3), "golden.net_breaks")

    assert (c.text, c.interval) == (said, "net -1 of 3 that changed")


def test_every_metric_of_a_run_has_a_meaning() -> None:
    """One line each, with unit or share, no longer than a line of a table; the name stands with its lane."""
    ids = {m for e in realistic().evidence.values() for s in e.summaries.values() for m in s.metrics}
    meanings = {m: metric_meaning(m) for m in ids}

    assert [m for m, line in meanings.items() if not 20 <= len(line) <= 95] == []
    assert metric_title("decode.kl_p99{category=code}") == "KL, 99th percentile, decode"
    assert metric_words("tools.call_accuracy") == "Call accuracy" and metric_meaning("tools.call_accuracy") == ""


def test_coverage_and_luck_are_words() -> None:
    """No bare 'limit 0' and no bare 'p = 1' stands on a card."""
    facts = [x for v in realistic().verdicts for f in v.findings for x in finding_view(f).facts]
    coverage = {r.name: r for r in discover("rule").values()}["coverage"]
    for example in coverage.examples:
        spec = _spec(coverage, example.params)
        facts += [x for f in coverage.judge(spec, example.evidence, None) for x in finding_view(f).facts]

    assert "allowed: no engine failures" in facts
    assert not [x for x in facts if re.search(r"limit 0\b|p = 1$", x)]


@pytest.mark.parametrize("use", ["ceiling", "built-in"])
def test_a_reason_that_is_no_number_is_not_hidden_behind_one(use: str) -> None:
    """Inside its limit and yet undecided, or the base's own distance: the rule's words say why."""
    status = Status.INCONCLUSIVE
    loud = Finding("kl", use, "decide", status, "the base differs from itself by 0.02", metric="prefill.kl_mean")
    inside = replace(loud, observed=estimate(0.001, 0.0009, 0.0011), threshold=0.01)
    outside = replace(loud, use="ceiling", observed=estimate(0.01, 0.009, 0.011), threshold=0.01)

    assert finding_view(inside).brief == finding_view(inside).says == loud.message
    assert finding_view(outside).brief.startswith("Mean KL, prefill")


def test_an_untested_rule_is_not_called_nothing() -> None:
    """What a policy asked for and nobody saw stands in the first answer."""
    run = realistic()
    gap = Finding("kl-tail", "ceiling", "guard", Status.UNTESTED, "prefill.kl_p99 was not measured")
    one = run.verdicts[0]
    run = replace(run, verdicts=(replace(one, findings=(*one.findings, gap), untested=()), *run.verdicts[1:]))

    assert "was not measured" in verdict_views(run)[0].open


def _spec(rule: object, params: object) -> object:
    from kvgate.gate.rule import RuleSpec

    return RuleSpec(rule.name, rule.name, "decide", rule.Params.model_validate(params))  # type: ignore[attr-defined]
