"""A plan on the terminal: a table of recipes, the budget term by term, what follows, and on request every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvgate.cli._terminal import out_console
from kvgate.core.text import one_line
from kvgate.core.units import bytes_text, gb_text
from kvgate.plan.answer import Answer, RecipeAnswer
from kvgate.plan.explain import explain as steps_of
from kvgate.plan.explain import fraction_text, layer_rows
from kvgate.plan.terms import Budget

#: More recipes than this go into further tables: a column must stay readable on 100 characters.
COLUMNS = 3
#: A source is cut here in tables; --explain has it whole.
SOURCE_CHARS = 60
_UNKNOWN = "?"


def show_answer(answer: Answer, *, explain: bool = False, layers: bool = False) -> None:
    """Print a plan."""
    console = out_console()
    _head(console, answer)
    for i in range(0, len(answer.recipes), COLUMNS):
        console.print(_table(answer, answer.recipes[i : i + COLUMNS]))
    _budgets(console, answer)
    _below(console, answer)
    if layers:
        for r in answer.recipes:
            console.print(_layers(r))
    if explain:
        _steps(console, answer)


def _line(console: Console, text: str, indent: int = 0) -> None:
    console.print(Text(" " * indent + one_line(text)), soft_wrap=True)


def _head(console: Console, answer: Answer) -> None:
    q = answer.question
    found = f" ({q.origin})" if q.origin else ""
    _line(console, f"{q.name or q.geometry.name}{found}, from {q.geometry.source}")
    s = q.serving
    sizes = " ".join(f"{n} {v}" for n, v in (("TP", s.tp), ("PP", s.pp), ("DP", s.dp), ("DCP", s.dcp)) if v > 1)
    where = "no device" if q.device is None else q.device.name
    named = "" if q.engine_named else " (no --engine given)"
    version = s.version or "newest known rules"
    _line(console, f"{where}{', ' + sizes if sizes else ''}; {s.context_tokens:,} tokens; {s.engine}, {version}{named}")
    if q.device is not None:
        _line(console, f"device memory {gb_text(q.device.bytes)} = {bytes_text(q.device.bytes)}, {q.device.source}")
        if q.device.other:
            _line(console, f"its sizes: {', '.join(q.device.other)}", 2)
    if q.lengths is not None:
        low, high = q.lengths.quantile(0.5), q.lengths.quantile(0.95)
        _line(
            console,
            f"lengths: {q.lengths.total:,} sequences, mean {q.lengths.mean:,.0f}, median {low:,}, 95 % up to {high:,}, "
            f"longest {q.lengths.longest:,}, {q.lengths.source}",
        )
    console.print()


def _table(answer: Answer, recipes: Sequence[RecipeAnswer]) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for r in recipes:
        table.add_column(Text(str(r.recipe)), justify="right", overflow="fold")
    table.add_column("from", overflow="fold", style="dim")
    for label, cell, source in recipe_rows(answer):
        table.add_row(Text(label), *(Text(cell(r)) for r in recipes), Text(one_line(source)))
    return table


def recipe_rows(answer: Answer) -> list[tuple[str, Callable[[RecipeAnswer], str], str]]:
    """Lines of the table: a label, what a recipe says, and where that is from."""
    q, s = answer.question, answer.question.serving
    rows: list[tuple[str, Callable[[RecipeAnswer], str], str]] = [
        ("bytes per token", lambda r: fraction_text(r.price.bytes_per_token), "row sizes x layers, inside windows"),
        ("  past all windows", lambda r: fraction_text(r.price.growth_bytes_per_token), "layers without a window"),
        ("fixed bytes a sequence", lambda r: f"{r.price.fixed_bytes_per_sequence:,}", "states, cross attention"),
        ("one sequence", lambda r: gb_text(r.sequence_bytes), f"{s.context_tokens:,} tokens"),
        ("", lambda r: bytes_text(r.sequence_bytes), ""),
    ]
    replicas = f", of all {s.dp} replicas" if s.dp > 1 else ""
    if s.tp * s.pp > 1:
        rows.append(("bytes per token and GPU", _per_rank, "heads and layers of each GPU"))
    rows += [
        ("KV budget a GPU", lambda r: _budget(r, gb_text), "memory less weights and overhead, below"),
        ("", lambda r: _budget(r, bytes_text), ""),
        ("ideal: tokens", lambda r: _ideal(r, "tokens"), f"budget / bytes, nothing rounded but down{replicas}"),
        ("ideal: sequences", lambda r: _ideal(r, "sequences"), f"whole ones of {s.context_tokens:,} tokens{replicas}"),
    ]
    if q.lengths is not None:
        rows.append(("ideal: by lengths", _mixed, "mean bytes; (19 of 20 draws)"))
    rule = next((r.reserved.rule for r in answer.recipes if r.reserved is not None), f"{s.engine} rule")
    rows += [
        (f"{s.engine}: tokens", lambda r: _reserved(r, "tokens"), f"{rule}{', of one replica' if s.dp > 1 else ''}"),
        (
            f"{s.engine}: sequences",
            lambda r: _reserved(r, "sequences"),
            "whole ones, blocks rounded as the engine does",
        ),
    ]
    if len(answer.ranks) > 1:
        rows.append(("limiting rank", lambda r: r.reserved.limiting_rank if r.reserved else _UNKNOWN, rule))
    base = "native" if answer.native == "native" else answer.native
    rows += [
        ("storage ratio", lambda r: f"{r.ratio:.2f} x", f"{base} bytes / these bytes, arithmetic"),
        ("time ratio", _speed, "native's time is 1, MEASURED on other models"),
        ("ITL slope, us/1K tokens", _prior, "bytes / bandwidth / efficiency: a prior"),
        ("replicas after rollback", _rollback, f"of {q.replicas}, to carry the same in {base}"),
    ]
    return rows


def _per_rank(r: RecipeAnswer) -> str:
    return " / ".join(dict.fromkeys(fraction_text(p.bytes_per_token) for p in r.rank_prices))


def _budget(r: RecipeAnswer, render: Callable[[float], str]) -> str:
    return _UNKNOWN if r.budgets is None else render(min((b.bytes for b in r.budgets), default=0))


def _ideal(r: RecipeAnswer, name: str) -> str:
    return _UNKNOWN if r.ideal is None else f"{getattr(r.ideal, name):,}"


def _mixed(r: RecipeAnswer) -> str:
    if r.ideal is None or r.ideal.mixed is None:
        return _UNKNOWN
    return f"{r.ideal.mixed.sequences:,} ({r.ideal.mixed.likely:,})"


def _reserved(r: RecipeAnswer, name: str) -> str:
    value = None if r.reserved is None else getattr(r.reserved, name)
    return _UNKNOWN if value is None else f"{value:,}"


def _speed(r: RecipeAnswer) -> str:
    if r.speed.lo is None or r.speed.hi is None:
        return _UNKNOWN
    return f"{r.speed.lo:.2f} x" if r.speed.lo == r.speed.hi else f"{r.speed.lo:.2f} to {r.speed.hi:.2f} x"


def _prior(r: RecipeAnswer) -> str:
    if r.prior is None:
        return _UNKNOWN
    scale = 1e6
    if r.prior.lo_ms is None or r.prior.hi_ms is None:
        return f"over {r.prior.least_ms * scale:.3g}"
    return f"{r.prior.lo_ms * scale:.3g} to {r.prior.hi_ms * scale:.3g}"


def _rollback(r: RecipeAnswer) -> str:
    if r.rollback is None:
        return _UNKNOWN
    if r.rollback.needed is None:
        return "native holds none"
    return f"{r.rollback.needed:,} ({r.rollback.ratio:.2f} x)"


def _budgets(console: Console, answer: Answer) -> None:
    seen: list[tuple[Budget, ...]] = []
    for r in answer.recipes:
        if r.budgets is None:
            continue
        if r.budgets not in seen:
            seen.append(r.budgets)
            for budget in r.budgets:
                console.print()
                console.print(_terms(budget))
    why = next((r.budget_why for r in answer.recipes if r.budget_why), "")
    if why:
        console.print()
        _line(console, f"no room: {why}" if seen else f"no budget: {why}")


def _terms(budget: Budget) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for name, justify in ((f"memory of {budget.rank}", "left"), ("GB", "right"), ("GiB", "right"), ("how", "left")):
        table.add_column(Text(name), justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("from", overflow="fold", style="dim")
    for t in budget.terms:
        how = t.how + (" (assumed)" if t.assumed else "")
        source = Text(one_line(str(t.source), SOURCE_CHARS))
        table.add_row(t.name, gb_text(t.bytes), bytes_text(t.bytes), Text(one_line(how)), source)
    table.add_row("KV budget", gb_text(budget.bytes), bytes_text(budget.bytes), "what is left", "arithmetic")
    return table


def _below(console: Console, answer: Answer) -> None:
    console.print()
    for r in answer.recipes:
        if r.reserved is not None and r.reserved.prints:
            for line in r.reserved.prints.splitlines():
                _line(console, f"{r.recipe}: the engine will log: {line}")
        elif r.reserved is None and r.reserved_why != r.budget_why:
            _line(console, f"{r.recipe}: engine: {r.reserved_why}")
        if r.prior is not None and r.prior.lo_ms is None and not r.same_as_native:
            _line(console, f"{r.recipe}: ITL slope: {r.prior.why}")
    measured = {r.speed.what: r.speed for r in answer.recipes if r.speed.rows and not r.same_as_native}
    for what, s in measured.items():
        _line(console, f"time ratio, {what}: {'; '.join(s.rows)} ({s.source})")
    if measured:
        _line(console, "storage ratio and time ratio are two things: bytes are arithmetic, time is measured")
    console.print()
    _line(console, "stay on 16 bits if:")
    for c in answer.conditions:
        _line(console, f"[{c.holds}] {c.title}: {c.text}", 2)
    _line(console, f"try first: {answer.first.recipe}: {answer.first.why} ({answer.first.source})")
    for note in dict.fromkeys((*answer.notes, *(n for r in answer.recipes if r.reserved for n in r.reserved.notes))):
        _line(console, f"note: {note}")


def _layers(r: RecipeAnswer) -> Table:
    table = Table(
        title=Text(f"layers, {r.recipe}"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for name in ("layers", "kind", "heads x (K + V)", "sees", "stored", "bytes a token", "fixed bytes"):
        table.add_column(name, overflow="fold", justify="right" if "bytes" in name else "left")
    for row in layer_rows(r.price.layers):
        cells = (row.layers, row.kind, row.shape, row.window, row.stored, row.bytes_per_token, row.fixed_bytes)
        table.add_row(*(Text(c) for c in cells))
    return table


def _steps(console: Console, answer: Answer) -> None:
    for section, steps in groupby(steps_of(answer), key=lambda s: s.section):
        console.print()
        _line(console, section)
        for step in steps:
            _line(console, f"{step.text} [{step.source}]", 2)
