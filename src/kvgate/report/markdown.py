"""The report as Markdown, for pull requests and step summaries: the same sections, shorter.

Free text is escaped character by character; model text stands only inside code fences that are longer than any run of
backticks in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvgate.core.verdict import Decision
from kvgate.report.measure import Cell
from kvgate.report.model import RunView
from kvgate.report.sections.findings import FindingView
from kvgate.report.sections.floors import floor_sentences
from kvgate.report.sections.golden import Diff, GoldenView, Side, golden_views
from kvgate.report.sections.needle import needle_grids
from kvgate.report.sections.results import Table, suite_views
from kvgate.report.sections.setup import (
    GLOSSARY,
    arm_rows,
    capacity_views,
    delta_rows,
    loud_lines,
    manifest_rows,
    run_facts,
)
from kvgate.report.sections.verdicts import VerdictView, overall, verdict_views
from kvgate.report.visible import bounded, visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$^]|://|(?<=www)\.|^\s*[-=>]|^\s*\d+[.)])")
_ICONS = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "❓", "INVALID": "⛔"}
_DIFFS_SHOWN = 10


def escape(text: str) -> str:
    """`text` as literal Markdown on one line: no markup, no HTML, no link, no table border."""
    line = " ".join(visible(bounded(text)).split())
    line = _SPECIAL.sub(lambda m: "".join("\\" + c if not c.isspace() and not c.isalnum() else c for c in m[0]), line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fence(text: str, info: str = "text") -> str:
    """A code block that `text` cannot close."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}{info}\n{shown}\n{bar}"


def code(text: str) -> str:
    """Inline code that `text` cannot close, safe inside a table cell."""
    line = " ".join(visible(bounded(text, 1000)).split())
    if "\\|" in line:  # in code the backslash would be taken by another one, and the bar would end the cell
        return escape(text)
    bar = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    # Table cells are split at | before code spans are read, so the backslash is right even inside code.
    return f"{bar}{pad}{line}{pad}{bar}".replace("|", "\\|") if line else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells must be escaped already."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(r) + " |" for r in rows)])


def markdown(view: RunView, *, outputs: bool = True) -> str:
    """The report as GitHub-flavoured Markdown.

    Args:
        outputs: False leaves out every prompt, model text and break detail.
    """
    parts = [f"# kvgate: {_icon(overall(view))} {overall(view).value} – KV cache of {escape(view.model.name)}"]
    parts += [f"> {escape(c)}" for c in view.caveats]
    cards = verdict_views(view)
    parts += ["\n".join(_in_short(c) for c in cards)] if len(cards) > 1 else []
    for card in cards:
        parts += _card(card)
    parts += ["## The noise floor", _bullets(floor_sentences(view))]
    for suite in suite_views(view):
        parts.append(f"## {escape(suite.title)}")
        parts += [_bullets(suite.remarks)] if suite.remarks else []
        for lane in suite.lanes:
            parts += _metrics(lane.table) if lane.table else []
            for _, _, labelled in lane.labelled:
                parts += _metrics(labelled)
    parts += _golden(golden_views(view, outputs=outputs), outputs)
    parts += _needle(view)
    parts += _capacity(view)
    parts += _ran(view)
    parts += ["## Reading help", _bullets(f"{word}: {meaning}" for word, meaning in GLOSSARY), _meanings(view)]
    return "\n\n".join(parts) + "\n"


def _in_short(c: VerdictView) -> str:
    lines = f"Why: {c.why}", f"Not tested: {c.open}", f"Next: {c.next.action}"
    return f"- {_icon(c.decision)} {code(c.candidate)}: **{escape(c.headline)}**. " + ". ".join(map(escape, lines))


def _meanings(view: RunView) -> str:
    """One line for each metric of the tables."""
    tables = [lane.table for suite in suite_views(view) for lane in suite.lanes if lane.table]
    said = {row.label: row.meaning for t in tables for row in t.rows if row.meaning}
    return _bullets(f"{label}: {meaning}" for label, meaning in said.items())


def _icon(decision: Decision) -> str:
    return _ICONS[decision.value]


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)


def _card(c: VerdictView) -> list[str]:
    parts = [f"## {_icon(c.decision)} {code(c.candidate)}: {escape(c.headline)}", escape(c.meaning)]
    runs_as = f", which this engine runs as {code(c.effective)}" if c.effective != c.recipe else ""
    parts.append(f"What changed: KV cache {code(c.base)} → {code(c.recipe)}{runs_as}")
    if c.tiles:
        parts.append(
            table(("What", "Value", "Note"), [(escape(t.name), escape(t.value), escape(t.note)) for t in c.tiles])
        )
    parts.append("### Why")
    parts.append("\n".join(_finding(f) for f in c.reasons) or "No rule explains this decision.")
    if c.others:
        parts += ["### Other rules", "\n".join(_finding(f) for f in c.others)]
    if c.untested:
        parts += ["### Not tested", _bullets(c.untested)]
    if c.published is not None:
        quotes = [f"{q.statement} ({q.distance}; {q.source})" for q in c.published]
        parts += [f"### {c.published_words}"] + ([_bullets(quotes)] if quotes else [])
    parts += [f"> {escape(x)}" for x in c.caveats]
    parts += ["### Next step", escape(f"{c.next.action} – {c.next.why}" if c.next.why else c.next.action)]
    if c.next.command:
        parts.append(fence(c.next.command, "sh"))
    return parts


def _finding(f: FindingView) -> str:
    blind = [f"blind spot: {f.blind_spot}"] if f.blind_spot else []
    more = " · ".join(escape(x) for x in (*f.details, *blind))
    return f"- **{f.status}** {code(f.rule)}: {escape(f.says)}" + (f" ({more})" if more else "")


def _number(c: Cell) -> str:
    text = escape(c.text) + (f" ({escape(c.interval)})" if c.interval else "")
    return text + (f" – {escape(c.why)}" if c.why and c.text == "?" else "")


def _metrics(t: Table) -> list[str]:
    head = [escape(t.head), *(f"{code(c.arm)}{' (floor)' if c.role == 'floor' else ''}" for c in t.columns)]
    rows = [
        [escape(r.label), *(_number(c.value) + (f"; excess {_number(c.excess)}" if c.excess else "") for c in r.cells)]
        for r in t.rows
    ]
    level = f" Value ({t.level} interval); each arm against the base." if t.level else ""
    notes = [_bullets(f"? – {n}" for n in t.notes)] if t.notes else []
    return [f"**{escape(t.title)}**.{level}", table(head, rows), *notes]


def _golden(views: Sequence[GoldenView], outputs: bool) -> list[str]:
    if not views:
        return []
    parts = ["## Golden answers"]
    if not outputs:
        parts.append("> Prompts and model texts were left out of this report on request.")
    for g in views:
        parts.append(
            f"{code(g.candidate)}: {g.prompts} prompts, {g.identical} with the same text, {g.drifted} with another "
            f"text but nothing broken, {g.broken} broken, {g.repaired} repaired, {g.failed} without an answer on one "
            "side."
        )
        if g.classes:
            rows = [(code(name), str(yes), str(no), str(open_)) for name, yes, no, open_ in g.classes]
            parts.append(table(("Class", "Confirmed", "Not confirmed", "Undecided"), rows))
        for d in g.breaks[:_DIFFS_SHOWN]:
            parts += _diff(d)
        if len(g.breaks) > _DIFFS_SHOWN:
            parts.append(f"{len(g.breaks) - _DIFFS_SHOWN} more breaks are in the HTML report.")
    return parts


def _diff(d: Diff) -> list[str]:
    mark = "critical, " if d.critical else ""
    detail = f": {escape(d.detail)}" if d.detail else ""
    return [
        f"### {escape(d.title)} – {mark}{code(d.break_class)}, {escape(d.confirmed)}{detail}",
        f"First difference at character {d.at:,}, marked ⟪ ⟫; {escape(d.floors)}.",
        f"{code(d.base.title)}",
        fence(_side(d.base)),
        f"{code(d.arm.title)}",
        fence(_side(d.arm)),
    ]


def _side(s: Side) -> str:
    before = f"[… {s.cut_before:,} equal characters]\n" if s.cut_before else ""
    after = f"\n[… {s.cut_after:,} more characters]" if s.cut_after else ""
    return f"{before}{s.same}⟪{s.differs}⟫{after}"


def _needle(view: RunView) -> list[str]:
    parts: list[str] = []
    for g in dict.fromkeys(g for group in needle_grids(view) for g in group):
        rows = [
            [escape(depth), *(f"{escape(c.signed if g.difference else c.text)} ({escape(c.count)})" for c in cells)]
            for depth, cells in g.rows
        ]
        parts += [f"**Needle map: {escape(g.title)}**", table(["Depth", *(f"{x} tokens" for x in g.lengths)], rows)]
    return parts


def _capacity(view: RunView) -> list[str]:
    rows = [
        (code(c.recipe), code(c.effective), escape(f"{c.per_token} ({c.exact})"), escape(c.ratio), escape(c.agreement))
        for c in capacity_views(view)
    ]
    if not rows:
        return []
    parts = [
        (
            code(c.recipe),
            escape(p.kind),
            p.cells,
            f"{p.predicted_k} / {p.predicted_v}",
            f"{p.reported_k} / {p.reported_v}",
        )
        for c in capacity_views(view)
        for p in c.parts
    ]
    return [
        "## Capacity",
        table(("Recipe", "Runs as", "Bytes per token", "Tokens against the base", "Engine's log"), rows),
        table(("Recipe", "Cache", "Cells", "K / V predicted, MiB", "K / V reported, MiB"), parts),
    ]


def _ran(view: RunView) -> list[str]:
    arms = [
        (
            code(a.name),
            a.role,
            code(a.recipe),
            code(a.effective),
            escape(a.perturb),
            escape("; ".join(f"{e.place}: {e.level}, {e.reason}" for e in a.engaged) or "–"),
        )
        for a in arm_rows(view)
    ]
    deltas = [
        (code(d.candidate), escape(d.place), code(d.field), d.status, code(d.base), code(d.arm))
        for d in delta_rows(view)
    ]
    loud = loud_lines(view)
    return [
        "## What ran",
        table(("", ""), [(escape(name), escape(value)) for name, value in run_facts(view)]),
        table(("Arm", "Role", "Requested", "Runs as", "Declared change", "Engaged"), arms),
        *([table(("Candidate", "Place", "Field", "Status", "Base", "Candidate's"), deltas)] if deltas else []),
        *([_bullets(loud)] if loud else []),
        "## Manifest",
        table(("Entry", "Value"), [(code(path), code(value)) for path, value in manifest_rows(view)]),
    ]
