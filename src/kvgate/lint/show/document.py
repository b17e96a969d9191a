"""The machine-readable forms: kvgate's own JSON document, and SARIF 2.1.0 for code-scanning services."""

from __future__ import annotations

from typing import Any

from kvgate.core.text import one_line
from kvgate.lint.rule import Finding, Rule
from kvgate.lint.run import SCHEMA, Report
from kvgate.lint.run import rules as registered

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
#: Where a finding has no file, as services want one.
_NO_FILE = "command"


def document(report: Report) -> dict[str, Any]:
    """The document of `kvgate lint --json`; `engine` joins several by a comma."""
    return {
        "schema": SCHEMA,
        "engine": ",".join(report.engines),
        "findings": [finding(f) for f in report.findings],
        "unchecked": list(report.unchecked),
    }


def finding(f: Finding) -> dict[str, Any]:
    """One finding; `where` is text, `place` its parts."""
    return {
        "id": f.id,
        "severity": f.severity,
        "message": one_line(f.message),
        "why": one_line(f.why),
        "fix": one_line(f.fix),
        "where": one_line(str(f.where)),
        "versions": f.versions,
        "source": one_line(f.source),
        "engine": f.engine,
        "place": {"file": one_line(f.where.file), "line": f.where.line or None, "field": one_line(f.where.field)},
    }


def rules_document(rules: tuple[Rule, ...]) -> dict[str, Any]:
    """The document of `kvgate lint --list-rules --json`."""
    return {
        "schema": "kvgate.lint.rules/1",
        "rules": [
            {
                "id": r.name,
                "engines": sorted(r.engines),
                "severity": r.severity,
                "title": r.title,
                "why": r.why,
                "fix": r.fix,
                "versions": r.versions,
                "source": str(r.source),
            }
            for r in rules
        ],
    }


def sarif(report: Report, version: str) -> dict[str, Any]:
    """A SARIF log with one run."""
    found = {f.id for f in report.findings}
    used = [r for r in registered() if r.name in found]
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kvgate lint",
                        "version": version,
                        "rules": [
                            {
                                "id": r.name,
                                "shortDescription": {"text": one_line(r.title)},
                                "fullDescription": {"text": one_line(r.why)},
                                "help": {"text": one_line(f"{r.why}. {r.fix}. Source: {r.source}")},
                                "defaultConfiguration": {"level": _LEVELS[r.severity]},
                            }
                            for r in used
                        ],
                    }
                },
                "results": [_result(f) for f in report.findings],
            }
        ],
    }


def _result(f: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(f.where.file)},
            "region": {"startLine": max(1, f.where.line)},
        }
    }
    if f.where.field:
        location["logicalLocations"] = [{"name": one_line(f.where.field)}]
    return {
        "ruleId": f.id,
        "level": _LEVELS[f.severity],
        "message": {"text": one_line(f"{f.message}. {f.why}. Fix: {f.fix}")},
        "locations": [location],
    }


def _uri(file: str) -> str:
    """A path as SARIF wants it: a relative reference with percent signs for what a URI cannot hold."""
    from urllib.parse import quote

    return quote(file.replace("\\", "/").encode("utf-8", "surrogateescape")) if file else _NO_FILE
