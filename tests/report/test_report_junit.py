"""JUnit XML that CI servers read."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import hostile, realistic

from kvgate.report.junit import junit, legal


def cases(root: ET.Element) -> dict[tuple[str, str], ET.Element]:
    return {(c.get("classname", ""), c.get("name", "")): c for c in root.iter("testcase")}


def test_statuses_become_junit_outcomes() -> None:
    """fail is a failure, inconclusive is skipped with its message, pass has neither."""
    found = cases(ET.fromstring(junit(realistic())))

    assert found["kvgate.q4_0", "kl-mean"].find("failure") is not None
    skipped = found["kvgate.q4_0", "golden-breaks"].find("skipped")
    assert skipped is not None
    assert "3 prompts broke" in skipped.get("message", "")
    assert [x.tag for x in found["kvgate.q8_0", "kl-mean"]] == ["system-out"]
    assert found["kvgate.q4_0", "verdict"].find("failure") is not None
    assert [x.tag for x in found["kvgate.q8_0", "verdict"]] == ["system-out"]


def test_invalid_is_an_error() -> None:
    """A void comparison is an error, not a failed assertion."""
    found = cases(ET.fromstring(junit(hostile())))

    assert found["kvgate.q4_0", "verdict"].find("error") is not None


@pytest.mark.parametrize("make", [realistic, hostile])
def test_the_counters_are_the_cases(make: Any) -> None:
    """Suites and the root count what is in them."""
    root = ET.fromstring(junit(make()))

    for node in (root, *root):
        assert int(node.get("tests", "-1")) == len(list(node.iter("testcase")))
        for counter, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(node.get(counter, "-1")) == len(list(node.iter(tag)))


@given(st.text(st.characters(codec=None, categories=None)))
def test_any_text_survives_an_xml_parser(text: str) -> None:
    """Whatever a message holds, the document parses and holds it without illegal characters."""
    node = ET.Element("x", a=legal(text))
    node.text = legal(text)

    back = ET.fromstring(ET.tostring(node, encoding="utf-8"))

    assert back.get("a") == legal(text)


def test_raw_text_would_not() -> None:
    """The property above is not empty: a NUL that is not replaced breaks the parser."""
    node = ET.Element("x")
    node.text = "\x00"

    with pytest.raises(ET.ParseError):
        ET.fromstring(ET.tostring(node))
