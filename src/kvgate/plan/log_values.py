"""Values of a start log: facts with their lines, caches, contradictions, what is stored. Made by `plan/logs.py`."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.core.source import Source
from kvgate.enginefacts.log_patterns import load


@dataclass(frozen=True, slots=True)
class LogFact:
    """One thing that one line says.

    Attributes:
        name: a key of `enginefacts.log_patterns.FACTS`. value: bytes where the line gives GiB or MiB.
        within: half a unit of the last digit that was printed, in the unit of `value`; 0 for whole numbers and words.
        line: number of the line, from the end if negative. text: the line, cut and safe to print.
        rank: the process that wrote it ("TP0"), "" where there is one. row: id of the row in `log_lines`.
    """

    name: str
    value: int | float | str
    within: float
    line: int
    text: str
    rank: str
    row: str
    means: str
    source: Source

    @property
    def number(self) -> float:
        """The value as a number.

        Raises:
            TypeError: it is a word (a programming error).
        """
        if isinstance(self.value, str):
            raise TypeError(f"{self.name} is a word")
        return self.value


@dataclass(frozen=True, slots=True)
class LogCache:
    """One cache of several, as llama.cpp and SGLang print them.

    Attributes:
        kind: "full_attention", "sliding_window". context: 0 is the target model, further ones a draft or another model.
        cells: tokens of one stream. layers, streams: None where the line does not say.
        k_type, v_type: the engine's words; k_codec, v_codec: codec ids, None if the word is unknown.
        k_rotation, v_rotation: size of the Hadamard matrix, 0 for none, None if not said.
        total_bytes: as printed. within_bytes: half a unit of the last printed digit.
    """

    kind: str
    context: int
    rank: str
    cells: int | None
    layers: int | None
    streams: int | None
    k_type: str
    v_type: str
    k_codec: str | None
    v_codec: str | None
    k_bytes: int | None
    v_bytes: int | None
    total_bytes: int
    within_bytes: float
    line: int
    text: str
    k_rotation: int | None = None
    v_rotation: int | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two things that one log says and that cannot both hold, or a request that was not met.

    Attributes:
        severity: "error" (what runs is not what was asked for, or numbers exclude each other) or "warning".
        lines: numbers of the lines that say so.
    """

    id: str
    severity: str
    says: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """What K and V are stored as.

    Attributes:
        k, v: codec ids; None where the engine's word names none or several caches differ.
        how: "printed" (the engine says that it stores this), "configured" (its configuration says so), "requested"
            (only the arguments say so), "auto" (the compute type, by the engine's rule; a checkpoint may change it
            without a word), "unknown".
    """

    k: str | None
    v: str | None
    how: str
    fact: LogFact | None


@dataclass(frozen=True, slots=True)
class StartLog:
    """What one start log says. `None` and empty are unknown.

    Attributes:
        where: the file, or "text". engine: canonical id. version: as printed.
        version_known: somebody has read the lines of this version; else they were read with the newest rows.
        facts: of the last start in the log. caches: of that start, in order. earlier_starts: left out.
    """

    where: str
    engine: str
    title: str
    version: str | None
    version_known: bool
    facts: tuple[LogFact, ...]
    caches: tuple[LogCache, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    notes: tuple[str, ...] = ()
    earlier_starts: int = 0
    requested: str | None = None

    def every(self, name: str) -> tuple[LogFact, ...]:
        """The fact of this name of each rank: the last one, or the first where a later one is of something else."""
        found: dict[str, LogFact] = {}
        for fact in self.facts:
            if fact.name == name and not (name in _FIRST_COUNTS and fact.rank in found):
                found[fact.rank] = fact
        return tuple(found.values())

    def fact(self, name: str) -> LogFact | None:
        """The fact that counts: of the rank with the least for room and memory that is left, else the last one."""
        every = self.every(name)
        if name in _LEAST_COUNTS:
            # Before 0.9 one process of vLLM prints all ranks. TensorRT-LLM measures with a small pool first.
            of_all = tuple(f for f in self.facts if f.name == name) if self.engine == "vllm" else every
            return min(of_all, key=lambda f: f.number, default=None)
        return every[-1] if every else None

    def whole(self, name: str) -> int | None:
        """`fact(name)` as a whole number."""
        fact = self.fact(name)
        return None if fact is None else round(fact.number)

    def word(self, name: str) -> str | None:
        fact = self.fact(name)
        return None if fact is None else str(fact.value)

    @property
    def stored(self) -> Stored:
        return stored_of(self)

    @property
    def tokens(self) -> int | None:
        """Room in tokens as the engine prints or allocates it, of the rank with the least."""
        tokens, blocks, block = self.whole("tokens"), self._widest_blocks(), self.whole("block_tokens")
        if blocks is not None and block is None:
            block = self._block_by_concurrency(blocks)
        if tokens is None and blocks is not None and block is not None:
            return blocks * block
        if tokens is None:
            # A cache of window layers keeps fewer cells, and does not bound the length.
            full = [c for c in self._main() if c.kind == "full_attention"] or self._main()
            tokens = min((c.cells * (c.streams or 1) for c in full if c.cells), default=None)
        return tokens

    @property
    def kv_bytes(self) -> int | None:
        """Bytes of the KV cache of one rank: allocated where the log says so, else what was available."""
        per_rank: dict[str, int] = {}
        for cache in self._main():
            per_rank[cache.rank] = per_rank.get(cache.rank, 0) + cache.total_bytes
        if per_rank:
            return min(per_rank.values())
        parts = self._device_caches()
        if parts:
            return sum(parts.values())
        return self.whole("allocated") if self.whole("allocated") is not None else self.whole("available")

    @property
    def scales(self) -> str | None:
        """ "unit" (1.0), "per-token-head", "file", "not-loaded"; None where the log cannot tell."""
        words = {str(f.value) for f in self.facts if f.name == "scales"}
        return next((w for w in ("not-loaded", "unit", "per-token-head", "file") if w in words), None)

    def _widest_blocks(self) -> int | None:
        """Blocks; where each window has a pool of its own, those of the widest, since the others bound no length."""
        window_at = {f.line: f.number for f in self.facts if f.name == "pool_window_tokens"}
        if len(set(window_at.values())) < 2:
            return self.whole("blocks")
        widest = max(window_at.values())
        of_rank = {
            f.rank: round(f.number) for f in self.facts if f.name == "blocks" and window_at.get(f.line) == widest
        }
        return min(of_rank.values(), default=None)

    def _device_caches(self) -> dict[str, int]:
        """Bytes by device; it is tried out in several divisions, and the last one is loaded."""
        device_at = {f.line: str(f.value) for f in self.facts if f.name == "device"}
        found: dict[str, int] = {}
        for f in self.facts:
            if f.name == "device_cache":
                device = device_at.get(f.line, "")
                found = {} if device in found else found  # a device again: the next division
                found[device] = round(f.number)
        return found

    def _block_by_concurrency(self, blocks: int) -> int | None:
        """Tokens of a block where vLLM before 0.8 prints blocks and sequences; None where the digits leave it open."""
        times, length = self.fact("concurrency"), self.fact("concurrency_context_tokens")
        if times is None or length is None or blocks < 1:
            return None
        block, within = times.number * length.number / blocks, times.within * length.number / blocks
        return round(block) if abs(block - round(block)) <= within + 0.01 and within < 0.4 else None

    def _main(self) -> tuple[LogCache, ...]:
        return tuple(c for c in self.caches if c.context == 0)


#: A draft model's weights are loaded after the model's own, when less is free.
_FIRST_COUNTS = frozenset({"total"})
#: Of these the rank with the least decides.
_LEAST_COUNTS = frozenset(
    {"tokens", "window_tokens", "blocks", "concurrency", "available", "allocated", "free", "total"}
)


def stored_of(log: StartLog) -> Stored:
    """What K and V are stored as, by the strongest line that says so."""
    lines = load(log.engine)
    main = [c for c in log.caches if c.context == 0 and c.k_type]
    if main:
        k, v = {c.k_codec for c in main}, {c.v_codec for c in main}
        fact = next((f for f in log.facts if f.line == main[0].line), None)
        return Stored(k.pop() if len(k) == 1 else None, v.pop() if len(v) == 1 else None, "printed", fact)
    order: tuple[tuple[str, str], ...] = (
        ("dtype", "printed"),
        ("config_dtype", "configured"),
        ("requested_dtype", "requested"),
    )
    for name, how in order:
        fact = log.fact(name)
        if fact is None:
            continue
        codec = lines.codec_of(str(fact.value))
        if codec is not None:
            return Stored(codec, codec, how, fact)
        if str(fact.value) != "auto":
            return Stored(None, None, how, fact)
        model = log.fact("model_dtype")
        codec = None if model is None else lines.codec_of(str(model.value))
        return Stored(codec, codec, "auto", fact)
    return Stored(None, None, "unknown", None)
