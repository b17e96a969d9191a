"""llama.cpp: what a context takes, and how many slots of it fit. Memory does not size the cache: the context does.

    cells       pad256(context) for every slot (a stream each), or one pool for all (`kv-unified`)
    windows     a second cache of pad256(min(context, window x (slots if unified) + n_ubatch)) cells, or `swa-full`
    recurrent   R (convolution) and S (matrix) in f32, a cell a slot, times 1 + `rs-seq` rollback states
    devices     each holds the cells of its own layers: plan/parallel.py, option `tensor-split`
Sources: llama.cpp b11434 src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp and
llama-context.cpp; sizes and words of the lines seen with b11549 and in public logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.source import Source
from kvgate.formats.spec import by_spelling
from kvgate.plan.budget import GIVEN
from kvgate.plan.engine_rules._options import Options
from kvgate.plan.engine_rules._versioned import Facts, facts
from kvgate.plan.engine_rules.llama_cpp import RULE, Room, one_window, pad_cells, printed_mib, room
from kvgate.plan.terms import Budget, LayerPrice, Rank, Reserved, Serving, Term

#: LLAMA_MAX_SEQ.
MAX_SLOTS = 256
_F32_BYTES = 4

#: Settings that the rule or the split reads.
OPTIONS = ("ctx-size", "kv-unified", "swa-full", "rs-seq", "tensor-split")


@dataclass(frozen=True, slots=True)
class _Setup:
    """A context as llama.cpp makes it."""

    space: Room
    slots: int
    unified: bool
    swa_full: bool
    ubatch_tokens: int
    rollback: int


@dataclass(frozen=True, slots=True)
class _Cache:
    """One cache of one device, or of all together."""

    cells: int
    layers: int
    k_bytes: int
    v_bytes: int
    k: str
    v: str

    @property
    def bytes(self) -> int:
        return self.k_bytes + self.v_bytes


@dataclass(frozen=True, slots=True)
class LlamaCppRule:
    """Registered under "llama_cpp"."""

    name: str = "llama_cpp"

    def budget(self, rank: Rank, serving: Serving, *, device_bytes: int, overhead_bytes: int | None) -> Budget:
        """All memory of the device less weights and compute buffers.

        Raises:
            UserError: no memory, or no weights.
        """
        rows = facts("llama_cpp", serving.version)
        if device_bytes <= 0:
            raise UserError(f"a device of {device_bytes} bytes has no room", fix="give --device or --device-memory")
        if rank.weights_bytes is None:
            raise UserError("the size of the weights is not known, so the budget is not", fix="give --weights SIZE")
        compute = rows["compute_bytes"]
        overhead = compute.integer if overhead_bytes is None else overhead_bytes
        return Budget(
            rank.name,
            (
                Term("device memory", device_bytes, "all of it", Source("spec", "the device's memory as it was given")),
                Term("weights", -rank.weights_bytes, "tensors on this device", Source("file", "the GGUF's tensors")),
                Term(
                    "compute buffers",
                    -overhead,
                    f"{overhead:,} bytes",
                    compute.source if overhead_bytes is None else GIVEN,
                    assumed=overhead_bytes is None,
                ),
            ),
        )

    def reserve(
        self,
        geometry: ModelGeometry,
        recipe: Recipe,
        ranks: tuple[Rank, ...],
        serving: Serving,
        budgets: tuple[Budget, ...],
    ) -> Reserved:
        """Caches of the asked slots, or of as many as fit where none are asked.

        Raises:
            UserError: senseless settings, a type that llama.cpp does not store, or layers that it cannot keep apart.
        """
        rows, options = facts("llama_cpp", serving.version), Options("llama_cpp", serving.options)
        _check(geometry, recipe, ranks, serving, budgets)
        setup = _setup(geometry, ranks, budgets, serving, rows, options)
        room_of = {b.rank: b.bytes for b in budgets}
        needs = {r.name: _needs(r, setup) for r in ranks}
        limiting = min(needs, key=lambda name: room_of[name] - needs[name])
        fits = needs[limiting] <= room_of[limiting]
        notes = [*rows.notes, *options.unknown(OPTIONS)]
        if serving.slots is None and options.integer("ctx-size") is None:
            notes.append("llama.cpp reserves what it is asked for: slots are as many of this context as fit")
        if not fits:
            notes.append(f"does not fit: {needs[limiting]:,} bytes of cache in {room_of[limiting]:,} on {limiting}")
        if any(layer.index_bytes_per_token for layer in geometry.layers):
            notes.append("the sparse indexer's own cache is not counted")
        if setup.space.sequence_tokens > serving.context_tokens > 0 and options.integer("ctx-size") is None:
            notes.append(f"a slot has {setup.space.sequence_tokens:,} cells: contexts are padded to 256")
        return Reserved(
            rule="llama_cpp cells, b8643 and later",
            source=RULE,
            tokens=setup.space.context_tokens,
            sequences=setup.slots if fits else 0,
            limiting_rank=limiting,
            reserved_bytes=sum(needs.values()),
            prints=_lines(geometry, ranks, setup),
            steps=tuple(_steps(ranks, setup, needs)),
            notes=tuple(notes),
        )


def _check(
    geometry: ModelGeometry, recipe: Recipe, ranks: tuple[Rank, ...], serving: Serving, budgets: tuple[Budget, ...]
) -> None:
    for _, side in recipe.sides():
        by_spelling("llama_cpp", side.codec)
    if recipe.keep or recipe.residual_tokens or recipe.sink_tokens:
        raise UserError(
            f"{recipe}: llama.cpp stores all layers and tokens in one type a side", fix="leave the options away"
        )
    if any(layer.fixed_tokens is not None for layer in geometry.layers):
        raise UserError(f"kvgate has no verified llama.cpp rule for {geometry.architecture}", fix="try another engine")
    if serving.slots is not None and not 1 <= serving.slots <= MAX_SLOTS:
        raise UserError(f"{serving.slots} slots cannot be served by llama.cpp", fix=f"give 1 to {MAX_SLOTS}")
    if serving.context_tokens < 0:
        raise UserError(f"a context of {serving.context_tokens} tokens cannot be served", fix="give 0 or more")
    if serving.batched_tokens is not None and serving.batched_tokens < 1:
        raise UserError(f"n_ubatch {serving.batched_tokens} is not a batch", fix="give 512")
    if not ranks or [r.name for r in ranks] != [b.rank for b in budgets]:
        raise UserError("llama.cpp needs one budget a device", fix="give the devices' budgets in the devices' order")


def _setup(
    geometry: ModelGeometry,
    ranks: tuple[Rank, ...],
    budgets: tuple[Budget, ...],
    serving: Serving,
    rows: Facts,
    options: Options,
) -> _Setup:
    unified, total = options.flag("kv-unified", False), options.integer("ctx-size")

    def made(slots: int) -> _Setup:
        each = room(geometry.context_tokens, context_tokens=serving.context_tokens).sequence_tokens
        context = each * slots if total is None else total
        return _Setup(
            room(geometry.context_tokens, context_tokens=context, slots=slots, unified=unified),
            slots,
            unified,
            options.flag("swa-full", False),
            serving.batched_tokens or rows["ubatch_tokens"].integer,
            options.integer("rs-seq") or 0,
        )

    if serving.slots is not None or total is not None:
        return made(serving.slots or 1)
    best = made(1)
    for slots in range(2, MAX_SLOTS + 1):
        tried = made(slots)
        if any(_needs(r, tried) > b.bytes for r, b in zip(ranks, budgets, strict=True)):
            break
        best = tried
    return best


def _caches(layers: Sequence[LayerPrice], setup: _Setup) -> Iterator[_Cache]:
    """Caches in the order in which llama.cpp creates them."""
    rows = [p for p in layers if p.k_row_bytes]
    full = [p for p in rows if p.layer.window_tokens is None]
    sliding = [p for p in rows if p.layer.window_tokens is not None]
    if full:
        yield _cache(full, setup.space.sequence_tokens, setup)
    if sliding:
        seen = one_window([p.layer for p in sliding]) * (setup.slots if setup.unified else 1) + setup.ubatch_tokens
        most = setup.space.sequence_tokens
        yield _cache(sliding, most if setup.swa_full else pad_cells(min(most, seen)), setup)


def _cache(layers: Sequence[LayerPrice], cells: int, setup: _Setup) -> _Cache:
    copies = cells * setup.space.streams
    k_bytes, v_bytes = (
        sum(side) * copies for side in zip(*((p.k_row_bytes, p.v_row_bytes) for p in layers), strict=True)
    )
    k = layers[0].k
    return _Cache(cells, len(layers), k_bytes, v_bytes, _type(k), _type(layers[0].v or k))


def _recurrent(layers: Sequence[LayerPrice], setup: _Setup) -> tuple[int, int]:
    """Bytes of R and of S: convolutions, and the rest."""
    copies = setup.slots * (1 + setup.rollback) * _F32_BYTES
    parts = [part for p in layers for part in p.layer.state]
    conv = sum(part.elements for part in parts if part.name.startswith("conv"))
    return conv * copies, (sum(part.elements for part in parts) - conv) * copies


def _needs(rank: Rank, setup: _Setup) -> int:
    return sum(c.bytes for c in _caches(rank.price.layers, setup)) + sum(_recurrent(rank.price.layers, setup))


def _lines(geometry: ModelGeometry, ranks: tuple[Rank, ...], setup: _Setup) -> str:
    """The size lines of the load log, over all devices."""
    layers = [p for r in ranks for p in r.price.layers]
    lines = [
        f"llama_kv_cache: size = {printed_mib(c.bytes):>7} MiB ({c.cells:>6} cells, {c.layers:>3} layers, "
        f"{setup.slots:>2}/{setup.space.streams} seqs), K ({c.k}): {printed_mib(c.k_bytes):>7} MiB, "
        f"V ({c.v}): {printed_mib(c.v_bytes):>7} MiB"
        for c in _caches(layers, setup)
    ]
    r_bytes, s_bytes = _recurrent(layers, setup)
    if r_bytes or s_bytes:
        count = max(geometry.layer_count, *(p.layer.index + 1 for p in layers))
        lines.append(
            f"llama_memory_recurrent: size = {printed_mib(r_bytes + s_bytes):>7} MiB ({setup.slots:>6} cells, "
            f"{count:>3} layers, {setup.slots:>2} seqs {setup.rollback:>2} rs_seq), "
            f"R (f32): {printed_mib(r_bytes):>7} MiB, S (f32): {printed_mib(s_bytes):>7} MiB"
        )
    return "\n".join(lines)


def _steps(ranks: tuple[Rank, ...], setup: _Setup, needs: dict[str, int]) -> Iterator[str]:
    space = setup.space
    yield f"{space.sequence_tokens:,} tokens a slot, {space.streams} streams, {space.context_tokens:,} tokens in all"
    for rank in ranks:
        parts = [f"{c.layers} layers x {c.cells:,} cells" for c in _caches(rank.price.layers, setup)]
        yield f"{rank.name}: {', '.join(parts) or 'no cells'}: {printed_mib(needs[rank.name])} MiB"


def _type(word: str) -> str:
    """ggml's word for a stored type: transforms and origins are not part of it."""
    name = word.partition("+")[0].partition("@")[0]
    return {"ggml_nvfp4": "nvfp4"}.get(name, name)


ENGINE_RULE = LlamaCppRule()
