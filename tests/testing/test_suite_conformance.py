"""Every registered suite passes the suite check: it catches its planted defect and passes A/A pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvgate.core.estimate import Estimate, Test
from kvgate.core.observation import Case, PairedRecords, Work
from kvgate.core.registry import discover
from kvgate.core.suite import Cost, Fault, Suite, SuiteContext, Summary
from kvgate.testing import check_suite
from kvgate.testing.suite import side

#: Sizes that keep a check under a minute; a suite that is not here runs its default preset.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "fidelity": {"preset": "smoke", "pairs": 4},
    "topk": {"preset": "smoke", "pairs": 4},
    "needle": {"context_tokens": 1024, "pairs": 6},
}


@pytest.mark.parametrize("name", discover("suite"))
def test_suite(name: str) -> None:
    """Deterministic cases named by content, valid presets, defect caught, A/A passed at the stated rate."""
    report = asyncio.run(check_suite(discover("suite")[name], **{"pairs": 8, **SIZES.get(name, {})}))

    assert "the planted defect is caught" in report.checks
    assert len(report.clean) >= 4


class Changed:
    """A real suite with some of its methods replaced."""

    def __init__(self, suite: Suite, **changed: Any) -> None:
        self._suite, self._changed = suite, changed

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._suite, name)


NEEDLE: Suite = discover("suite")["needle"]


def cases_with(change: Any) -> Any:
    """`cases` whose result goes through a change."""

    def cases(ctx: SuiteContext) -> Iterator[Case]:
        yield from change(list(NEEDLE.cases(ctx)))

    return cases


def unsteady() -> Any:
    """`cases` that gives fewer from call to call."""
    calls = iter(range(10))
    return cases_with(lambda found: found[next(calls) :])


def summarise_as(planted: Any, clean: Any) -> Any:
    """`summarise` that does not look at its records."""

    def summarise(paired: PairedRecords) -> Summary:
        return Summary(metrics={"needle.net_losses": planted if paired.candidate == "planted" else clean})

    return summarise


SEEN, UNSEEN = Test(9, 0.001, "greater", "x", 9), Test(0, 1.0, "greater", "x", 0)
SMALL: Mapping[str, Any] = {"preset": "smoke", "context_tokens": 512, "pairs": 4}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"name": "Needle!"}, "lower_case"),
        ({"version": 0}, "versions start at 1"),
        ({"needs": frozenset()}, "no set of lanes"),
        ({"presets": lambda: {"smoke": NEEDLE.presets()["smoke"]}}, "no preset 'default'"),
        ({"presets": lambda: {n: SimpleNamespace() for n in ("smoke", "default")}}, "no instance of Params"),
        ({"cases": unsteady()}, "two calls of cases"),
        ({"cases": cases_with(lambda found: found[:1] * 2)}, "not unique"),
        ({"cases": cases_with(lambda found: [replace(c, id="f" * 16) for c in found[:1]])}, "named by its content"),
        ({"cases": cases_with(lambda found: [])}, "no cases"),
        ({"cost": lambda cases, params: Cost(1, 1, 1)}, "cost"),
        ({"planted_defect": lambda: Fault({}, "needle.net_losses")}, "goes unseen"),
        ({"planted_defect": lambda: Fault({"needle_decay_tokens": 0}, "needle.other")}, "not summarised"),
        (
            {"next_work": lambda records: [Work("base", c, len(records.raws["base", c])) for c in records.cases]},
            "still asks",
        ),
        ({"next_work": lambda records: [Work("nobody", next(iter(records.cases)), 1)]}, "unknown arm"),
        ({"summarise": summarise_as(SEEN, SEEN)}, "A/A pairs show"),
        ({"summarise": summarise_as(UNSEEN, UNSEEN)}, "goes unseen"),
    ],
)
def test_a_bad_suite_is_caught(changed: Mapping[str, Any], word: str) -> None:
    """Each broken promise fails the check with a sentence that names it."""
    with pytest.raises(AssertionError, match=word):
        asyncio.run(check_suite(Changed(NEEDLE, **changed), **SMALL))  # type: ignore[arg-type]


def estimate(value: float, lo: float | None, hi: float | None) -> Estimate:
    return Estimate(value, lo, hi, 0.9, 10, 10, "1", "x")


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (Summary({"a.b": Test(3, 0.04, "greater", "x", 5)}), 1),
        (Summary({"a.b": Test(3, 0.06, "greater", "x", 5)}), 0),
        (Summary({"a.b": estimate(1, 0.5, 2)}, {"a.b": estimate(0.5, 0.1, 1)}), 1),
        (Summary({"a.b": estimate(1, 0.5, 2)}, {"a.b": estimate(-0.5, -1, -0.1)}), -1),
        (Summary({"a.b": estimate(1, 0.5, 2)}, {"a.b": estimate(0.5, None, None)}), 0),
        (
            Summary(
                {"a.b": estimate(1, 0.5, 2)}, {}, {"f": {"a.b": estimate(0.4, 0, 1)}, "g": {"a.b": estimate(0.1, 0, 1)}}
            ),
            1,
        ),
        (Summary({"a.b": estimate(1, 0.5, 2)}, {}, {"f": {"a.b": estimate(0.6, 0, 1)}}), 0),
        (Summary({"a.b": estimate(1, 0.5, 2)}, {}, {"f": {"a.b": estimate(2.5, 2, 3)}}), -1),
        (Summary({"a.b": estimate(1, 0.5, 2)}), 0),
        (Summary({}), 0),
    ],
)
def test_what_a_metric_says(summary: Summary, expected: int) -> None:
    """A test by p; an estimate by its excess, else against the floors; an unbounded end says nothing."""
    assert side(summary, "a.b", alpha=0.05) == expected
