"""A start log against a prediction: what differs, by how much, and why.

A printed GiB has two decimals, so that bytes from a log are known to some 5 MiB; every comparison allows for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvgate.core.recipe import Recipe
from kvgate.core.units import GIB_BYTES, bytes_text
from kvgate.plan.log_settings import (
    LogSettings,
    Overhead,
    cache_within,
    overhead_of,
    settings_of,
    weights_of,
)
from kvgate.plan.log_values import StartLog
from kvgate.plan.terms import Budget, Reserved

__all__ = ["GapRow", "LogSettings", "Overhead", "compare", "overhead_of", "settings_of"]

Verdict = Literal["exact", "rounding", "differs", "unknown"]
#: Terms of a budget that are neither the device, its unused share, weights nor the cache.
_NOT_OVERHEAD = ("device memory", "left unused", "weights", "draft model", "KV cache memory")


@dataclass(frozen=True, slots=True)
class GapRow:
    """One quantity, predicted and reported.

    Attributes:
        what: "KV memory", "tokens", "sequences", "K type", ... unit: "bytes", "tokens", "sequences", "type".
        gap: reported minus predicted, where both are numbers.
        verdict: "rounding" is a gap that the log's printed digits leave open. why: the gap, named.
        lines: of the log.
    """

    what: str
    unit: str
    predicted: int | float | str | None
    reported: int | float | str | None
    gap: int | float | None
    verdict: Verdict
    why: str
    lines: tuple[int, ...] = ()


def compare(
    log: StartLog, predicted: Reserved, budget: Budget | None = None, *, recipe: Recipe | None = None
) -> tuple[GapRow, ...]:
    """Predicted against reported, the gap named.

    Args:
        predicted: what the engine's rule gives. budget: of the limiting rank, if the plan made one.
        recipe: what was planned, to hold the stored types against it.
    """
    rows = [*_types(log, recipe)]
    memory = _memory(log, predicted, budget)
    rows += [r for r in (memory, *_term_rows(log, budget), _overhead_row(log, budget)) if r is not None]
    rows += [r for r in (_tokens(log, predicted, memory), _sequences(log, predicted), _rank(log, predicted)) if r]
    return tuple(rows)


def _types(log: StartLog, recipe: Recipe | None) -> Iterator[GapRow]:
    if recipe is None:
        return
    stored = log.stored
    lines = (stored.fact.line,) if stored.fact else tuple(c.line for c in log.caches[:1])
    for side, planned in recipe.sides():
        have = stored.k if side == "k" else stored.v
        verdict: Verdict = "unknown" if have is None else "exact" if have == planned.codec else "differs"
        why = (
            "" if verdict == "exact" else "the log names no type" if have is None else "the engine stores another type"
        )
        if stored.how in ("auto", "requested") and have is not None:
            why = "not printed: the type follows from " + ("auto" if stored.how == "auto" else "the arguments")
        yield GapRow(f"{side.upper()} type", "type", planned.codec, have, None, verdict, why, lines)


def _memory(log: StartLog, predicted: Reserved, budget: Budget | None) -> GapRow | None:
    left = log.fact("available")
    if left is not None and budget is not None:
        return _bytes_row("KV memory", budget.bytes, round(left.number), left.within, (left.line,), "")
    have = log.kv_bytes
    if have is None or predicted.reserved_bytes is None:
        return None
    said = left or log.fact("allocated")
    within = cache_within(log) if log.caches or said is None else said.within
    lines = tuple(c.line for c in log.caches if c.context == 0) or ((left.line,) if left else ())
    # Whole blocks only are taken of what is available.
    why = "whole blocks of the memory that is available" if left is not None and not log.caches else ""
    return _bytes_row("KV bytes", predicted.reserved_bytes, have, within, lines, why)


def _bytes_row(what: str, predicted: int, have: int, within: float, lines: tuple[int, ...], why: str) -> GapRow:
    gap = have - predicted
    verdict: Verdict = "exact" if gap == 0 else "rounding" if abs(gap) <= within + 1 else "differs"
    if verdict == "exact":
        why = ""
    if verdict == "rounding":
        why = f"to within the printed digits ({bytes_text(within)})"
    return GapRow(what, "bytes", predicted, have, gap, verdict, why, lines)


def _term_rows(log: StartLog, budget: Budget | None) -> Iterator[GapRow]:
    """Device memory and weights, each planned and as the engine saw it: with the overhead they make the gap."""
    planned = {t.name: abs(t.bytes) for t in budget.terms} if budget else {}
    total, (weights, at) = log.fact("total"), weights_of(log)
    if "device memory" in planned and total is not None:
        lines = (total.line,)
        why = "what the driver reports to the engine; nvidia-smi and the box say more"
        yield _bytes_row("device memory", planned["device memory"], round(total.number), total.within, lines, why)
    if "weights" in planned and weights is not None and at is not None:
        why = "tensors as loaded: repacked, padded or kept twice they take more than in the file"
        yield _bytes_row("weights", planned["weights"], weights, at.within, (at.line,), why)


def _overhead_row(log: StartLog, budget: Budget | None) -> GapRow | None:
    """The overhead that the plan took against the one that the log implies: the usual name of a gap in KV memory."""
    if budget is None:
        return None
    terms = [t for t in budget.terms if t.name not in _NOT_OVERHEAD]
    if len(terms) == len(budget.terms) or not terms:
        return None
    planned = -sum(t.bytes for t in terms)
    over, why = overhead_of(log)
    if over is None:
        return GapRow("overhead", "bytes", planned, None, None, "unknown", why)
    row = _bytes_row("overhead", planned, over.bytes, over.within_bytes, over.lines, "")
    parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in over.parts)
    said = f"{over.how} is {bytes_text(over.bytes)}" + (f" (of which {parts})" if parts else "")
    assumed = "; the plan assumed its own" if any(t.assumed for t in terms) else ""
    return GapRow(
        row.what, row.unit, row.predicted, row.reported, row.gap, row.verdict, row.why or said + assumed, row.lines
    )


def _tokens(log: StartLog, predicted: Reserved, memory: GapRow | None) -> GapRow | None:
    have = log.tokens
    fact = log.fact("tokens")
    if have is None and predicted.tokens is None:
        return None
    lines = (fact.line,) if fact else tuple(c.line for c in log.caches[:1])
    if have is None or predicted.tokens is None:
        why = "the log prints no tokens" if have is None else "the rule gives no tokens"
        return GapRow("tokens", "tokens", predicted.tokens, have, None, "unknown", why, lines)
    gap = have - predicted.tokens
    if gap == 0:
        return GapRow("tokens", "tokens", predicted.tokens, have, 0, "exact", "", lines)
    room = _token_room(log, predicted)
    verdict: Verdict = "rounding" if abs(gap) <= room else "differs"
    why = (
        f"one block and the printed digits leave {round(room):,} tokens open"
        if verdict == "rounding"
        else _why_tokens(log, predicted, memory, have)
    )
    return GapRow("tokens", "tokens", predicted.tokens, have, gap, verdict, why, lines)


def _token_room(log: StartLog, predicted: Reserved) -> float:
    """Tokens that printed sizes and one block leave open."""
    left = log.fact("available") or log.fact("allocated")
    within = left.within if left is not None else cache_within(log)
    block = log.whole("block_tokens") or 16
    if not within or not predicted.reserved_bytes or not predicted.tokens:
        return block
    return block + within * predicted.tokens / predicted.reserved_bytes


def _why_tokens(log: StartLog, predicted: Reserved, memory: GapRow | None, have: int) -> str:
    if memory is not None and memory.verdict == "differs" and _both(memory) and predicted.tokens:
        scaled = predicted.tokens * float(memory.reported or 0) / float(memory.predicted or 1)
        if abs(scaled - have) <= max(_token_room(log, predicted), 0.005 * have):
            return "follows from the KV memory: the bytes of a token agree"
    if predicted.tokens:
        for times in (2, 4):
            for ratio, word in ((have / predicted.tokens, "more"), (predicted.tokens / max(1, have), "fewer")):
                if abs(ratio / times - 1) < 0.02:
                    return f"{times} times {word}: the KV type in force is not the planned one, or the model is another"
    if log.engine == "vllm" and any("several groups" in n for n in log.notes):
        return "the printed tokens of this version are no capacity for a model with several groups of layers"
    return "not explained by the KV memory: compare version, block size, max_num_batched_tokens and the model"


def _both(row: GapRow) -> bool:
    return isinstance(row.predicted, int) and isinstance(row.reported, int) and row.predicted > 0


def _sequences(log: StartLog, predicted: Reserved) -> GapRow | None:
    times = log.fact("concurrency")
    if times is None or predicted.sequences is None:
        return None
    # One block is the null block, which the printed number counts and a scheduler cannot give out.
    have = int(times.number)
    gap = have - predicted.sequences
    edge = abs(times.number - round(times.number)) <= times.within + 0.01
    verdict: Verdict = "exact" if gap == 0 else "rounding" if edge and abs(gap) == 1 else "differs"
    why = "" if gap == 0 else f"printed as {times.value}; whole sequences count"
    return GapRow("sequences", "sequences", predicted.sequences, have, gap, verdict, why, (times.line,))


def _rank(log: StartLog, predicted: Reserved) -> GapRow | None:
    every = log.every("available")
    least = log.fact("available")
    if len(every) < 2 or least is None:
        return None
    spread = (max(f.number for f in every) - least.number) / GIB_BYTES
    why = f"{least.rank} has the least of {len(every)} ranks; the most has {spread:.2f} GiB more"
    return GapRow("limiting rank", "rank", predicted.limiting_rank, least.rank, None, "unknown", why, (least.line,))
