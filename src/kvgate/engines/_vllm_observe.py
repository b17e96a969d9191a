"""What one vLLM server did, from its log, its metrics and its layers, and how it stands against what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvgate.core.deployment import (
    Consequence,
    Deployment,
    Engaged,
    Engagement,
    Expected,
    Identity,
    Loud,
    Note,
    ScaleSeen,
)
from kvgate.core.engine import Launch
from kvgate.core.recipe import parse
from kvgate.core.units import MIB_BYTES
from kvgate.engines._attached import hold_against
from kvgate.engines._family_log import contradicted, log_of, subject_of, unread
from kvgate.engines._family_pool import part_of
from kvgate.engines._vllm_layers import (
    LayerSeen,
    codec_of,
    layers_of,
    scaled,
    scales_seen,
    shared_word,
)
from kvgate.engines._vllm_recipe import ENGINE
from kvgate.engines._vllm_resolve import FAMILY
from kvgate.plan.log_values import StartLog

ATTACHED: Final = "attached"
#: The gauge whose labels are the engine's own cache configuration.
GAUGE: Final = "vllm:cache_config_info"
#: In the line that echoes the configuration: VllmConfig.__str__; older releases have the second spelling.
_CHUNKED: Final = re.compile(r"\b(?:enable_chunked_prefill|chunked_prefill_enabled)=(True|False)")
_SPECULATION: Final = re.compile(r"\bspeculative_config=(None|.{1,160}?)(?:, tokenizer=|$)")
_ECHO: Final = "LLM engine (v"
#: Begins the evidence that nobody knows the type.
_DISAGREE: Final = "the type of the cache is told differently: "
#: Begins the evidence that the scales in force are not those of the recipe.
_WRONG: Final = "scales of "
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: Labels that say what the cache is.
_TOLD: Final = (
    *("cache_dtype", "kv_cache_dtype_skip_layers", "block_size", "num_gpu_blocks", "kv_cache_size_tokens"),
    "enable_prefix_caching",
)
#: Facts whose lines are evidence.
_EVIDENCE: Final = (
    *("version", "requested_dtype", "config_dtype", "dtype", "device", "backend", "kernel", "scales", "query_scale"),
    *("query_dtype_prefill", "available", "tokens", "concurrency", "context_tokens", "batched_tokens", "fallback"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the keeper and the server's pages report beside the log.

    Attributes:
        package, version: of vLLM in that interpreter; None if they could not be read.
        labels: of the cache gauge; empty where the page has none.
    """

    package: str | None
    version: str | None
    note: Note
    labels: Mapping[str, str] = field(default_factory=dict)


def cache_labels(metrics: str) -> dict[str, str]:
    """Labels of the cache gauge on a metrics page; empty without it."""
    line = next((x for x in metrics.splitlines() if x.startswith(GAUGE + "{")), "")
    return {m[1]: m[2] for m in _LABEL.finditer(line[:8192])}


def deployment_of(launch: Launch, lines: Sequence[str], seen: Seen) -> Deployment:
    """Requested and observed of one server. A log that says nothing leaves types and sizes unknown."""
    log = log_of(ENGINE, lines)
    layers = layers_of(lines)
    return Deployment(
        identity=_identity(launch, log, lines, seen),
        subject=subject_of(launch),
        loud=_loud(launch, log, layers),
        consequence=_consequence(launch, log, layers, seen),
        note=seen.note,
        evidence=_evidence(launch, log, layers, seen),
    )


def _identity(launch: Launch, log: StartLog | None, lines: Sequence[str], seen: Seen) -> Identity:
    model, settings = launch.request.model, launch.request.settings
    compute = None if log is None else log.word("model_dtype")
    return Identity(
        engine=ENGINE,
        version=seen.version,
        build=f"{seen.package} {seen.version}" if seen.version else None,
        model_digest=model.digest,
        tokenizer_digest=model.tokenizer_digest,
        template_digest=model.template_digest or "none",
        weights_dtype=f"{model.weights_dtype}, computed in {compute}" if compute else None,
        device=_device(log),
        tensor_parallel=None if log is None else log.whole("tp"),
        pipeline_parallel=None if log is None else log.whole("pp"),
        context_tokens=None if log is None else log.whole("context_tokens"),
        batch_tokens=settings.context_tokens,  # a prompt is handed over whole
        ubatch_tokens=None if log is None else log.whole("batched_tokens"),
        # The log names only what is not the engine's default.
        slots=(log.whole("slots") if log is not None else None) or settings.slots,
        threads=settings.threads,
        checkpoints=0,
        prefix_cache=_prefix_cache(log, seen),
        chunked_prefill={"True": True, "False": False}.get(_echoed(lines, _CHUNKED)),
        speculation={"None": "none", "": None}.get(spoken := _echoed(lines, _SPECULATION), spoken),
        sampling="as each request says",
        flash_attention="by the backend",
        env=dict(settings.env),
    )


def _device(log: StartLog | None) -> str | None:
    word = None if log is None else log.word("device")
    return word.lower() if word else None


def _prefix_cache(log: StartLog | None, seen: Seen) -> bool | None:
    word = seen.labels.get("enable_prefix_caching") or (log.word("prefix_cache") if log is not None else None)
    return {"True": True, "False": False}.get(word or "")


def _echoed(lines: Sequence[str], what: re.Pattern[str]) -> str:
    """What the line that echoes the configuration says; empty where it is not there or does not say."""
    echo = next((line for line in lines if _ECHO in line), "")
    found = what.search(echo)
    return found[1] if found else ""


def _loud(launch: Launch, log: StartLog | None, layers: Sequence[LayerSeen]) -> Loud:
    if log is None:
        return Loud()
    backend, kernel = log.word("backend"), log.word("kernel")
    if layers:
        # Layers may have one each: those that are kept native read another type.
        backend = ", ".join(dict.fromkeys(x.backend for x in layers if x.backend)) or backend
    latent = any(layer.is_latent for layer in launch.request.model.geometry.layers)
    if backend is None and _device(log) == "cpu" and not latent:
        # Plain attention has one backend there, and no line names it: platforms/cpu.py get_attn_backend_cls.
        backend = "CPU_ATTN"
    return Loud(
        backend=backend,
        kernel=f"FlashAttention {kernel}" if kernel else None,
        query_dtype=_query_dtype(log, layers),
    )


def _query_dtype(log: StartLog, layers: Sequence[LayerSeen]) -> str | None:
    """What the kernel multiplies with: from the layers, else from FlashInfer's own line; None where neither tells.

    The type of the probabilities and how products are added up stand in no line and no layer: they stay unknown.
    """
    if layers:
        word = shared_word(x.query_dtype for x in scaled(layers) or layers)
        return None if word is None else codec_of(word) or word
    words = [log.word(f"query_dtype_{phase}") for phase in ("prefill", "decode")]
    known = [codec_of(w.removeprefix("torch.")) or w for w in words if w]
    if len(known) < 2:
        return None
    return known[0] if known[0] == known[1] else f"{known[0]} in prefill, {known[1]} in decode"


def _scales(launch: Launch, log: StartLog | None, layers: Sequence[LayerSeen]) -> tuple[ScaleSeen | None, ...]:
    """Scales of K and of V. Without a look inside, what is certain: a warning, or a checkpoint without a scheme."""
    if layers:
        return tuple(scales_seen(layers, side, _wanted(launch, side))[0] for side in ("k", "v"))
    origin = launch.effective.k.origin if launch.effective.k is not None else None
    if origin is None or log is None:
        return None, None
    said = {f.value for f in log.every("scales")}
    # A scale that was dropped leaves the placeholder, which is 1.0.
    known = origin == "unit" or said & {"unit", "not-loaded"}
    one = ScaleSeen(origin="unit") if known else ScaleSeen()
    return one, one


def _wanted(launch: Launch, side: str) -> dict[int, float] | None:
    """The checkpoint's scales by layer, where the recipe is to use them; None where they are not known."""
    origin = launch.effective.k.origin if launch.effective.k is not None else None
    if origin != "checkpoint":
        return {}
    return {int(n): float(x) for n, x in launch.engine_options.get("scales", {}).get(side, ())} or None


def _consequence(launch: Launch, log: StartLog | None, layers: Sequence[LayerSeen], seen: Seen) -> Consequence:
    if log is None:
        return Consequence()
    # Where log, metrics and layers of one server disagree, nobody knows.
    k, v = (None, None) if _disagreement(log, layers, seen) else (log.stored.k, log.stored.v)
    k_scale, v_scale = _scales(launch, log, layers)
    tokens, kv_bytes = log.tokens, log.kv_bytes
    parts = part_of(launch.expected, tokens, k, v, len(launch.request.model.geometry.layers))
    return Consequence(
        k_codec=k,
        v_codec=v,
        kv_mib=None if kv_bytes is None else round(kv_bytes / MIB_BYTES, 2),
        cells=tokens,
        layers=len(launch.request.model.geometry.layers),
        parts=parts,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def _disagreement(log: StartLog, layers: Sequence[LayerSeen], seen: Seen) -> str:
    """What log, metrics and layers say of the type, where they do not say one; else empty.

    Layers that are kept native say `auto`, which names no codec.
    """
    said = {
        "the log": {log.stored.k},
        "the metrics": {codec_of(seen.labels.get("cache_dtype", ""))},
        "the layers": {codec_of(x.word) for x in layers},
    }
    named = {who: sorted(c for c in codecs if c) for who, codecs in said.items()}
    told = {who: codecs for who, codecs in named.items() if codecs}
    if "the log" not in told or len({c for codecs in told.values() for c in codecs}) < 2:
        return ""
    return _DISAGREE + ", ".join(f"{who}: {' and '.join(codecs)}" for who, codecs in told.items())


def _evidence(launch: Launch, log: StartLog | None, layers: Sequence[LayerSeen], seen: Seen) -> tuple[str, ...]:
    said = [f"package {seen.package} {seen.version}"] if seen.version else []
    if log is not None:
        facts = [f for name in _EVIDENCE for f in log.every(name)]
        said += dict.fromkeys(f.text for f in sorted(facts, key=lambda f: f.line))
        said += [f"log: {c.says}" for c in log.contradictions if c.severity == "error"]
        said += filter(None, [_disagreement(log, layers, seen)])
    if seen.labels:
        told = ", ".join(f'{name}="{seen.labels[name]}"' for name in _TOLD if name in seen.labels)
        said.append(f"/metrics {GAUGE}: {told}")
    return (*said, *_of_scales(launch, layers), *_of_layers(layers))


def _of_scales(launch: Launch, layers: Sequence[LayerSeen]) -> list[str]:
    """Where the scales come from, and what of them is not as it should be."""
    origin = launch.effective.k.origin if launch.effective.k is not None else None
    wrong = [scales_seen(layers, side, _wanted(launch, side))[1] for side in ("k", "v")]
    if any(wrong):
        return [w for w in wrong if w]
    seen = ", as every layer says" if scaled(layers) else "; the layers were not seen"
    if origin == "unit":
        return [f"scales: 1.0{seen}" if layers else "scales: 1.0, since the checkpoint has no KV scheme"]
    return [f"scales: the checkpoint's own{seen}"] if origin == "checkpoint" else []


def _of_layers(layers: Sequence[LayerSeen]) -> list[str]:
    """One line for each kind of layer: its word, its type in memory, its backend, how many."""
    kinds: dict[tuple[str, str, str | None], int] = {}
    for x in layers:
        kind = (x.word, x.cache_dtype, x.backend)
        kinds[kind] = kinds.get(kind, 0) + 1
    return [
        f"inside: {n} layers, kv_cache_dtype {word}, held as {held}, backend {backend}"
        for (word, held, backend), n in kinds.items()
    ]


def engaged(expected: Expected, observed: Deployment) -> Engaged:
    """Hold type and capacity of the log against the plan; both must agree.

    Capacity is compared to the token where it was predicted: a cache in another type would have other tokens.
    """
    if observed.note.place == ATTACHED:
        return hold_against(expected, observed)
    seen, lines = observed.consequence, observed.evidence
    if why := unread(FAMILY, observed):
        return why
    if seen.k_codec is None or seen.v_codec is None:
        told = next((line for line in lines if line.startswith(_DISAGREE)), "the load log names no KV cache type")
        return contradicted(told, lines)
    for what, want, got in (("K type", expected.k_codec, seen.k_codec), ("V type", expected.v_codec, seen.v_codec)):
        if want != got:
            return contradicted(f"{what}: asked for {want}, the log says {got}", lines)
    if wrong := _scales_wrong(observed):
        return contradicted(wrong, lines)
    planned = expected.parts_mib[0][1] if expected.parts_mib else None
    if planned is not None and seen.cells != planned:
        got_tokens = "no tokens" if seen.cells is None else f"{seen.cells:,} tokens"
        return contradicted(
            f"capacity: {planned:,} tokens in {expected.k_codec} were planned, the log says {got_tokens}", lines
        )
    broken = next((line for line in lines if line.startswith("log: ")), "")
    if broken:
        return contradicted(broken.removeprefix("log: "), lines)
    if planned is None:
        return Engaged(Engagement.CONFIRMED, f"the log says {seen.k_codec}; its capacity was not predicted", lines)
    return Engaged(
        Engagement.CONFIRMED, f"the log says {seen.k_codec} and {planned:,} tokens, as planned to the token", lines
    )


def _scales_wrong(observed: Deployment) -> str:
    """Why the scales in force are not those of the recipe; empty where they are, or where nobody could look."""
    recipe = parse(observed.subject.effective)
    wanted = recipe.k.origin if recipe.k is not None else None
    if wanted is None:
        return ""
    if told := next((line for line in observed.evidence if line.startswith(_WRONG)), ""):
        return told
    for side in ("k", "v"):
        seen: ScaleSeen | None = getattr(observed.consequence, f"{side}_scale")
        if seen is not None and seen.origin not in (None, wanted):
            return f"scales of {side.upper()}: the recipe says @{wanted}, the engine holds {seen.origin}"
    return ""
