"""A start log against a prediction: what differs, by how much, and why; and the settings with which the log agrees.

The memory identities, all per rank (the engines' own, see `plan/engine_rules/`):
    vLLM          KV = share x device memory - weights - overhead
    SGLang        KV = share x memory before the weights - weights - overhead
    TensorRT-LLM  KV = share x (device memory - peak + small pool); overhead = peak - small pool - weights
    llama.cpp     overhead = compute buffers beside weights and caches
A printed GiB has two decimals, so that bytes from a log are known to some 5 MiB; every comparison allows for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kvgate.core.errors import UserError
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.core.units import GIB_BYTES, bytes_text
from kvgate.plan.log_values import LogFact, StartLog
from kvgate.plan.terms import Budget, Reserved, Serving, Term

Verdict = Literal["exact", "rounding", "differs", "unknown"]
#: Terms of a budget that are neither the device, its unused share, weights nor the cache.
_NOT_OVERHEAD = ("device memory", "left unused", "weights", "draft model", "KV cache memory")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Memory of one rank that is neither weights nor KV cache, as the log implies it.

    Attributes:
        within_bytes: how far the printed digits leave it open. parts: what the log itself names of it, (name, bytes).
        how: the arithmetic in words. lines: of the log.
    """

    bytes: int
    within_bytes: int
    parts: tuple[tuple[str, int], ...]
    how: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a planner can take over from a log; None is unknown, `why` says the reason for the overhead.

    Attributes:
        budget_bytes: KV memory of the limiting rank. limiting_rank: "" where there is one.
        device_bytes: device memory as the engine saw it. lines: name of a setting -> line of the log.
    """

    engine: str
    version: str | None
    k: str | None
    v: str | None
    budget_bytes: int | None
    budget_within_bytes: int
    limiting_rank: str
    overhead: Overhead | None
    why: str
    device_bytes: int | None
    weights_bytes: int | None
    memory_fraction: float | None
    context_tokens: int | None
    block_tokens: int | None
    batched_tokens: int | None
    slots: int | None
    tp: int
    pp: int
    dp: int
    dcp: int
    lines: Mapping[str, int] = field(default_factory=dict)

    def serving(self, *, context_tokens: int | None = None, options: Mapping[str, str] | None = None) -> Serving:
        """The same deployment for the planner.

        Raises:
            UserError: neither the log nor the caller says the longest sequence.
        """
        context = context_tokens or self.context_tokens
        if context is None:
            raise UserError("the log does not say the longest sequence", fix="give --context TOKENS")
        return Serving(
            engine=self.engine,
            context_tokens=context,
            version=self.version or "",
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            dcp=self.dcp,
            slots=self.slots,
            batched_tokens=self.batched_tokens,
            block_tokens=self.block_tokens,
            memory_fraction=self.memory_fraction,
            options=options or {},
        )

    def budget(self, rank: str) -> Budget | None:
        """The log's KV memory as a rank's budget; None where the log has none."""
        if self.budget_bytes is None:
            return None
        how = f"line {self.lines.get('available', 0)} of the log, to within {bytes_text(self.budget_within_bytes)}"
        return Budget(rank, (Term("KV cache memory", self.budget_bytes, how, Source("log", "the engine's start log")),))


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


def settings_of(log: StartLog, *, device_bytes: int | None = None, memory_fraction: float | None = None) -> LogSettings:
    """Settings with which a plan is about the deployment that wrote the log.

    Args:
        device_bytes, memory_fraction: used for the overhead where the log does not say them.
    """
    names = (
        "context_tokens",
        "block_tokens",
        "batched_tokens",
        "slots",
        "memory_fraction",
        "available",
        "total",
        "weights",
    )
    facts = {n: f for n in names if (f := log.fact(n)) is not None}
    available = facts.get("available") or log.fact("allocated")
    over, why = overhead_of(log, device_bytes=device_bytes, memory_fraction=memory_fraction)
    stored = log.stored
    fraction = facts.get("memory_fraction")
    ranked = len(log.every("available")) > 1 and available is not None
    return LogSettings(
        engine=log.engine,
        version=log.version,
        k=stored.k,
        v=stored.v,
        budget_bytes=log.kv_bytes if available is None else max(0, round(available.number)),
        budget_within_bytes=round(available.within if available else _cache_within(log)),
        limiting_rank=available.rank if ranked and available is not None else "",
        overhead=over,
        why=why,
        device_bytes=log.whole("total"),
        weights_bytes=_weights(log)[0],
        memory_fraction=None if fraction is None else float(fraction.number),
        context_tokens=log.whole("context_tokens") or log.whole("requested_context_tokens"),
        block_tokens=log.whole("block_tokens"),
        batched_tokens=log.whole("batched_tokens"),
        slots=log.whole("slots"),
        tp=log.whole("tp") or 1,
        pp=log.whole("pp") or 1,
        dp=log.whole("dp") or 1,
        dcp=log.whole("dcp") or 1,
        lines={n: f.line for n, f in facts.items()},
    )


def _cache_within(log: StartLog) -> float:
    return sum(c.within_bytes for c in log.caches if c.context == 0)


def overhead_of(
    log: StartLog, *, device_bytes: int | None = None, memory_fraction: float | None = None
) -> tuple[Overhead | None, str]:
    """The overhead that the log implies, or None and the reason. The arguments stand in where the log is silent."""
    if log.engine == "llama_cpp":
        return _compute_buffers(log)
    weights, at = _weights(log)
    if log.engine == "trtllm":
        peak, small = log.fact("peak"), log.fact("temporary_kv")
        if peak is None or weights is None:
            return None, "the log does not say the peak of the measuring run, or the weights"
        facts = [f for f in (peak, small, at) if f is not None]
        held = round(peak.number) - (round(small.number) if small else 0) - weights
        return _made(held, facts, log, "peak - small pool - weights"), ""
    left = log.fact("available")
    kv = log.kv_bytes if left is None else round(left.number)
    usable, said, facts = _usable(log, device_bytes, memory_fraction)
    there = {said or "device memory": usable, "weights": weights, "KV memory": kv}
    if usable is None or weights is None or kv is None:
        return None, "the log does not say: " + ", ".join(name for name, value in there.items() if value is None)
    how = f"{said} - weights - KV memory"
    return _made(usable - weights - kv, [*facts, *(f for f in (at, left) if f is not None)], log, how), ""


def _usable(
    log: StartLog, device_bytes: int | None, memory_fraction: float | None
) -> tuple[int | None, str, list[LogFact]]:
    """Bytes that the engine may use, how they come about (or what is missing), and the facts."""
    printed = log.fact("usable")
    if printed is not None:
        return round(printed.number), f"usable {bytes_text(printed.number)}", [printed]
    total, share = log.fact("total"), log.fact("memory_fraction")
    memory = device_bytes if total is None else round(total.number)
    part = memory_fraction if share is None else float(share.number)
    if memory is None or part is None:
        return None, "device memory" if memory is None else "share of it", []
    # The share is a setting, which is printed whole; only the memory is rounded.
    facts = [] if total is None else [replace(total, within=total.within * part)]
    return round(part * memory), f"{part:g} x {bytes_text(memory)}", facts


def _made(held: int, facts: list[LogFact], log: StartLog, how: str) -> Overhead:
    names = (("activation", "activation"), ("non_torch", "other libraries"), ("graphs", "CUDA graphs"))
    parts = tuple((name, round(f.number)) for key, name in names if (f := log.fact(key)) is not None)
    within = sum(f.within for f in facts)
    return Overhead(held, round(within), parts, how, tuple(sorted({f.line for f in facts})))


def _compute_buffers(log: StartLog) -> tuple[Overhead | None, str]:
    buffers = [f for f in log.facts if f.name == "compute_buffer"]
    if not buffers:
        return None, "the log does not say the compute buffers"
    within = round(sum(f.within for f in buffers))
    total = round(sum(f.number for f in buffers))
    return Overhead(total, within, (), "compute buffers of all devices", tuple(f.line for f in buffers)), ""


def _weights(log: StartLog) -> tuple[int | None, LogFact | None]:
    """Weights of a rank; llama.cpp's are the buffers of all devices together."""
    fact = log.fact("weights")
    if fact is not None and log.engine == "sglang":
        # A draft model's weights are a line of their own.
        own = [f for f in log.facts if f.name == "weights" and f.rank == fact.rank]
        return round(sum(f.number for f in own)), fact
    if fact is not None:
        return round(fact.number), fact
    buffers = [f for f in log.facts if f.name == "weights_buffer"]
    return (round(sum(f.number for f in buffers)), buffers[-1]) if buffers else (None, None)


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
    rows += [r for r in (memory, _overhead_row(log, budget)) if r is not None]
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
    within = _cache_within(log) if log.caches else (left or log.fact("allocated") or _nothing()).within
    lines = tuple(c.line for c in log.caches if c.context == 0) or ((left.line,) if left else ())
    # Whole blocks only are taken of what is available.
    why = "whole blocks of the memory that is available" if left is not None and not log.caches else ""
    return _bytes_row("KV bytes", predicted.reserved_bytes, have, within, lines, why)


def _nothing() -> LogFact:
    return LogFact("", 0, 0.0, 0, "", "", "", "", Source("log", ""))


def _bytes_row(what: str, predicted: int, have: int, within: float, lines: tuple[int, ...], why: str) -> GapRow:
    gap = have - predicted
    verdict: Verdict = "exact" if gap == 0 else "rounding" if abs(gap) <= within + 1 else "differs"
    if verdict == "rounding":
        why = f"to within the printed digits ({bytes_text(within)})"
    return GapRow(what, "bytes", predicted, have, gap, verdict, why, lines)


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
    """Tokens that a printed GiB and one block leave open."""
    left = log.fact("available") or log.fact("allocated")
    block = log.whole("block_tokens") or 16
    if left is None or not left.within or not predicted.reserved_bytes or not predicted.tokens:
        return block
    return block + left.within * predicted.tokens / predicted.reserved_bytes


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
