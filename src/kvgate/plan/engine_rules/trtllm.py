"""TensorRT-LLM: from what is free to blocks, and what the host and disk tiers hold.

    KV bytes = (memory - weights - activations) x free_gpu_memory_fraction: a share of what is free, not of all memory
    blocks   = ceil((KV bytes // bytes of a token) / tokens_per_block): up, where vLLM rounds down
    windows  one pool a window, cut once by (bytes of a token x window) of each
    tiers    blocks of host or disk = (tier bytes // bytes of a token) // tokens_per_block; with NVFP4 cold pages K and
             V rows take 9/16 byte an element there. They hold pages that were moved out: never GPU tokens.
Source: TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp calculateMaxNumBlocks; docs 1.4.0rc4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.core.units import GIB_BYTES
from kvgate.formats.spec import codec
from kvgate.plan.budget import DEFAULT_OVERHEAD_BYTES, GIVEN, OVERHEAD_SOURCE, check_fraction
from kvgate.plan.engine_rules._options import Options
from kvgate.plan.engine_rules._versioned import Facts, facts
from kvgate.plan.terms import Budget, LayerPrice, Rank, Reserved, Serving, Term

_SOURCE = Source("spec", "TensorRT-LLM batch_manager/kvCacheManager.cpp, docs kv-cache-compression", "1.4.0rc4")
_FREE = Source("spec", "free after loading, as the start log says ('available')", "")
TIERS = ("host-cache-size", "disk-cache-size")

#: Settings that the rule or the split reads.
OPTIONS = ("available", "max-tokens", "cold-page-quant", *TIERS)


@dataclass(frozen=True, slots=True)
class _Pool:
    """One window's pool: tokens of its window (None: all), bytes of a token, blocks."""

    window_tokens: int | None
    token_bytes: Fraction
    blocks: int


@dataclass(frozen=True, slots=True)
class TrtllmRule:
    """Registered under "trtllm"."""

    name: str = "trtllm"

    def budget(self, rank: Rank, serving: Serving, *, device_bytes: int, overhead_bytes: int | None) -> Budget:
        """A share of what is free after weights and activations; option `available` is that size from a log.

        Raises:
            UserError: no memory, no weights, or a fraction that is none.
        """
        rows, options = facts("trtllm", serving.version), Options("trtllm", serving.options)
        fraction = check_fraction(
            rows["memory_fraction"].number if serving.memory_fraction is None else serving.memory_fraction
        )
        free, terms = _free(rank, options, device_bytes, overhead_bytes)
        usable = max(0, floor(Fraction(str(fraction)) * free))
        source = rows["memory_fraction"].source if serving.memory_fraction is None else GIVEN
        how = f"{free:,} free x (1 - {fraction:g})"
        return Budget(rank.name, (*terms, Term("left free", usable - max(0, free), how, source)))

    def reserve(
        self,
        geometry: ModelGeometry,
        recipe: Recipe,
        ranks: tuple[Rank, ...],
        serving: Serving,
        budgets: tuple[Budget, ...],
    ) -> Reserved:
        """Blocks of the primary pools, their tokens, and the offloaded tiers in words.

        Raises:
            UserError: senseless settings, or cold pages where they cannot be.
        """
        rows, options = facts("trtllm", serving.version), Options("trtllm", serving.options)
        block = _block(serving, rows)
        _check(ranks, serving, budgets)
        pools = {r.name: _pools(r, b.bytes, serving, block, options) for r, b in zip(ranks, budgets, strict=True)}
        held = {name: found for name, found in pools.items() if found}
        if not held:
            raise UserError("no rank has a layer with a KV cache", fix="choose a model with attention layers")
        limiting = min(held, key=lambda name: max(p.blocks for p in held[name]))
        found = held[limiting]
        rank = next(r for r in ranks if r.name == limiting)
        largest = max(found, key=lambda p: p.window_tokens or serving.context_tokens)
        tiers = _tiers(rank, recipe, block, rows, options)
        return Reserved(
            rule=f"trtllm blocks, {rows['block_tokens'].versions}",
            source=_SOURCE,
            tokens=largest.blocks * block,
            sequences=_sequences(found, block, serving) * serving.dp,
            limiting_rank=limiting,
            reserved_bytes=sum(floor(p.blocks * block * p.token_bytes) for p in found),
            prints=_lines(found, block),
            steps=(*(_step(p, block) for p in found), *tiers),
            notes=(*rows.notes, *options.unknown(OPTIONS), *_notes(found, rank, serving, rows, cold=_cold(options))),
        )


def _free(rank: Rank, options: Options, device_bytes: int, overhead_bytes: int | None) -> tuple[int, tuple[Term, ...]]:
    known = options.size_bytes("available")
    if known is not None:
        return known, (Term("free after loading", known, f"{known:,} bytes", _FREE),)
    if device_bytes <= 0:
        raise UserError(f"a device of {device_bytes} bytes has no room", fix="give --device or --device-memory")
    if rank.weights_bytes is None:
        raise UserError(
            "the size of the weights is not known, so TensorRT-LLM's budget is not", fix="give --weights SIZE"
        )
    overhead = DEFAULT_OVERHEAD_BYTES if overhead_bytes is None else overhead_bytes
    terms = (
        Term("device memory", device_bytes, "all of it", Source("spec", "the device's memory as it was given")),
        Term("weights", -rank.weights_bytes, "tensor bytes of this rank", Source("file", "the checkpoint's tensors")),
        Term(
            "activations and the rest",
            -overhead,
            "the profiled peak" if overhead_bytes is None else f"{overhead:,} bytes",
            OVERHEAD_SOURCE if overhead_bytes is None else GIVEN,
            assumed=overhead_bytes is None,
        ),
    )
    return sum(t.bytes for t in terms), terms


def _block(serving: Serving, rows: Facts) -> int:
    block = rows["block_tokens"].integer if serving.block_tokens is None else serving.block_tokens
    if block < 1 or block & (block - 1):
        raise UserError(f"trtllm tokens_per_block {block} is not a power of two", fix="give 32 or 64")
    return block


def _check(ranks: tuple[Rank, ...], serving: Serving, budgets: tuple[Budget, ...]) -> None:
    if serving.context_tokens < 1:
        raise UserError(f"a context of {serving.context_tokens} tokens cannot be served", fix="give 1 or more")
    if serving.slots is not None and serving.slots < 1:
        raise UserError(f"{serving.slots} sequences at once cannot be served", fix="give 1 or more")
    if not ranks or [r.name for r in ranks] != [b.rank for b in budgets]:
        raise UserError("TensorRT-LLM needs one budget a rank", fix="give the ranks' budgets in the ranks' order")


def _by_window(layers: Sequence[LayerPrice]) -> dict[int | None, Fraction]:
    """Bytes of a token by window; None is layers that see all tokens."""
    found: dict[int | None, Fraction] = {}
    for p in layers:
        if p.row_bytes and (p.layer.fixed_tokens is None or p.layer.window_tokens is not None):
            window = p.layer.window_tokens
            found[window] = found.get(window, Fraction(0)) + Fraction(p.row_bytes, p.layer.tokens_per_row)
    return found


def _pools(rank: Rank, budget_bytes: int, serving: Serving, block: int, options: Options) -> tuple[_Pool, ...]:
    cells = _by_window(rank.price.layers)
    states = sum(p.state_bytes for p in rank.price.layers) * (serving.slots or 0)
    left = max(0, budget_bytes - states)
    reach = {window: min(window or serving.context_tokens, serving.context_tokens) for window in cells}
    weight = sum((cell * reach[window] for window, cell in cells.items()), Fraction(0))
    limit = options.integer("max-tokens")
    made = []
    for window, cell in cells.items():
        share = Fraction(1) if len(cells) == 1 else cell * reach[window] / weight
        tokens = floor(left * share / cell)
        tokens = tokens if limit is None else min(tokens, limit)
        made.append(_Pool(window, cell, -(-tokens // block)))
    return tuple(made)


def _sequences(pools: Sequence[_Pool], block: int, serving: Serving) -> int:
    limits = [] if serving.slots is None else [serving.slots]
    for pool in pools:
        held = min(pool.window_tokens or serving.context_tokens, serving.context_tokens)
        # A window may start inside a block.
        moving = pool.window_tokens is not None and pool.window_tokens < serving.context_tokens
        limits.append(pool.blocks // (-(-held // block) + moving))
    return min(limits)


def _cold(options: Options) -> bool:
    word = options.text("cold-page-quant")
    if word not in (None, "none", "nvfp4"):
        raise UserError(f"trtllm cold pages in {word!r} do not exist", allowed=("nvfp4", "none"))
    return word == "nvfp4"


def _tiers(rank: Rank, recipe: Recipe, block: int, rows: Facts, options: Options) -> tuple[str, ...]:
    """What host and disk hold, in words: offloaded pages are no room for running sequences."""
    cold = _cold(options)
    sizes = {name: options.size_bytes(name) for name in TIERS}
    if cold:
        _refuse_cold(rank, recipe, rows, any(sizes.values()))
    native = sum(_by_window(rank.price.layers).values(), Fraction(0))
    moved = sum((_cold_bytes(p) for p in rank.price.layers), Fraction(0)) if cold else native
    said = []
    for name, size in sizes.items():
        if size:
            blocks = floor(size / moved) // block
            text = f"{name.partition('-')[0]} tier, offloaded: {blocks:,} blocks, {blocks * block:,} tokens"
            said.append(text + (f" as NVFP4, {float(native / moved):.2f}x of its own format" if cold else ""))
    return tuple(said)


def _refuse_cold(rank: Rank, recipe: Recipe, rows: Facts, tier: bool) -> None:
    if not rows["cold_pages"].value:
        raise UserError(f"TensorRT-LLM {rows.version} has no NVFP4 cold pages", fix="they are in 1.4.0")
    if any(side.codec.startswith("nvfp4") for _, side in recipe.sides()):
        raise UserError("NVFP4 cold pages need hot pages in another format", fix="use native or fp8_e4m3")
    if any(p.layer.tokens_per_row > 1 for p in rank.price.layers):
        raise UserError("TensorRT-LLM has no NVFP4 cold pages for compressed rows", fix="leave cold-page-quant away")
    if not tier:
        raise UserError("NVFP4 cold pages need a host or disk tier", fix="give host-cache-size")


def _cold_bytes(p: LayerPrice) -> Fraction:
    """Bytes of a token in NVFP4: K and V rows only; an indexer's rows are moved as they are."""
    if p.bytes_per_token == 0:
        return Fraction(0)
    bits = codec("nvfp4").bits
    elements = p.layer.kv_heads * (p.layer.k_dim + p.layer.v_dim)
    return (elements * bits / 8 + p.index_row_bytes) / p.layer.tokens_per_row


def _step(pool: _Pool, block: int) -> str:
    window = "all tokens" if pool.window_tokens is None else f"window {pool.window_tokens:,}"
    return f"{window}: {float(pool.token_bytes):,.0f} bytes a token, {pool.blocks:,} blocks of {block} tokens"


def _lines(pools: Sequence[_Pool], block: int) -> str:
    """The C++ manager's lines, for one pool; V2 writes others."""
    if len(pools) != 1:
        return ""
    pool = pools[0]
    size = pool.blocks * block * pool.token_bytes / GIB_BYTES
    return (
        f"Number of blocks in KV cache primary pool: {pool.blocks}\n"
        f"Number of tokens per block: {block}.\n"
        f"[MemUsageChange] Allocated {float(size):.2f} GiB for max tokens in paged KV cache ({pool.blocks * block})."
    )


def _notes(pools: Sequence[_Pool], rank: Rank, serving: Serving, rows: Facts, *, cold: bool) -> tuple[str, ...]:
    notes = []
    if serving.block_tokens is None and rows["block_tokens"].note:
        notes.append(rows["block_tokens"].note)
    if not any(p.blocks for p in pools):
        notes.append("the budget holds not one token")
    if len(pools) > 1:
        notes.append("pools are cut once, in proportion to bytes a token x window; manager V2 cuts by its own estimate")
    if any(p.state_bytes for p in rank.price.layers):
        notes.append(
            "states of the asked slots are taken off"
            if serving.slots
            else "states are not taken off: give slots (max_batch_size)"
        )
    if cold:
        notes.append(rows["cold_pages"].note)
    if serving.dp > 1:
        notes.append(f"sequences are those of {serving.dp} attention-data-parallel ranks, tokens those of one")
    return tuple(notes)


ENGINE_RULE = TrtllmRule()
