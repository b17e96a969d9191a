"""Each rank's share of a model: heads by tensor parallelism, layers by pipeline parallelism.

    TP   heads/tp KV heads a rank; with fewer heads than ranks, one head each, held by several ranks. MLA's one vector
         and a sparse indexer's rows are whole on every rank. States are divided by their own units (heads, groups).
    PP   layers by number, the way the engine itself cuts them; multi-token prediction stays on the last stage
    DP   every replica has its own cache: the same shares, `dp` times
    DCP  positions of a sequence are spread over ranks (`sharded_tokens`); not in layers with a window, not states

Sources: vLLM 0.32 config/model.py get_num_kv_heads, distributed/utils.py get_pp_indices,
model_executor/layers/mamba/mamba_utils.py; SGLang python/sglang/srt/distributed/utils.py get_pp_indices; TensorRT-LLM
tensorrt_llm/mapping.py pp_layers; llama.cpp src/llama-model.cpp (layer split over devices).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kvgate.core.errors import UserError
from kvgate.core.geometry import LayerGeometry, ModelGeometry, StatePart
from kvgate.plan.engine_rules._options import Options

#: No machine has more ranks; larger numbers are typing errors.
MAX_RANKS = 4096


@dataclass(frozen=True, slots=True)
class RankGeometry:
    """What the ranks of one pipeline stage hold; all tensor-parallel ranks of a stage hold equal shares.

    Attributes:
        name: "gpu0", "tp0 of 4", "pp1/tp0 of 8": stage, first tensor-parallel rank, ranks in all.
        geometry: this rank's heads and layers; `layers` is empty where no layer of the stage has a cache.
        stage: pipeline stage. first_layer, last_layer: layers of the stage, the last one not inside.
        ranks: GPUs that hold this share, over all data-parallel replicas.
        notes: what a person must know of this split.
    """

    name: str
    geometry: ModelGeometry
    stage: int = 0
    first_layer: int = 0
    last_layer: int = 0
    ranks: int = 1
    notes: tuple[str, ...] = ()


def split(
    geometry: ModelGeometry,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    dcp: int = 1,
    engine: str = "vllm",
    partition: Sequence[int] | None = None,
    options: Mapping[str, str] | None = None,
) -> tuple[RankGeometry, ...]:
    """One entry a pipeline stage.

    Args:
        tp, pp, dp, dcp: parallel sizes; `dcp` ranks lie inside `tp`. dp: independent replicas of the cache.
        engine: canonical id; decides how layers are cut into stages.
        partition: layers of each stage, instead of the engine's own cut.
        options: the engine's own settings (`Serving.options`), for VLLM_PP_LAYER_PARTITION, SGLANG_PP_LAYER_PARTITION
            and llama.cpp's `tensor-split`, which stand for `partition`.

    Raises:
        UserError: sizes that are not positive or do not divide the heads, more stages than layers, or a partition that
            does not add up.
    """
    for name, size in (("tp", tp), ("pp", pp), ("dp", dp), ("dcp", dcp)):
        if not 1 <= size <= MAX_RANKS:
            raise UserError(f"{name} {size} is not a number of ranks", fix=f"give 1 to {MAX_RANKS}")
    if tp % dcp:
        raise UserError(f"dcp {dcp} does not divide tp {tp}", fix="DCP ranks lie inside the tensor-parallel ones")
    count = max([geometry.layer_count, *(layer.index + 1 for layer in geometry.layers)])
    if partition is None and options:
        partition = _asked_partition(count, pp, engine, Options(engine, options))
    sizes = _stages(count, pp, engine, partition)
    notes = _notes(geometry, tp)
    found = []
    for stage, (first, last) in enumerate(zip(accumulate(sizes, initial=0), accumulate(sizes), strict=False)):
        held = tuple(layer for layer in geometry.layers if first <= layer.index < last)
        mtp = geometry.mtp_layers if stage == pp - 1 else ()
        share = replace(
            geometry,
            layers=tuple(rank_layer(layer, tp) for layer in held),
            mtp_layers=tuple(rank_layer(layer, tp) for layer in mtp),
        )
        found.append(RankGeometry(_name(stage, tp, pp), share, stage, first, last, tp * dp, notes))
    return tuple(found)


def rank_layer(layer: LayerGeometry, tp: int) -> LayerGeometry:
    """The layer as one of `tp` ranks holds it.

    Raises:
        UserError: more heads than ranks, and no equal part.
    """
    where = f"layer {layer.index} ({layer.kind})"
    heads = layer.kv_heads if layer.is_latent else shared(layer.kv_heads, tp, f"{where} has {layer.kv_heads} KV heads")
    return replace(layer, kv_heads=heads, state=tuple(_rank_state(part, tp) for part in layer.state))


def shared(units: int, tp: int, what: str) -> int:
    """Units (heads, groups) that one of `tp` ranks holds: an equal part, or one that several ranks hold alike.

    Raises:
        UserError: more units than ranks, and no equal part.
    """
    if units == 0:
        return 0
    if units >= tp and units % tp:
        fits = [n for n in range(1, units + 1) if units % n == 0]
        raise UserError(
            f"{what}, which {tp} tensor-parallel ranks cannot share", allowed=map(str, fits), fix="change tp"
        )
    return max(1, units // tp)


def sharded_tokens(layer: LayerGeometry, tokens: int, dcp: int) -> int:
    """Positions of a sequence of `tokens` that one of `dcp` ranks keeps in a layer."""
    whole = layer.window_tokens is not None or layer.fixed_tokens is not None
    return tokens if whole else -(-tokens // dcp)


def _rank_state(part: StatePart, tp: int) -> StatePart:
    """Whole units, rounded up: Mamba-2's groups are padded to one a rank; uneven heads are noted."""
    if not part.tp_units:
        return part
    units = -(-part.tp_units // tp)
    return replace(part, elements=part.elements * units // part.tp_units, tp_units=units)


def uneven_states(geometry: ModelGeometry, tp: int) -> tuple[str, ...]:
    """States that `tp` ranks cannot share evenly; groups, which engines pad, do not count."""
    found = {
        f"{part.tp_units} parts of the {part.name} state"
        for layer in geometry.layers
        for part in layer.state
        if part.tp_units and part.tp_units % tp and "group" not in part.name
    }
    return tuple(sorted(found))


def _notes(geometry: ModelGeometry, tp: int) -> tuple[str, ...]:
    heads = sorted({layer.kv_heads for layer in geometry.layers if layer.kv_heads and not layer.is_latent})
    notes = []
    if any(h < tp for h in heads):
        notes.append(f"{'/'.join(map(str, heads))} KV heads on {tp} ranks: heads are held several times")
    if odd := [h for h in heads if h < tp and tp % h]:
        notes.append(f"{odd[0]} KV heads do not divide {tp} ranks: the bytes are those of one head a rank")
    if uneven := uneven_states(geometry, tp):
        notes.append(f"{' and '.join(uneven)} do not divide {tp} ranks: rounded up to whole ones")
    if tp > 1 and any(layer.is_latent for layer in geometry.layers):
        notes.append("MLA: every rank holds the whole latent row, tensor parallelism does not shrink it")
    return tuple(notes)


def _name(stage: int, tp: int, pp: int) -> str:
    if tp * pp == 1:
        return "gpu0"
    return f"pp{stage}/tp0 of {tp * pp}" if pp > 1 else f"tp0 of {tp}"


def _stages(layers: int, pp: int, engine: str, partition: Sequence[int] | None) -> tuple[int, ...]:
    if partition is not None:
        sizes = tuple(partition)
        if len(sizes) != pp or sum(sizes) != layers or min(sizes, default=0) < 0:
            raise UserError(
                f"the layer partition {','.join(map(str, sizes))} does not cut {layers} layers into {pp} stages",
                fix=f"give {pp} numbers that add up to {layers}",
            )
        return sizes
    if pp > layers:
        raise UserError(f"{layers} layers cannot be cut into {pp} stages", fix=f"give at most pp {layers}")
    return _CUTS.get(engine, _cut_vllm)(layers, pp)


def _asked_partition(layers: int, pp: int, engine: str, options: Options) -> tuple[int, ...] | None:
    """The cut that the engine's own settings ask for."""
    if engine == "llama_cpp":
        weights = options.numbers("tensor-split")
        if weights is not None and len(weights) != pp:
            raise UserError(f"tensor-split names {len(weights)} devices, pp {pp}", fix=f"give pp {len(weights)}")
        return None if weights is None else split_by_weight(layers, weights)
    return options.integers(_PARTITIONS[engine]) if engine in _PARTITIONS else None


def _cut_vllm(layers: int, pp: int) -> tuple[int, ...]:
    """Left-over layers go to the last stage but one, then backwards: the last one also has the head."""
    sizes = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        sizes[-i] += 1
    return tuple(sizes)


def _cut_sglang(layers: int, pp: int) -> tuple[int, ...]:
    """Left-over layers go to the last stages."""
    return tuple(layers // pp + (stage >= pp - layers % pp) for stage in range(pp))


def _cut_trtllm(layers: int, pp: int) -> tuple[int, ...]:
    """Left-over layers go to the first stages."""
    return tuple(layers // pp + (stage < layers % pp) for stage in range(pp))


def _cut_llama_cpp(layers: int, pp: int) -> tuple[int, ...]:
    """Equal devices: the output counts as one more layer, on the last device."""
    return split_by_weight(layers, [1.0] * pp)


def split_by_weight(layers: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Layers per device as llama.cpp's `--tensor-split` cuts them: layer i is on the first device whose share of the
    sum reaches past i / (layers + 1), all layers being offloaded.

    Raises:
        UserError: no weights, a negative one, or none above zero.
    """
    total = sum(weights)
    if not weights or min(weights) < 0 or not total > 0:
        raise UserError(f"tensor-split {','.join(map(str, weights))} is not a split", fix="give positive numbers")
    ends = [end / total for end in accumulate(weights)]
    sizes = [0] * len(weights)
    for i in range(layers):
        sizes[next((d for d, end in enumerate(ends) if end > i / (layers + 1)), len(ends) - 1)] += 1
    return tuple(sizes)


_PARTITIONS = {"vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION"}
_CUTS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "vllm": _cut_vllm,
    "sglang": _cut_sglang,
    "trtllm": _cut_trtllm,
    "llama_cpp": _cut_llama_cpp,
}
