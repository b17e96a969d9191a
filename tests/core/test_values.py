"""Estimates, metric names, units, one-line text and the registry."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.core import registry
from kvgate.core.errors import UserError
from kvgate.core.estimate import Estimate, Test, measure_from_json
from kvgate.core.metric import metric_id, parse_metric
from kvgate.core.observation import Case
from kvgate.core.text import one_line
from kvgate.core.units import bytes_text, duration_text, number_text
from kvgate.core.verdict import Decision, worst


def test_an_unbounded_end_is_null_never_infinity() -> None:
    """JSON has no infinity, and a gate must not compare with one."""
    e = Estimate(0.5, -math.inf, math.nan, 0.9, 3, 3, "nat", "x", "under eight clusters")

    assert (e.lo, e.hi) == (None, None)
    assert measure_from_json(json.loads(json.dumps(e.to_json(), allow_nan=False))) == e


def test_an_unknown_number_says_why() -> None:
    """A missing value without a reason is refused at construction."""
    with pytest.raises(ValueError, match="why"):
        Estimate(None, None, None, 0.9, 0, 0, "nat", "none")
    assert Estimate.unknown("no positions").why == "no positions"


def test_a_test_reads_back() -> None:
    """Tests and estimates share one JSON place and are told apart."""
    t = Test(5, 0.031, "greater", "exact McNemar", 5)

    assert measure_from_json(t.to_json()) == t


def test_labels_are_sorted_into_one_spelling() -> None:
    """One metric has one name."""
    assert metric_id("prefill.kl_p99", b="2", a="1") == "prefill.kl_p99{a=1,b=2}"
    assert parse_metric("prefill.kl_p99{a=1,b=2}") == ("prefill.kl_p99", {"a": "1", "b": "2"})


@pytest.mark.parametrize("bad", ["kl", "Prefill.kl", "prefill.kl{a}", "prefill.kl{a=1", "prefill.kl{}x"])
def test_a_wrong_metric_id_is_refused(bad: str) -> None:
    """A typo in a policy is found."""
    with pytest.raises(ValueError, match="metric"):
        parse_metric(bad)


@given(st.text())
def test_one_line_is_one_line_without_control_characters(text: str) -> None:
    """Escape sequences, bidi overrides and surrogates of a hostile name do not reach the terminal."""
    shown = one_line(text)

    assert not any(c in shown for c in "\n\r\x1b\x00\u202e\u2066")
    shown.encode()


def test_case_ids_are_the_content() -> None:
    """The same case has the same id anywhere; any change gives another."""
    a = Case.make("s", cluster="c", body={"x": 1})

    assert a == Case.make("s", cluster="c", body={"x": 1})
    assert a.id != Case.make("s", cluster="c", body={"x": 2}).id
    assert a.id != Case.make("s", cluster="d", body={"x": 1}).id
    # llama.cpp's grammar asks for a schema's properties in their order: two orders are two questions.
    assert (
        Case.make("s", cluster="c", body={"x": 1, "y": 2}).id != Case.make("s", cluster="c", body={"y": 2, "x": 1}).id
    )


def test_texts_of_numbers() -> None:
    """Sizes, times and small numbers as people read them."""
    assert bytes_text(23040) == "22.50 KiB"
    assert bytes_text(98362432) == "93.81 MiB"
    assert [duration_text(s) for s in (5, 75, 3700)] == ["5s", "1m15s", "1h01m"]
    assert [number_text(x) for x in (None, 0.0, 0.00012, 0.0542)] == ["?", "0", "1.20e-04", "0.0542"]


def test_the_worst_decision_sets_the_exit_code() -> None:
    """INVALID outranks FAIL, FAIL outranks INCONCLUSIVE; no verdict at all is INVALID."""
    d = Decision

    assert worst([d.PASS, d.FAIL, d.INCONCLUSIVE]).exit_code == 1
    assert worst([d.FAIL, d.INVALID]).exit_code == 4
    assert worst([d.PASS, d.INCONCLUSIVE]).exit_code == 3
    assert worst([d.PASS]).exit_code == 0
    assert worst([]).exit_code == 4


@pytest.mark.parametrize("kind", sorted(registry.KINDS))
def test_every_registered_object_is_found_by_its_name(kind: str) -> None:
    """Discovery gives each object under its own name."""
    assert all(obj.name == name for name, obj in registry.discover(kind).items())


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The message holds what there is to choose from."""
    with pytest.raises(UserError, match="q8_0"):
        registry.get("codec", "q8")
