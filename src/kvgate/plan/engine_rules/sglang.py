"""SGLang: from memory to token pools.

    KV bytes = memory x mem_fraction_static - weights
    plain     tokens = bytes // bytes of a token, down to whole pages
    windows   two pools of fixed size: full tokens = bytes // (full + ratio x window), window tokens = ratio x those
    states    bytes x r / (1 + r) go to states first, r = mamba_full_memory_ratio
    the fewest tokens of all pipeline stages hold
Source: SGLang 0.5.23 model_executor/pool_configurator.py (DefaultPoolConfigurator, HybridSWAPoolConfigurator),
mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.core.units import GIB_BYTES
from kvgate.plan.budget import GIVEN, check_fraction
from kvgate.plan.engine_rules._options import Options
from kvgate.plan.engine_rules._sglang_fraction import static_fraction
from kvgate.plan.engine_rules._versioned import Facts, facts
from kvgate.plan.terms import Budget, LayerPrice, Rank, Reserved, Serving, Term

_SOURCE = Source("spec", "sglang model_executor/pool_configurator.py", "0.5.23")
_FRACTION = Source("spec", "sglang server_args.py mem_fraction_static", "0.5.23")
_TORCH = {"bf16": "torch.bfloat16", "f16": "torch.float16", "f32": "torch.float32", "fp8_e5m2": "torch.float8_e5m2"}

#: Settings that the rule or the split reads.
OPTIONS = (
    *("chunked-prefill-size", "cuda-graph-max-bs", "enable-dp-attention", "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"),
    *("swa-full-tokens-ratio", "mamba-full-memory-ratio", "max-mamba-cache-size", "disable-radix-cache"),
    *("max-total-tokens", "SGLANG_PP_LAYER_PARTITION"),
)


@dataclass(frozen=True, slots=True)
class _Pools:
    """Tokens and state slots of one rank."""

    rank: str
    tokens: int
    window_tokens: int | None
    states: int | None
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SglangRule:
    """Registered under "sglang"."""

    name: str = "sglang"

    def budget(self, rank: Rank, serving: Serving, *, device_bytes: int, overhead_bytes: int | None) -> Budget:
        """Memory times the static fraction, less weights; activations live in what the fraction leaves.

        Raises:
            UserError: no memory, no weights, or a fraction that is none.
        """
        rows, options = facts("sglang", serving.version), Options("sglang", serving.options)
        if device_bytes <= 0:
            raise UserError(f"a device of {device_bytes} bytes has no room", fix="give --device or --device-memory")
        if rank.weights_bytes is None:
            raise UserError(
                "the size of the weights is not known, so SGLang's budget is not", fix="give --weights SIZE"
            )
        if serving.memory_fraction is None:
            made = static_fraction(serving, device_bytes, rows, options)
            fraction, how, source = made.value, made.how, _FRACTION
        else:
            fraction, how, source = check_fraction(serving.memory_fraction), "as asked for", GIVEN
        terms = [
            Term("device memory", device_bytes, "all of it", Source("spec", "the device's memory as it was given")),
            Term(
                "left unused", -ceil(device_bytes * (1 - Fraction(str(fraction)))), f"1 - {fraction:g}: {how}", source
            ),
            Term(
                "weights", -rank.weights_bytes, "tensor bytes of this rank", Source("file", "the checkpoint's tensors")
            ),
        ]
        if overhead_bytes:
            terms.append(Term("further overhead", -overhead_bytes, f"{overhead_bytes:,} bytes", GIVEN))
        return Budget(rank.name, tuple(terms))

    def reserve(
        self,
        geometry: ModelGeometry,
        recipe: Recipe,
        ranks: tuple[Rank, ...],
        serving: Serving,
        budgets: tuple[Budget, ...],
    ) -> Reserved:
        """Pools, the tokens that the log names, and whole sequences.

        Raises:
            UserError: senseless settings, or no rank with a cache.
        """
        rows, options = facts("sglang", serving.version), Options("sglang", serving.options)
        _check(ranks, serving, budgets)
        page = _page(ranks, serving, rows)
        pools = [_pools(r, b, serving, page, rows, options) for r, b in zip(ranks, budgets, strict=True)]
        least = min((p for p in pools if p is not None), key=lambda p: p.tokens, default=None)
        if least is None:
            raise UserError("no rank has a layer with a KV cache", fix="choose a model with attention layers")
        rank = next(r for r in ranks if r.name == least.rank)
        sequences = _sequences(least, rank, serving, page, rows, options)
        return Reserved(
            rule="sglang pools, 0.5",
            source=_SOURCE,
            tokens=least.tokens,
            sequences=sequences * serving.dp,
            limiting_rank=least.rank,
            reserved_bytes=_bytes(least, rank),
            prints=_line(least, rank),
            steps=least.steps,
            notes=(*rows.notes, *options.unknown(OPTIONS), *_notes(least, rank, serving, page, rows)),
        )


def _check(ranks: tuple[Rank, ...], serving: Serving, budgets: tuple[Budget, ...]) -> None:
    if serving.context_tokens < 1:
        raise UserError(f"a context of {serving.context_tokens} tokens cannot be served", fix="give 1 or more")
    if serving.slots is not None and serving.slots < 1:
        raise UserError(f"{serving.slots} sequences at once cannot be served", fix="give 1 or more")
    if serving.block_tokens is not None and serving.block_tokens < 1:
        raise UserError(f"sglang page size {serving.block_tokens} is not a size", fix="give 1, 16, 32, 64 or 128")
    if not ranks or [r.name for r in ranks] != [b.rank for b in budgets]:
        raise UserError("SGLang needs one budget a rank", fix="give the ranks' budgets in the ranks' order")


def _page(ranks: tuple[Rank, ...], serving: Serving, rows: Facts) -> int:
    if serving.block_tokens is not None:
        return serving.block_tokens
    layers = [p.layer for r in ranks for p in r.price.layers]
    if any(layer.tokens_per_row > 1 for layer in layers):
        return rows["page_tokens_compressed"].integer
    return rows["page_tokens_sparse" if any(x.kind == "sparse_mla" for x in layers) else "page_tokens"].integer


def _split(layers: Sequence[LayerPrice]) -> tuple[list[LayerPrice], list[LayerPrice]]:
    """Layers with rows: without and with a window."""
    rows = [p for p in layers if p.row_bytes and (p.layer.fixed_tokens is None or p.layer.window_tokens is not None)]
    return [p for p in rows if p.layer.window_tokens is None], [p for p in rows if p.layer.window_tokens is not None]


def _cell(layers: Sequence[LayerPrice]) -> float:
    return float(sum(p.row_bytes / p.layer.tokens_per_row for p in layers))


def _pools(rank: Rank, budget: Budget, serving: Serving, page: int, rows: Facts, options: Options) -> _Pools | None:
    full, windowed = _split(rank.price.layers)
    state = sum(p.state_bytes for p in rank.price.layers)
    if not full and not windowed and not state:
        return None
    left, steps, slots = budget.bytes, [], None
    if state:
        slots = _state_slots(left, state, serving, rows, options)
        left = max(0, left - slots * state)
        steps.append(f"{slots:,} state slots of {state:,} bytes; {left:,} bytes left for tokens")
    tokens, window_tokens = 0, None
    if windowed and full:
        tokens, window_tokens, ratio = _two_pools(left, full, windowed, page, rows, options)
        steps.append(f"cell {_cell(full):,.0f} + {ratio:g} x {_cell(windowed):,.0f} bytes; two pools of fixed size")
    elif full or windowed:
        cell = _cell(full or windowed)
        tokens = int(left // cell) // page * page
        window_tokens = tokens if windowed else None
        steps.append(f"{left:,} bytes // {cell:,.0f} a token, down to pages of {page}")
    limit = options.integer("max-total-tokens")
    tokens = tokens if limit is None else min(tokens, limit // page * page)
    return _Pools(rank.name, tokens, window_tokens, slots, tuple(steps))


def _two_pools(
    left: int, full: list[LayerPrice], windowed: list[LayerPrice], page: int, rows: Facts, options: Options
) -> tuple[int, int, float]:
    compressed = any(p.layer.tokens_per_row > 1 for p in full)
    default = rows["swa_full_tokens_ratio_compressed" if compressed else "swa_full_tokens_ratio"].number
    given = options.number("swa-full-tokens-ratio")
    ratio = default if given is None else given
    tokens = int(left // (_cell(full) + ratio * _cell(windowed))) // page * page
    return tokens, int(tokens * ratio) // page * page, ratio


def _state_slots(left: int, state: int, serving: Serving, rows: Facts, options: Options) -> int:
    given = options.integer("max-mamba-cache-size")
    if given is not None:
        return given
    if options.flag("disable-radix-cache", False) and serving.slots is not None:
        return serving.slots
    ratio = options.number("mamba-full-memory-ratio")
    ratio = rows["mamba_full_memory_ratio"].number if ratio is None else ratio
    return int(left * ratio / (1 + ratio) // state)


def _sequences(pools: _Pools, rank: Rank, serving: Serving, page: int, rows: Facts, options: Options) -> int:
    """Whole sequences that tokens, windows and states allow; a window keeps its own tokens and a page."""
    full, windowed = _split(rank.price.layers)
    limits = []
    if full:
        limits.append(pools.tokens // (-(-serving.context_tokens // page) * page))
    if windowed and pools.window_tokens is not None:
        window = max(p.layer.window_tokens or 0 for p in windowed)
        if full and window + page >= pools.window_tokens:
            return 0
        limits.append(pools.window_tokens // min(-(-serving.context_tokens // page) * page, window + page))
    if pools.states is not None:
        each = 1 if options.flag("disable-radix-cache", False) else rows["mamba_slots_per_request"].integer
        limits.append(pools.states // each)
    if serving.slots is not None:
        limits.append(serving.slots)
    return min(limits, default=0)


def _bytes(pools: _Pools, rank: Rank) -> int:
    full, windowed = _split(rank.price.layers)
    states = (pools.states or 0) * sum(p.state_bytes for p in rank.price.layers)
    return floor(pools.tokens * _cell(full) + (pools.window_tokens or 0) * _cell(windowed)) + states


def _line(pools: _Pools, rank: Rank) -> str:
    """The allocation line, for models with one pool of tokens; its GB are 2**30 bytes."""
    full, windowed = _split(rank.price.layers)
    if not full or windowed or not pools.tokens:
        return ""
    dtype = _TORCH.get(full[0].k.partition("@")[0].partition("+")[0], "torch.float8_e4m3fn")
    head = f"KV Cache is allocated. dtype: {dtype}, #tokens: {pools.tokens}"

    def size(each: int) -> str:
        return f"{pools.tokens * each / GIB_BYTES:.2f} GB"

    if any(p.layer.v_dim == 0 for p in full):
        return f"{head}, KV size: {size(sum(p.row_bytes for p in full))}"
    return f"{head}, K size: {size(sum(p.k_row_bytes for p in full))}, V size: {size(sum(p.v_row_bytes for p in full))}"


def _notes(pools: _Pools, rank: Rank, serving: Serving, page: int, rows: Facts) -> tuple[str, ...]:
    full, windowed = _split(rank.price.layers)
    notes = []
    if serving.block_tokens is None and rows["page_tokens"].integer == page:
        notes.append(rows["page_tokens"].note)
    if not pools.tokens:
        notes.append("the budget holds not one page of tokens: SGLang stops with 'Not enough memory'")
    if full and windowed and pools.window_tokens is not None:
        window = max(p.layer.window_tokens or 0 for p in windowed)
        notes.append(f"two static pools: {pools.tokens:,} full and {pools.window_tokens:,} window tokens")
        if window + page >= pools.window_tokens:
            notes.append("SGLang stops: the window pool cannot hold one request; raise --swa-full-tokens-ratio")
        if window > serving.context_tokens:
            notes.append(f"the window of {window:,} tokens is longer than the context: nothing is saved by it")
    if pools.states is not None:
        notes.append(rows["mamba_slots_per_request"].note)
    if any(p.k.startswith("nvfp4") for p in full):
        notes.append("nvfp4: a work space for dequantization, shared by all layers, is not counted")
    if serving.dp > 1:
        notes.append(f"sequences are those of {serving.dp} data-parallel ranks, tokens those of one")
    return tuple(notes)


ENGINE_RULE = SglangRule()
