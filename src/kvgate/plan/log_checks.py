"""What contradicts itself inside one start log. One function a check.

A check speaks only where two lines exclude each other, or where a request was given up; it is silent on what is merely
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from kvgate.core.errors import UserError
from kvgate.core.registry import get
from kvgate.core.units import MIB_BYTES
from kvgate.enginefacts.facts import version_key
from kvgate.enginefacts.log_patterns import load
from kvgate.formats.spec import CodecSpec
from kvgate.plan.log_values import Contradiction, LogCache, LogFact, StartLog

#: Rows of a cache are whole heads, and heads are multiples of this in every model that is known.
_HEAD_STEP = 16
#: Ranks of one log that are held against all of its lines.
_MAX_RANKS = 64
#: What an engine gave up -> id and severity.
_FALLBACKS = {
    "dtype": ("dtype-dropped", "error"),
    "backend": ("backend-changed", "error"),
    "engine": ("engine-changed", "warning"),
    "kernel": ("kernel-changed", "warning"),
    "windows": ("windows-ignored", "warning"),
    "too-small": ("no-room", "error"),
}
_GGML = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "ggml_mxfp4", "ggml_nvfp4")


def contradictions_of(log: StartLog) -> tuple[Contradiction, ...]:
    """All contradictions of a log, errors first."""
    found: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for check in _CHECKS:
        for c in check(log):
            # Every rank says the same: once is enough, with all lines.
            key = (c.id, c.severity, c.says)
            found[key] = tuple(sorted({*found.get(key, ()), *c.lines}))
    made = [Contradiction(*key, lines) for key, lines in found.items()]
    return tuple(sorted(made, key=lambda c: (c.severity != "error", c.lines[:1], c.id)))


def _by_line(log: StartLog) -> dict[int, dict[str, LogFact]]:
    """Line -> its facts by name."""
    lines: dict[int, dict[str, LogFact]] = {}
    for fact in log.facts:
        lines.setdefault(fact.line, {})[fact.name] = fact
    return lines


def _error(id_: str, says: str, *facts: LogFact | LogCache) -> Contradiction:
    return Contradiction(id_, "error", says, tuple(sorted({f.line for f in facts})))


def _warning(id_: str, says: str, *facts: LogFact | LogCache) -> Contradiction:
    return Contradiction(id_, "warning", says, tuple(sorted({f.line for f in facts})))


def _codec(log: StartLog, word: str) -> str | None:
    return load(log.engine).codec_of(word) or (word if word in _known_codecs() else None)


def _known_codecs() -> frozenset[str]:
    from kvgate.core.registry import discover

    return frozenset(discover("codec"))


def _requested_not_applied(log: StartLog) -> Iterator[Contradiction]:
    """The type that was asked for against the type that is stored, K and V apart."""
    stored = log.stored
    if stored.how not in ("printed", "configured"):
        return
    for side, have in (("k", stored.k), ("v", stored.v)):
        fact = log.fact(f"requested_{side}") or log.fact("requested_dtype")
        word = str(fact.value) if fact else log.requested
        if word is None or have is None:
            continue
        want = _codec(log, word)
        if want is None and word != "auto":
            yield Contradiction(
                "unknown-request",
                "warning",
                f"{side.upper()}: {word!r} was asked for, which is no type of {log.title}",
                (),
            )
        if want is None or want == have or _same_layout(log, want, have):
            continue
        lines = [f for f in (fact, stored.fact) if f is not None]
        caches = [c for c in log.caches if c.context == 0]
        said = caches[0].k_type if caches and side == "k" else caches[0].v_type if caches else have
        yield _error(
            "requested-not-applied",
            f"{side.upper()}: {word} was asked for, the engine stores {said}: measure only what the log confirms",
            *lines,
            *caches[:1],
        )


def _same_layout(log: StartLog, want: str, have: str) -> bool:
    # vLLM writes packed rows for MLA when plain fp8 was asked for: another layout of the same request.
    return log.engine == "vllm" and want == "fp8_e4m3" and have.endswith("_ds_mla")


def _dropped(log: StartLog) -> Iterator[Contradiction]:
    """Lines in which an engine says that it gives something up."""
    lines = _by_line(log)
    for fact in log.facts:
        if fact.name == "fallback" and str(fact.value) in _FALLBACKS:
            id_, severity = _FALLBACKS[str(fact.value)]
            same = lines[fact.line]
            changed = [str(same[n].value) for n in ("backend_from", "backend") if n in same]
            yield Contradiction(
                id_, severity, fact.means + (f" ({' given up, now '.join(changed)})" if changed else ""), (fact.line,)
            )


def _backend(log: StartLog) -> Iterator[Contradiction]:
    """The backend that was named against the one that runs."""
    asked, runs = log.fact("requested_backend"), log.fact("backend")
    if asked is None or runs is None or any(f.name == "fallback" and f.value == "backend" for f in log.facts):
        return
    # SGLang prints its arguments after it has changed them, so only a later, different choice speaks.
    if _plain(str(asked.value)) != _plain(str(runs.value)):
        yield _error("backend-changed", f"backend {asked.value} was asked for, {runs.value} runs", asked, runs)


def _plain(name: str) -> str:
    # "Flash Attention", "FLASH_ATTN" and "flash_attention" are one.
    return name.lower().replace("_", "").replace(" ", "").replace("attention", "attn")


def _auto_became_fp8(log: StartLog) -> Iterator[Contradiction]:
    """vLLM: `auto`, but the engine speaks of FP8 scales: the checkpoint's own scheme is in force."""
    config = log.fact("config_dtype")
    if log.engine != "vllm" or config is None or config.value != "auto" or log.fact("dtype") is not None:
        return
    scale = next((f for f in log.facts if f.name in ("scales", "query_scale")), None)
    if scale is not None:
        yield _error(
            "auto-became-fp8",
            "the configuration says auto, yet FP8 scales are in use: the checkpoint turns FP8 on, so auto is no way "
            "back to 16 bits (write bfloat16)",
            config,
            scale,
        )


def _config_against_dtype(log: StartLog) -> Iterator[Contradiction]:
    """Requested FP8, but `auto` in the configuration line (or another type)."""
    asked, config = log.fact("requested_dtype"), log.fact("config_dtype")
    if asked is None or config is None or config.value != "auto" or asked.value == "auto":
        return
    yield _error(
        "requested-not-configured", f"{asked.value} was asked for, the engine's configuration says auto", asked, config
    )


def _scales(log: StartLog) -> Iterator[Contradiction]:
    """A file of scales that is said to be loaded and was not; scales that were left behind."""
    by_word = {str(f.value): f for f in log.facts if f.name == "scales"}
    if "unit" in by_word and "file" in by_word:
        yield _error(
            "scales-not-in-force",
            "the log says that scales were loaded, but also that all of them are 1.0: the file was rejected",
            by_word["unit"],
            by_word["file"],
        )
    if "not-loaded" in by_word:
        yield _error("scales-dropped", by_word["not-loaded"].means, by_word["not-loaded"])


def _ranks_differ(log: StartLog) -> Iterator[Contradiction]:
    """Ranks that do not store the same."""
    for name in ("dtype", "config_dtype"):
        every = log.every(name)
        if len({_codec(log, str(f.value)) or f.value for f in every}) > 1:
            yield _error("ranks-differ", "ranks do not store the same KV type: " + _listed(every), *every)
    pools = {(c.context, c.rank): c for c in log.caches if c.k_type}
    if len({(c.context, c.k_type) for c in pools.values()}) > len({c.context for c in pools.values()}) and any(
        c.rank for c in pools.values()
    ):
        yield _error("ranks-differ", "ranks do not store the same KV type", *pools.values())


def _listed(facts: tuple[LogFact, ...]) -> str:
    return ", ".join(f"{f.rank or 'rank 0'} {f.value}" for f in facts[:4])


def _cache_sums(log: StartLog) -> Iterator[Contradiction]:
    """K and V must add up to the whole, and the parts on devices to the caches."""
    for cache in log.caches:
        if cache.k_bytes is None or cache.v_bytes is None:
            continue
        if abs(cache.k_bytes + cache.v_bytes - cache.total_bytes) > 3 * cache.within_bytes + 1:
            yield _error(
                "cache-sum",
                f"K {_mib(cache.k_bytes)} and V {_mib(cache.v_bytes)} MiB are not {_mib(cache.total_bytes)} MiB",
                cache,
            )
    parts = [f for f in log.facts if f.name == "kv_buffer"]
    whole = sum(c.total_bytes for c in log.caches)
    room = sum(f.within for f in parts) + sum(c.within_bytes for c in log.caches) + 1
    if parts and log.caches and abs(sum(f.number for f in parts) - whole) > room:
        yield _warning(
            "cache-parts",
            f"the parts on devices are {_mib(sum(f.number for f in parts))} MiB, the caches {_mib(whole)} MiB",
            parts[0],
            log.caches[0],
        )


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / MIB_BYTES:.2f}"


def _types_against_bytes(log: StartLog) -> Iterator[Contradiction]:
    """MiB of K and V that no row of whole heads gives in the type that the line names."""
    for cache in log.caches:
        for side, word, codec, size in (
            ("K", cache.k_type, cache.k_codec, cache.k_bytes),
            ("V", cache.v_type, cache.v_codec, cache.v_bytes),
        ):
            if codec is None or not size or not cache.cells or log.engine != "llama_cpp":
                continue
            if _fits(codec, size, cache) is not False:
                continue
            others = [c for c in _GGML if _fits(c, size, cache)]
            yield _error(
                "type-against-bytes",
                f"{side}: {_mib(size)} MiB in {cache.cells} cells is no whole number of heads in {word}"
                + (f"; it would be in {', '.join(others[:4])}" if others else ""),
                cache,
            )
        if cache.k_codec != cache.v_codec and None not in (cache.k_codec, cache.v_codec):
            yield from _equal_bytes(cache)


def _fits(codec: str, size: int, cache: LogCache) -> bool | None:
    """Whether `size` can be rows of whole heads in this codec; None where the print is too coarse to tell."""
    bits = _bits(codec)
    if bits is None or not cache.cells:
        return None
    per_token = Fraction(size * 8, cache.cells * (cache.streams or 1)) / bits
    room = Fraction(cache.within_bytes) * 8 / (cache.cells * (cache.streams or 1)) / bits
    if room * 4 > _HEAD_STEP:
        return None
    off = per_token % _HEAD_STEP
    return min(off, _HEAD_STEP - off) <= room


def _bits(codec: str) -> Fraction | None:
    try:
        spec = get("codec", codec)
    except UserError:
        return None
    return Fraction(spec.row_bytes(256) * 8, 256) if isinstance(spec, CodecSpec) else None


def _equal_bytes(cache: LogCache) -> Iterator[Contradiction]:
    """K and V in types of different size that take the same bytes."""
    k, v = _bits(cache.k_codec or ""), _bits(cache.v_codec or "")
    if k is None or v is None or k == v or not cache.k_bytes or not cache.v_bytes:
        return
    if abs(cache.k_bytes - cache.v_bytes) <= 2 * cache.within_bytes:
        yield _error(
            "type-against-bytes",
            f"K ({cache.k_type}) and V ({cache.v_type}) take the same {_mib(cache.k_bytes)} MiB, which two types of "
            "different size do not",
            cache,
        )


def _planned_types(log: StartLog) -> Iterator[Contradiction]:
    """llama.cpp before b5700 names the types twice."""
    for name, side in (("k_type", "k"), ("v_type", "v")):
        planned = [f for f in log.facts if f.name == name]
        for fact, cache in zip(planned, log.caches, strict=False):
            word = cache.k_type if side == "k" else cache.v_type
            if word and word != fact.value:
                yield _error(
                    "types-differ", f"{side.upper()}: {fact.value} was announced, {word} was made", fact, cache
                )


def _tokens_against_concurrency(log: StartLog) -> Iterator[Contradiction]:
    """vLLM from 0.21 on prints tokens as concurrency times longest sequence."""
    if log.engine != "vllm" or log.version is None or version_key(log.version) < (0, 21):
        return
    lines = _by_line(log)
    for tokens in log.every("tokens"):
        times = lines[tokens.line].get("concurrency")
        length = lines[tokens.line].get("concurrency_context_tokens")
        if times is None or length is None:
            continue
        room = times.within * length.number + 1
        if abs(tokens.number - times.number * length.number) > room:
            yield _error(
                "tokens-against-concurrency",
                f"{round(tokens.number)} tokens are not {times.value} sequences of {round(length.number)}",
                tokens,
            )


def _blocks_against_tokens(log: StartLog) -> Iterator[Contradiction]:
    """TensorRT-LLM: tokens are blocks times block."""
    if log.engine != "trtllm":
        return
    for tokens in log.every("tokens")[:_MAX_RANKS]:
        before = [f for f in log.facts if f.rank in ("", tokens.rank) and f.line <= tokens.line]
        blocks = next((f for f in reversed(before) if f.name == "blocks"), None)
        block = next((f for f in reversed(before) if f.name == "block_tokens"), None)
        # Several windows have several pools; then the nearest `blocks` may be of another one.
        several = len({f.value for f in before if f.name == "blocks" and f.row == "blocks-per-sequence"}) > 1
        if blocks and block and not several and round(blocks.number * block.number) != round(tokens.number):
            yield _error(
                "blocks-against-tokens",
                f"{blocks.value} blocks of {block.value} tokens are {round(blocks.number * block.number)} tokens, "
                f"not {tokens.value}",
                blocks,
                block,
                tokens,
            )


def _usable(log: StartLog) -> Iterator[Contradiction]:
    """The share of memory against the memory it is a share of; nothing left for the cache."""
    lines = _by_line(log)
    for usable in log.every("usable"):
        same = lines[usable.line]
        total, share = same.get("total"), same.get("memory_fraction")
        if total is None or share is None:
            continue
        room = usable.within + total.within * share.number + share.within * total.number + 1
        if abs(total.number * share.number - usable.number) > room:
            yield _warning(
                "share-against-memory",
                f"{share.value} of {total.number / 2**30:.2f} GiB is not {usable.number / 2**30:.2f} GiB",
                usable,
            )
    left = log.fact("available")
    if left is not None and left.number <= 0:
        yield _error("no-room", f"{left.number / 2**30:.2f} GiB are left for the KV cache", left)


def _twice_announced(log: StartLog) -> Iterator[Contradiction]:
    """FlashInfer resolves the type anew; it must be the configured one."""
    config = [f for f in log.facts if f.name == "config_dtype"]
    words = {_codec(log, str(f.value)) for f in config if f.value != "auto"} - {None}
    if len(words) > 1 and len({f.rank for f in config}) <= 1:
        yield _error(
            "types-differ", "the configuration names several KV types: " + ", ".join(sorted(map(str, words))), *config
        )


_CHECKS: tuple[Callable[[StartLog], Iterator[Contradiction]], ...] = (
    _requested_not_applied,
    _config_against_dtype,
    _dropped,
    _backend,
    _auto_became_fp8,
    _scales,
    _ranks_differ,
    _cache_sums,
    _types_against_bytes,
    _planned_types,
    _tokens_against_concurrency,
    _blocks_against_tokens,
    _usable,
    _twice_announced,
)
