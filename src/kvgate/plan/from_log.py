"""A plan for the deployment that wrote a start log: its settings, its overhead and budget, and the gap to a prediction.

What the person typed wins over the log. The prediction is made as if there were no log, with the plan's own assumption
for the overhead; only then are the log's overhead and KV memory taken over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.units import bytes_text
from kvgate.plan.answer import Answer, answer
from kvgate.plan.ask import Typed, question
from kvgate.plan.log_compare import GapRow, LogSettings, compare, settings_of
from kvgate.plan.log_values import StartLog
from kvgate.plan.question import Question
from kvgate.plan.terms import Term


@dataclass(frozen=True, slots=True)
class FromLog:
    """What a log and a model give together.

    Attributes:
        gaps: predicted against reported; empty where no prediction could be made, with `why`.
        given_memory: the same with the log's own KV memory: what is left is not the memory's. Empty where the log does
            not say it.
        plan: with the log's KV memory; the prediction itself where the log does not say it.
    """

    log: StartLog
    settings: LogSettings
    gaps: tuple[GapRow, ...]
    why: str
    given_memory: tuple[GapRow, ...]
    plan: Answer


def plan_from_log(typed: Typed, log: StartLog) -> FromLog:
    """Compare and plan.

    Args:
        typed: the person's words; what they leave out is taken from the log.

    Raises:
        UserError: the log does not say what is needed, or the model cannot be planned.
    """
    settings = settings_of(log, memory_fraction=typed.fraction)
    if typed.engine is None:
        typed = replace(typed, engine=log.engine)
    asked = question(_with_settings(typed, settings, on_cpu=(log.word("device") or "").upper() == "CPU"))
    asked = _with_log_sources(asked, typed, settings)
    predicted = answer(asked)
    gaps, why = _gaps(log, predicted)
    taken = answer(_with_memory(asked, settings))
    given = _gaps(log, taken)[0] if taken.question.kv_budget is not None else ()
    return FromLog(log, settings, gaps, why, given, taken)


def _with_settings(typed: Typed, log: LogSettings, *, on_cpu: bool) -> Typed:
    ranks = log.tp * log.pp
    weights = None if log.weights_bytes is None else str(log.weights_bytes * ranks)
    memory = None if log.device_bytes is None or typed.device is not None else str(log.device_bytes)
    return replace(
        typed,
        kv=tuple(typed.kv) or _stored(log),
        engine_version=typed.engine_version or log.version or "",
        context_tokens=typed.context_tokens or log.context_tokens,
        tp=log.tp if typed.tp == 1 else typed.tp,
        pp=log.pp if typed.pp == 1 else typed.pp,
        dp=log.dp if typed.dp == 1 else typed.dp,
        dcp=log.dcp if typed.dcp == 1 else typed.dcp,
        weights=typed.weights or weights,
        device_memory=typed.device_memory or memory,
        fraction=log.memory_fraction if typed.fraction is None else typed.fraction,
        slots=typed.slots or log.slots,
        batched_tokens=typed.batched_tokens or log.batched_tokens,
        block_tokens=typed.block_tokens or log.block_tokens,
        options=(*(("device=cpu",) if on_cpu and typed.device is None else ()), *typed.options),
    )


def _with_log_sources(asked: Question, typed: Typed, log: LogSettings) -> Question:
    """Sizes that came from the log say so."""

    def line(name: str) -> Source:
        return Source("log", f"line {log.lines[name]} of the start log" if name in log.lines else "the start log")

    if typed.weights is None and log.weights_bytes is not None:
        asked = replace(asked, weights_how=f"{line('weights').ref}, times {log.tp * log.pp} ranks")
    if asked.device is not None and typed.device is None and typed.device_memory is None:
        asked = replace(asked, device=replace(asked.device, source=line("total")))
    return asked


def _stored(log: LogSettings) -> tuple[str, ...]:
    if log.k is None or log.v is None:
        raise UserError("the log does not say the KV type", fix="give it: --kv fp8_e4m3")
    return (log.k if log.k == log.v else f"k={log.k},v={log.v}",)


def _gaps(log: StartLog, predicted: Answer) -> tuple[tuple[GapRow, ...], str]:
    first = predicted.recipes[0]
    if first.reserved is None:
        return (), first.reserved_why
    limiting = next((b for b in first.budgets or () if b.rank == first.reserved.limiting_rank), None)
    return compare(log, first.reserved, limiting, recipe=first.recipe), ""


def _with_memory(asked: Question, log: LogSettings) -> Question:
    """The question with the log's KV memory, or at least its overhead."""
    if log.budget_bytes is None:
        return asked if log.overhead is None else replace(asked, overhead_bytes=max(0, log.overhead.bytes))
    # llama.cpp prints what it has allocated: the cache did fit, so its printed size is rounded up, not down.
    size = log.budget_bytes + (log.budget_within_bytes if log.engine == "llama_cpp" else 0)
    how = f"{log.budget_bytes:,} bytes as printed, to within {bytes_text(log.budget_within_bytes)}"
    return replace(asked, kv_budget=Term("KV cache memory", size, how, Source("log", "the engine's start log")))
