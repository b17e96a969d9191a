"""JUnit XML for CI: one suite per candidate, one test case per finding, and one for the verdict.

fail -> failure, invalid -> error, inconclusive and untested -> skipped with the message; warn and pass pass.

Only elements and attributes that Jenkins' own schema knows (xunit plug-in, junit-10.xsd; its `testsuites` has no
`skipped`), and a time stamp without fraction and zone, which is what the older schema of Ant allows: UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from kvgate.core.verdict import Decision
from kvgate.report.model import RunView
from kvgate.report.sections.findings import FindingView
from kvgate.report.sections.verdicts import VerdictView, verdict_views
from kvgate.report.visible import bounded, visible

#: Everything that XML 1.0 cannot hold even as a character reference. `visible` leaves none; this is the second wall.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_ELEMENT = {"fail": "failure", "invalid": "error", "inconclusive": "skipped", "untested": "skipped"}


def legal(text: str) -> str:
    """`text` with every character that XML 1.0 forbids replaced."""
    return _ILLEGAL.sub("\ufffd", visible(bounded(text)))


def junit(view: RunView) -> str:
    """The verdicts as a JUnit document with XML declaration."""
    root = ET.Element("testsuites", name="kvgate check", time=f"{view.duration_s:.3f}")
    for card in verdict_views(view):
        _suite(root, view, card)
    for counter in ("tests", "failures", "errors"):
        root.set(counter, str(sum(int(s.get(counter, "0")) for s in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, view: RunView, card: VerdictView) -> None:
    suite = ET.SubElement(root, "testsuite", name=legal(card.candidate), time="0")
    if moment := _utc(view.created):
        suite.set("timestamp", moment)
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        ("run", view.run_id),
        ("model", view.model.name),
        ("engine", view.engine),
        ("policy", view.policy),
        ("recipe", card.recipe),
        ("effective", card.effective),
    ):
        ET.SubElement(properties, "property", name=name, value=legal(value))
    names: dict[str, int] = {}
    for finding in (*card.reasons, *card.others):
        names[finding.rule] = n = names.get(finding.rule, 0) + 1
        rule = finding.rule if n == 1 else f"{finding.rule} #{n}"
        _case(suite, card.candidate, rule, finding.status, finding.message, _details(finding))
    reasons = "; ".join(f.message for f in card.reasons)
    next_step = card.next.action + (f": {card.next.command}" if card.next.command else "")
    text = [*(f.message for f in card.reasons), *(f"not tested: {u}" for u in card.untested), f"next: {next_step}"]
    status = {Decision.PASS: "pass", Decision.FAIL: "fail", Decision.INVALID: "invalid"}.get(
        card.decision, "inconclusive"
    )
    _case(suite, card.candidate, "verdict", status, f"{card.headline}: {reasons}", text)
    kinds = [child.tag for case in suite.iter("testcase") for child in case]
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(kinds.count("failure")))
    suite.set("errors", str(kinds.count("error")))
    suite.set("skipped", str(kinds.count("skipped")))


def _utc(created: str) -> str:
    """'2026-11-30T10:03:13', in UTC where there is a zone; "" for what is no time."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return ""
    return (moment.astimezone(UTC) if moment.tzinfo is not None else moment).strftime("%Y-%m-%dT%H:%M:%S")


def _case(suite: ET.Element, candidate: str, name: str, status: str, message: str, details: Sequence[str]) -> None:
    case = ET.SubElement(suite, "testcase", classname=f"kvgate.{legal(candidate)}", name=legal(name), time="0")
    element = _ELEMENT.get(status)
    if element is not None:
        outcome = ET.SubElement(case, element, message=legal(message))
        if element != "skipped":  # the schema of skipped allows no type, and many readers show the message only
            outcome.set("type", status)
        outcome.text = _lines(details)
    elif details:
        ET.SubElement(case, "system-out").text = _lines([f"{status}: {message}", *details])


def _lines(texts: Sequence[str]) -> str:
    """Each cut by itself: one endless line must not push the next step off."""
    return "\n".join(map(legal, texts))


def _details(f: FindingView) -> list[str]:
    said = [] if f.says in f.message else [f.says]
    return [*said, *f.facts, *([f"blind spot: {f.blind_spot}"] if f.blind_spot else [])]
