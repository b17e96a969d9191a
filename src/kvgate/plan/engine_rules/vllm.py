"""vLLM: from memory to blocks, and the capacity line of its log.

    blocks = min over ranks of (budget // bytes of a block), one of them is the null block
    concurrency = blocks / (blocks of one request, summed over the groups)
    printed tokens: before 0.21 blocks // groups x block size; since then int(concurrency x max_model_len)
Source: vLLM 0.32.0 v1/core/kv_cache_utils.py; versions in vllm.toml.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.core.units import GIB_BYTES
from kvgate.plan.engine_rules._options import Options
from kvgate.plan.engine_rules._versioned import Facts, facts
from kvgate.plan.engine_rules._vllm_budget import DEVICE, batched_tokens, budget, in_flight_tokens
from kvgate.plan.engine_rules._vllm_groups import SLIDING, Group, Load, Spec, bytes_per_block, group
from kvgate.plan.engine_rules._vllm_specs import Blocks, block_sizes, merged, on_cpu, specs
from kvgate.plan.parallel import uneven_states
from kvgate.plan.terms import Budget, Rank, Reserved, Serving

_SOURCE = Source("spec", "vllm v1/core/kv_cache_utils.py, v1/kv_cache_interface.py", "0.32.0")

#: Settings that the rule or the split reads.
OPTIONS = (
    *("kv-cache-memory-bytes", "VLLM_CPU_KVCACHE_SPACE", "num-gpu-blocks-override", "disable-hybrid-kv-cache-manager"),
    *(
        "async-scheduling",
        "max-in-flight-tokens",
        "enable-prefix-caching",
        "mamba-cache-mode",
        "num-speculative-tokens",
    ),
    *("VLLM_KV_CACHE_LAYOUT", "VLLM_PP_LAYER_PARTITION", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
    *("cudagraph-bytes", "enforce-eager", "device", "device-memory"),
)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Blocks of the limiting rank and what a request takes of them."""

    groups: tuple[Group, ...]
    block_bytes: int
    blocks: int
    bytes: int
    limiting: str
    load: Load

    @property
    def request_blocks(self) -> int:
        return sum(g.blocks(self.load) for g in self.groups)


@dataclass(frozen=True, slots=True)
class VllmRule:
    """Registered under "vllm"."""

    name: str = "vllm"

    def budget(self, rank: Rank, serving: Serving, *, device_bytes: int, overhead_bytes: int | None) -> Budget:
        """See `_vllm_budget.budget`."""
        return budget(rank, serving, device_bytes=device_bytes, overhead_bytes=overhead_bytes)

    def reserve(
        self,
        geometry: ModelGeometry,
        recipe: Recipe,
        ranks: tuple[Rank, ...],
        serving: Serving,
        budgets: tuple[Budget, ...],
    ) -> Reserved:
        """Blocks, printed tokens and whole sequences.

        Raises:
            UserError: senseless settings, or a model that vLLM does not start with them.
        """
        rows, options = facts("vllm", serving.version), Options("vllm", serving.options)
        _check(geometry, ranks, serving, budgets)
        blocks = block_sizes(ranks[0].price, recipe, serving, rows, options)
        held = {r.name: specs(r.price, recipe, blocks, rows, options, mtp=serving.mtp) for r in ranks}
        batch, batch_from = batched_tokens(serving, rows, options, _device_bytes(options, budgets))
        flight, flight_from = in_flight_tokens(serving, rows, options, batch)
        load = Load(serving.context_tokens, flight, serving.dcp)
        groups = group(
            merged(held),
            hybrid=not options.flag("disable-hybrid-kv-cache-manager", False),
            packed=(options.text("VLLM_KV_CACHE_LAYOUT") or "L").upper().startswith("B") or _compressed(ranks),
        )
        pool = _pool(groups, held, budgets, load, options.integer("num-gpu-blocks-override"))
        steps = (
            f"max_num_batched_tokens {batch:,}: {batch_from}; in flight {flight:,}: {flight_from}",
            *blocks.steps,
            *_steps(pool, blocks),
        )
        return _reserved(
            pool,
            rows,
            options,
            serving,
            steps,
            (*rows.notes, *options.unknown(OPTIONS), *blocks.notes, *_notes(pool, serving, rows)),
        )


def _check(geometry: ModelGeometry, ranks: tuple[Rank, ...], serving: Serving, budgets: tuple[Budget, ...]) -> None:
    if serving.context_tokens < 1:
        raise UserError(f"a context of {serving.context_tokens} tokens cannot be served", fix="give 1 or more")
    if serving.slots is not None and serving.slots < 1:
        raise UserError(f"{serving.slots} sequences at once cannot be served", fix="give 1 or more")
    if not ranks or [r.name for r in ranks] != [b.rank for b in budgets]:
        raise UserError("vLLM needs one budget a rank", fix="give the ranks' budgets in the ranks' order")
    heads = sorted({x.kv_heads for x in geometry.layers if x.kv_heads and not x.is_latent})
    for h in heads:
        if h < serving.tp and serving.tp % h:
            raise UserError(
                f"vLLM does not start {h} KV heads on {serving.tp} tensor-parallel ranks: neither divides the other",
                fix=f"give a tp that is a multiple of {h}, or divides it",
            )
    if uneven := uneven_states(geometry, serving.tp):
        raise UserError(
            f"vLLM does not start {' and '.join(uneven)} on {serving.tp} tensor-parallel ranks", fix="give a smaller tp"
        )
    if serving.dcp > 1 and heads and not 1 < serving.dcp <= serving.tp // heads[0]:
        raise UserError(
            f"vLLM takes dcp {serving.dcp} only where every KV head is on that many ranks: "
            f"{heads[0]} heads on tp {serving.tp}",
            fix=f"give dcp {max(1, serving.tp // heads[0])} or less",
        )


def _device_bytes(options: Options, budgets: tuple[Budget, ...]) -> int | None:
    """The device's memory, as far as the budgets say it: only the default batch hangs on it."""
    given = options.size_bytes("device-memory")
    if given is not None:
        return given
    return next((t.bytes for b in budgets for t in b.terms if t.name == DEVICE), None)


def _compressed(ranks: tuple[Rank, ...]) -> bool:
    return any(p.layer.tokens_per_row > 1 for r in ranks for p in r.price.layers)


def _pool(
    groups: tuple[Group, ...],
    held: dict[str, dict[str, Spec]],
    budgets: tuple[Budget, ...],
    load: Load,
    override: int | None,
) -> _Pool:
    sizes = {rank: bytes_per_block(groups, found) for rank, found in held.items()}
    counts = {b.rank: b.bytes // sizes[b.rank] for b in budgets if sizes.get(b.rank)}
    if not counts:
        raise UserError("no rank has a layer with a KV cache", fix="choose a model with attention layers")
    limiting = min(counts, key=lambda rank: counts[rank])
    size, own = sizes[limiting], next(b.bytes for b in budgets if b.rank == limiting)
    if override is not None:
        return _Pool(groups, size, override, override * size, limiting, load)
    return _Pool(groups, size, counts[limiting], own, limiting, load)


def _reserved(
    pool: _Pool,
    rows: Facts,
    options: Options,
    serving: Serving,
    steps: tuple[str, ...],
    notes: tuple[str, ...],
) -> Reserved:
    meaning = rows["tokens_meaning"]
    need = pool.request_blocks
    usable = pool.blocks - 1
    made = Reserved(
        rule=f"vllm kv-groups, {meaning.versions}",
        source=_SOURCE if meaning.value == "concurrency" else meaning.source,
        tokens=0,
        sequences=0,
        limiting_rank=pool.limiting,
        reserved_bytes=pool.blocks * pool.block_bytes,
        steps=steps,
        notes=notes,
    )
    if pool.blocks < 1:
        return replace(made, notes=(*notes, f"the budget is smaller than one block of {pool.block_bytes:,} bytes"))
    short = (usable if rows["null_block_in_check"].value else pool.blocks) < need
    if short:
        line = _refusal(pool, rows)
        return replace(made, tokens=None, prints=line, notes=(*notes, "vLLM does not start with this max_model_len"))
    concurrency = pool.blocks / need
    if meaning.value == "blocks":
        tokens = pool.blocks // len(pool.groups) * min(s.block_tokens for g in pool.groups for s in g.specs)
    else:
        tokens = int(concurrency * serving.context_tokens)
    line = _line(tokens, serving.context_tokens, concurrency, rows, cpu=on_cpu(options))
    held = usable // need if serving.slots is None else min(usable // need, serving.slots)
    return replace(made, tokens=tokens, sequences=held * serving.dp, prints=line)


def _line(tokens: int, context: int, concurrency: float, rows: Facts, *, cpu: bool) -> str:
    device = "CPU" if cpu and rows["line"].value == "one line" else "GPU"
    size = f"{device} KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {context:,} tokens per request: {concurrency:.2f}x"
    return f"{size}, {most}" if rows["line"].value == "one line" else f"{size}\n{most}"


def _refusal(pool: _Pool, rows: Facts) -> str:
    """What vLLM says when one request of full length does not fit."""
    spare = 1 if rows["null_block_in_check"].value else 0
    need, have = pool.request_blocks * pool.block_bytes, pool.bytes - spare * pool.block_bytes
    fits = longest_context(pool.groups, pool.load, pool.blocks - spare)
    estimate = f"Based on the available memory, the estimated maximum model length is {fits}. " if fits else ""
    return (
        f"To serve at least one request with the model's max seq len ({pool.load.context_tokens}), "
        f"({round(need / GIB_BYTES, 2)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({round(have / GIB_BYTES, 2)} GiB). {estimate}"
    ).rstrip()


def longest_context(groups: tuple[Group, ...], load: Load, blocks: int) -> int:
    """The longest `max_model_len` whose one request fits into `blocks`; 0 if not even one token does."""

    def fits(tokens: int) -> bool:
        shorter = Load(tokens, load.in_flight_tokens, load.dcp)
        return sum(g.blocks(shorter) for g in groups) <= blocks

    low, high = 0, load.context_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _steps(pool: _Pool, blocks: Blocks) -> tuple[str, ...]:
    made = []
    for g in pool.groups:
        kinds = "+".join(sorted({s.kind for s in g.specs}))
        tokens = "/".join(str(t) for t in sorted({s.block_tokens for s in g.specs}))
        made.append(f"{len(g.layers)} {kinds} layers, block {tokens}: {g.blocks(pool.load):,} blocks a request")
    return (
        f"{len(pool.groups)} groups; a block is {pool.block_bytes:,} bytes on {pool.limiting}",
        *made,
        f"{pool.blocks:,} blocks, one of them the null block; {pool.request_blocks:,} a request",
    )


def _notes(pool: _Pool, serving: Serving, rows: Facts) -> tuple[str, ...]:
    notes = [
        rows[name].note for name in ("line", "null_block_in_check") if rows.version != "0.32.0" and rows[name].note
    ]
    layers = max(len(g.layers) for g in pool.groups)
    padding = sum(layers - len(g.layers) for g in pool.groups if not g.mixed)
    kinds = {s.kind for g in pool.groups for s in g.specs}
    if len(pool.groups) > 1:
        notes.append(rows["tokens_meaning"].note)
    if padding and not any(g.mixed for g in pool.groups):
        notes.append(f"{padding} padding layers: room that no layer uses")
    if "mamba" in kinds and rows["mamba_align"].note and not rows.newest:
        notes.append(rows["mamba_align"].note)
    if serving.dcp > 1 and SLIDING in kinds:
        notes.append("vLLM 0.32 stops at a sliding window with decode context parallelism: the window is counted whole")
    if serving.dp > 1:
        notes.append(f"each of the {serving.dp} data-parallel engines prints its own line; tokens are those of one")
    window = max((s.window_tokens for g in pool.groups for s in g.specs), default=0)
    if window > serving.context_tokens:
        notes.append(f"the window of {window:,} tokens is longer than the context: nothing is saved by it")
    return tuple(notes)


ENGINE_RULE = VllmRule()
