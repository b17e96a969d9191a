"""Ordinary, right commands of all engines, as documents and users write them: nothing in them is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.lint.run import Options, lint

RIGHT = [json.loads(line) for line in (Path(__file__).parent / "data" / "right.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", RIGHT, ids=lambda c: c["text"][:60])
def test_a_right_command_has_no_error(case: dict) -> None:
    """False alarms are the worst fault of a linter: whatever is said of these, none is an error."""
    report = lint(case["text"], Options(**case["options"]))

    assert [f"{f.id}: {f.message}" for f in report.findings if f.severity == "error"] == []
    assert len(report.engines) == 1
