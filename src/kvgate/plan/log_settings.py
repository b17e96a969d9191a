"""What a planner can take over from a start log: settings, KV memory, and the overhead that the log implies.

The memory identities, all per rank (the engines' own, see `plan/engine_rules/`):
    vLLM          KV = share x device memory - weights - overhead
    SGLang        KV = share x memory before the weights - weights - overhead
    TensorRT-LLM  KV = share x (device memory - peak + small pool); overhead = peak - small pool - weights
    llama.cpp     overhead = compute buffers beside weights and caches
A printed GiB has two decimals, so that bytes from a log are known to some 5 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvgate.core.errors import UserError
from kvgate.core.source import Source
from kvgate.core.units import bytes_text
from kvgate.plan.log_values import LogFact, StartLog
from kvgate.plan.terms import Budget, Serving, Term

#: Facts that are part of the overhead.
_PARTS = ("activation", "non_torch", "consumed")


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
        budget_within_bytes=round(available.within if available else cache_within(log)),
        limiting_rank=available.rank if ranked and available is not None else "",
        overhead=over,
        why=why,
        device_bytes=log.whole("total"),
        weights_bytes=weights_of(log)[0],
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


def cache_within(log: StartLog) -> float:
    """Half a unit of the last printed digit, over all caches that one rank has for the model."""
    main = [c for c in log.caches if c.context == 0]
    return max((sum(c.within_bytes for c in main if c.rank == rank) for rank in {c.rank for c in main}), default=0.0)


def overhead_of(
    log: StartLog, *, device_bytes: int | None = None, memory_fraction: float | None = None
) -> tuple[Overhead | None, str]:
    """The overhead that the log implies, or None and the reason. The arguments stand in where the log is silent."""
    if log.engine == "llama_cpp":
        return _compute_buffers(log)
    weights, at = weights_of(log)
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
    parts = _parts(log)
    within = round(sum(f.within for f in facts))
    rest = held - sum(size for _, size in parts)
    if parts and rest > within + round(sum(f.within for n in _PARTS if (f := log.fact(n)) is not None)):
        # What vLLM estimates for CUDA graphs (from 0.21 on) is in no line of these.
        parts = (*parts, ("not named in the log", rest))
    return Overhead(held, within, parts, how, tuple(sorted({f.line for f in facts})))


def _parts(log: StartLog) -> tuple[tuple[str, int], ...]:
    """What the log itself names of the overhead. Graphs as captured come later and are in no budget."""
    named = {n: round(f.number) for n in _PARTS if (f := log.fact(n)) is not None}
    weights = weights_of(log)[0]
    if "consumed" in named and weights is not None:
        named["non_torch"] = named["consumed"] - weights
    words = (("activation", "activation"), ("non_torch", "other libraries"))
    return tuple((word, named[key]) for key, word in words if key in named)


def _compute_buffers(log: StartLog) -> tuple[Overhead | None, str]:
    buffers = [f for f in log.facts if f.name == "compute_buffer"]
    if not buffers:
        return None, "the log does not say the compute buffers"
    within = round(sum(f.within for f in buffers))
    total = round(sum(f.number for f in buffers))
    return Overhead(total, within, (), "compute buffers of all devices", tuple(f.line for f in buffers)), ""


def weights_of(log: StartLog) -> tuple[int | None, LogFact | None]:
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
