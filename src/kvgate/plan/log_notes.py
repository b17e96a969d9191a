"""What a reader of a start log must know of its numbers. One function a note."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvgate.enginefacts.facts import version_key
from kvgate.plan.log_values import StartLog


def notes_of(log: StartLog) -> tuple[str, ...]:
    """What a person must know of the numbers in this log."""
    return tuple(note for write in _NOTES for note in write(log))


def _note_auto(log: StartLog) -> Iterator[str]:
    stored = log.stored
    if stored.how == "auto":
        yield (
            f"KV type auto: {stored.k or 'the compute type'} unless the checkpoint carries a KV scheme, which "
            f"{log.title} need not print; the room in tokens tells"
        )
    if stored.how == "requested":
        yield "the KV type is known from the arguments only: no line says what was allocated"


def _note_tokens(log: StartLog) -> Iterator[str]:
    if log.engine != "vllm" or log.fact("tokens") is None:
        return
    if log.version is None:
        yield (
            "the version is unknown: before 0.21 the printed tokens are blocks over groups times block, since then "
            "concurrency times the longest sequence"
        )
        return
    tokens, times, length = log.fact("tokens"), log.fact("concurrency"), log.fact("concurrency_context_tokens")
    if version_key(log.version) >= (0, 21) or not (tokens and times and length):
        return
    fits = times.number * length.number
    if abs(fits - tokens.number) > times.within * length.number + length.number * 0.01:
        yield (
            f"the model has several groups of layers: the printed {round(tokens.number):,} tokens are no capacity, "
            f"since {times.value} sequences of {round(length.number):,} fit, which are {round(fits):,}"
        )


def _note_scales(log: StartLog) -> Iterator[str]:
    words = {str(f.value) for f in log.facts if f.name == "scales"}
    stored = log.stored.k or ""
    if "doubtful" in words:
        yield "SGLang prints `no scaling factors provided` even where the checkpoint has scales: read the checkpoint"
    elif log.engine == "vllm" and stored.startswith("fp8") and not words:
        yield "no line about scales: that is no proof of calibrated ones, a plain checkpoint gets 1.0 without a word"


def _note_draft(log: StartLog) -> Iterator[str]:
    if any(c.context > 0 for c in log.caches):
        yield "a second context (a draft or another model) has caches of its own, which are listed but not added"


def _note_blocks(log: StartLog) -> Iterator[str]:
    fact, asked = log.fact("blocks"), log.fact("blocks_asked")
    if fact and asked:
        yield f"the number of blocks was given by hand: {fact.value} instead of the {asked.value} that memory allows"


def _note_starts(log: StartLog) -> Iterator[str]:
    if log.earlier_starts:
        yield f"{log.earlier_starts} earlier start(s) in this log were left out"


_NOTES: tuple[Callable[[StartLog], Iterator[str]], ...] = (
    _note_auto,
    _note_tokens,
    _note_scales,
    _note_draft,
    _note_blocks,
    _note_starts,
)
