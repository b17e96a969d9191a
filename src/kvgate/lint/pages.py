"""The table of rules for the documentation, from the registry."""

from __future__ import annotations

from kvgate.lint.run import rules


def rules_table() -> str:
    """A Markdown table of every registered rule, in name order: id, engines, severity, what, versions, source."""
    lines = ["| id | engines | severity | what | versions | source |", "|---|---|---|---|---|---|"]
    for r in rules():
        engines = ", ".join(sorted(r.engines))
        cells = (f"`{r.name}`", engines, r.severity, r.title, r.versions, str(r.source))
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("*", "\\*")
