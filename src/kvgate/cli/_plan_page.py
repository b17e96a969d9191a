"""A plan as the values of its page, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from itertools import groupby
from pathlib import Path

from kvgate.cli._plan_show import recipe_rows
from kvgate.core.errors import UserError
from kvgate.core.units import bytes_text, gb_text
from kvgate.plan.answer import Answer, RecipeAnswer
from kvgate.plan.curve import curve, curve_contexts
from kvgate.plan.explain import both_units, explain, layer_rows
from kvgate.plan.terms import Budget
from kvgate.report.plan_page import plan_html
from kvgate.report.plan_page.model import Bar, Condition, Curve, Part, PlanPage, Point, Row, Table

_KINDS = {"weights": "weights", "draft model": "weights", "left unused": "unused"}


def write_page(answer: Answer, path: Path) -> None:
    """Write the page to `path`; a reader never sees half of it.

    Raises:
        UserError: the place cannot be written, or is no place for a file: a device or a pipe would be replaced by one.
    """
    if path.exists() and not path.is_file():
        raise UserError(
            f"--html {str(path)!r} cannot be written: it is not a regular file",
            fix="name a new file, or one to write over",
        )
    text = plan_html(page_of(answer))
    try:
        handle, temporary = tempfile.mkstemp(prefix=".kvgate-plan-", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise UserError(f"--html {str(path)!r} cannot be written: {e.strerror or e}", fix="name another file") from e


def page_of(answer: Answer) -> PlanPage:
    """The page's values."""
    q, s = answer.question, answer.question.serving
    names = tuple(str(r.recipe) for r in answer.recipes)
    why = next((r.budget_why for r in answer.recipes if r.budget_why), "")
    points = () if all(r.ideal is None for r in answer.recipes) else curve(q, curve_contexts(q))
    sizes = ", ".join(f"{n} {v}" for n, v in (("TP", s.tp), ("PP", s.pp), ("DP", s.dp), ("DCP", s.dcp)) if v > 1)
    device = "no device given" if q.device is None else f"{q.device.name}, {gb_text(q.device.bytes)}"
    subtitle = (device, sizes, f"{s.context_tokens:,} tokens", f"{s.engine} {s.version or '(newest rules)'}")
    return PlanPage(
        model=q.name or q.geometry.name,
        subtitle=" · ".join(word for word in subtitle if word),
        facts=_facts(answer),
        recipes=names,
        rows=_rows(answer),
        curves=tuple(
            Curve(name, tuple(Point(p.context_tokens, p.ideal[i], p.reserved[i]) for p in points))
            for i, name in enumerate(names)
            if points
        ),
        bars=tuple(bar for r in answer.recipes for bar in _bars(answer, r)),
        why=why,
        engine=f"{s.engine} {s.version or '(newest rules)'}",
        context_tokens=s.context_tokens,
        budgets=_budget_tables(answer),
        layers=tuple(_layer_table(r) for r in answer.recipes),
        steps=_step_tables(answer),
        conditions=tuple(Condition(c.title, c.holds, c.text) for c in answer.conditions),
        first=(answer.first.recipe, answer.first.why),
        notes=tuple(
            dict.fromkeys((*answer.notes, *(n for r in answer.recipes if r.reserved for n in r.reserved.notes)))
        ),
        logs=tuple((str(r.recipe), r.reserved.prints) for r in answer.recipes if r.reserved and r.reserved.prints),
    )


def _rows(answer: Answer) -> tuple[Row, ...]:
    """The terminal's lines; one without a label is the line above in other units."""
    rows: list[Row] = []
    for label, cell, source in recipe_rows(answer):
        cells = tuple(cell(r) for r in answer.recipes)
        if label:
            rows.append(Row(label.strip(), cells, source))
        else:
            above = rows.pop()
            both = tuple(a if a == b else f"{a} = {b}" for a, b in zip(above.cells, cells, strict=True))
            rows.append(Row(above.label, both, above.source))
    return tuple(rows)


def _facts(answer: Answer) -> tuple[tuple[str, str, str], ...]:
    q = answer.question
    facts = [("model", q.name or q.geometry.name, str(q.geometry.source))]
    if q.device is not None:
        facts.append(("device memory", both_units(q.device.bytes), str(q.device.source)))
        facts.append(("its sizes", ", ".join(q.device.other) or "only this one", "device table"))
        if q.device.bytes_per_s is not None:
            facts.append(("bandwidth", f"{q.device.bytes_per_s / 1e12:.2f} TB/s", q.device.bandwidth_source))
    if q.weights_bytes is not None:
        facts.append(("weights", both_units(q.weights_bytes), q.weights_how))
    if q.lengths is not None:
        facts.append(("lengths", f"{q.lengths.total:,} sequences, mean {q.lengths.mean:,.0f}", str(q.lengths.source)))
    if q.prefix_tokens:
        facts.append(("shared prefix", f"{q.prefix_tokens:,} tokens", "given"))
    return tuple(facts)


def _bars(answer: Answer, r: RecipeAnswer) -> tuple[Bar, ...]:
    device = answer.question.device
    if device is None or r.budgets is None or r.ideal is None:
        return ()
    bars = []
    for budget in r.budgets:
        each = r.ideal.sequences // answer.question.serving.dp
        used = min(budget.bytes, r.ideal.shared_bytes + each * r.ideal.sequence_bytes)
        parts = [*_costs(budget), Part("whole sequences", "used", used, gb_text(used))]
        rest = budget.bytes - used
        parts.append(Part("rest of the KV budget", "free", rest, gb_text(rest)))
        taken = sum(p.bytes for p in parts if p.kind != "unused")
        left = max(0, device.bytes - taken)
        parts = [p for p in parts if p.kind != "unused"] + [Part("left unused", "unused", left, gb_text(left))]
        caption = f"KV budget {both_units(budget.bytes)}: {each:,} whole sequences"
        bars.append(Bar(budget.rank, str(r.recipe), max(device.bytes, taken), tuple(parts), caption))
    return tuple(bars)


def _costs(budget: Budget) -> list[Part]:
    """What is taken off before the cache, as parts."""
    return [
        Part(t.name, _KINDS.get(t.name, "overhead"), -t.bytes, gb_text(-t.bytes)) for t in budget.terms if t.bytes < 0
    ]


def _budget_tables(answer: Answer) -> tuple[Table, ...]:
    seen = dict.fromkeys(b for r in answer.recipes for b in r.budgets or ())
    return tuple(
        Table(
            f"memory of {b.rank}",
            ("Term", "GB", "GiB", "How", "From"),
            (
                *(
                    (
                        t.name,
                        gb_text(t.bytes),
                        bytes_text(t.bytes),
                        t.how + (" (assumed)" if t.assumed else ""),
                        str(t.source),
                    )
                    for t in b.terms
                ),
                ("KV budget", gb_text(b.bytes), bytes_text(b.bytes), "what is left", "arithmetic"),
            ),
        )
        for b in seen
    )


def _layer_table(r: RecipeAnswer) -> Table:
    columns = ("Layers", "Kind", "Heads x (K + V)", "Sees", "Stored", "Bytes a token", "Fixed bytes")
    return Table(
        f"Layers, {r.recipe}",
        columns,
        tuple(
            (x.layers, x.kind, x.shape, x.window, x.stored, x.bytes_per_token, x.fixed_bytes)
            for x in layer_rows(r.price.layers)
        ),
    )


def _step_tables(answer: Answer) -> tuple[Table, ...]:
    return tuple(
        Table(section, ("Step", "From"), tuple((s.text, str(s.source)) for s in steps))
        for section, steps in groupby(explain(answer), key=lambda s: s.section)
    )
