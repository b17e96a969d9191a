"""The forms for people: plain lines, and GitHub's workflow commands."""

from __future__ import annotations

from kvgate.core.text import one_line
from kvgate.lint.rule import Finding, Rule
from kvgate.lint.run import Report

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def text_lines(report: Report) -> list[str]:
    """Findings, what was not checked, and a count."""
    lines: list[str] = []
    for f in report.findings:
        lines += [
            one_line(f"{f.severity}: {f.message}  [{f.id}]"),
            *("  " + one_line(text) for text in _details(f)),
            "",
        ]
    lines += [one_line(f"not checked: {u}") for u in report.unchecked]
    return [*lines, _count(report)]


def _details(f: Finding) -> tuple[str, ...]:
    return (f"where: {f.where}", f"why: {f.why}", f"fix: {f.fix}", f"source: {f.source}; {f.versions}")


def _count(report: Report) -> str:
    counts = {s: sum(f.severity == s for f in report.findings) for s in ("error", "warning", "info")}
    engines = ", ".join(report.engines)
    if not report.findings:
        return f"{engines}: nothing found"
    words = [f"{n} {name}{'s' if n > 1 and name != 'info' else ''}" for name, n in counts.items() if n]
    return f"{engines}: {', '.join(words)}"


def github_lines(report: Report) -> list[str]:
    """One workflow command a finding, escaped as GitHub's runner reads them."""
    return [_annotation(f) for f in report.findings]


def _annotation(f: Finding) -> str:
    parts = [f"file={_property(f.where.file)}"] if f.where.file else []
    if f.where.file and f.where.line:
        parts.append(f"line={f.where.line}")
    parts.append(f"title={_property(f.id)}")
    message = one_line(f"{f.message}. {f.why}. Fix: {f.fix}")
    return f"::{_COMMANDS[f.severity]} {','.join(parts)}::{_data(message)}"


def _data(text: str) -> str:
    return one_line(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def rule_lines(rules: tuple[Rule, ...]) -> list[str]:
    """One line a rule."""
    return [f"{r.severity:>7}  {r.name}: {r.title} ({', '.join(sorted(r.engines))}; {r.versions})" for r in rules]
