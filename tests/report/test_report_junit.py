"""JUnit XML that CI servers read."""

from __future__ import annotations

import re
from dataclasses import replace
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
            if node is not root or counter != "skipped":  # the schema of Jenkins has no such attribute at the root
                assert int(node.get(counter, "-1")) == len(list(node.iter(tag)))


#: Children and attributes of each element in junit-10.xsd of Jenkins' xunit plug-in; required ones, then others.
XSD: dict[str, tuple[set[str], str, str]] = {
    "testsuites": ({"testsuite"}, "", "name time tests failures errors"),
    "testsuite": (
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
        "name tests failures errors",
        "group time skipped timestamp hostname id package file log url",
    ),
    "properties": ({"property"}, "", ""),
    "property": (set(), "name value", ""),
    "testcase": ({"skipped", "error", "failure", "system-out", "system-err"}, "name", "time classname group"),
    **{e: (set(), "", "type message") for e in ("skipped", "error", "failure")},
    **{e: (set(), "", "") for e in ("system-out", "system-err")},
}
SUREFIRE_TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")


def against_xsd(node: ET.Element) -> list[str]:
    """What Jenkins' schema refuses in an element and all below it."""
    children, required, optional = XSD[node.tag]
    bad = [f"{node.tag} lacks {name}" for name in required.split() if name not in node.attrib]
    bad += [f"{node.tag} {name}" for name in node.attrib if name not in (*required.split(), *optional.split())]
    if node.tag.startswith("testsuite") and not SUREFIRE_TIME.fullmatch(node.get("time", "")):
        bad.append(f"{node.tag} time={node.get('time')}")
    for child in node:
        bad += against_xsd(child) if child.tag in children else [f"{child.tag} in {node.tag}"]
    return bad


@pytest.mark.parametrize("make", [realistic, hostile])
def test_jenkins_schema_takes_it(make: Any) -> None:
    """No element or attribute beyond the schema, and every one that it requires."""
    root = ET.fromstring(junit(make()))

    assert against_xsd(root) == []
    root.set("skipped", "1")
    del root[0].attrib["tests"]
    root[0].append(ET.Element("failure"))
    assert against_xsd(root) == ["testsuites skipped", "testsuite lacks tests", "failure in testsuite"]


@pytest.mark.parametrize(
    ("created", "stamp"),
    [("2026-11-30T12:03:13.627705+02:00", "2026-11-30T10:03:13"), ("2026-11-30T12:03:13", "2026-11-30T12:03:13")],
)
def test_the_time_stamp_is_plain(created: str, stamp: str) -> None:
    """UTC without fraction and zone; what is no time is left out."""
    assert ET.fromstring(junit(replace(realistic(), created=created)))[0].get("timestamp") == stamp
    assert "timestamp" not in ET.fromstring(junit(replace(realistic(), created="yesterday")))[0].attrib


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
