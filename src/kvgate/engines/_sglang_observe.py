"""What one SGLang server did, from its load log and its own page, and how it stands against what was expected.

Stored types come from the line that allocates the pool, not from arguments: on AMD `fp8_e5m2` is stored as E4M3.
"Defaulting to KV cache scaling factors = 1.0" counts even where "Loaded KV cache scaling factors" follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvgate.core.deployment import (
    CachePart,
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
from kvgate.core.units import GIB_BYTES, MIB_BYTES
from kvgate.enginefacts.log_patterns import load
from kvgate.engines._family_log import contradicted, log_of, subject_of, unread
from kvgate.engines._sglang_info import ServerInfo
from kvgate.engines._sglang_resolve import ENGINE, FAMILY
from kvgate.plan.log_values import StartLog

ATTACHED: Final = "attached"
#: The log prints gigabytes with two decimals; half a unit of the last.
_ROUNDED_MIB: Final = 0.005 * GIB_BYTES / MIB_BYTES
#: The pool has a page more than it says, for what nobody reads; no page is larger.
_PADDING_TOKENS: Final = 1024
_EVIDENCE: Final = (
    *("version", "requested_dtype", "dtype", "model_dtype", "backend", "scales", "tokens", "context_tokens", "slots"),
    *("batched_tokens", "fallback"),
)
#: A contradiction that `engaged` sees itself, with the plan in hand.
_OURS: Final = "requested-not-applied"
#: An element type that more than one codec has: the log cannot tell these apart.
_SAME_ELEMENTS: Final = {"mxfp8": "fp8_e4m3"}


def deployment_of(
    launch: Launch, lines: Sequence[str], info: ServerInfo, *, package: str, version: str | None, note: Note
) -> Deployment:
    """Requested and observed of one server that we started. A log that says nothing leaves types and sizes unknown."""
    log = log_of(ENGINE, lines)
    return Deployment(
        identity=_identity(launch, log, info, package, version),
        subject=subject_of(launch),
        loud=Loud(backend=_backend(log, info)),
        consequence=consequence_of(log, len(launch.request.model.geometry.layers)),
        note=note,
        evidence=evidence_of(log, info, f"package {package} {version}" if version else ""),
    )


def _identity(launch: Launch, log: StartLog | None, info: ServerInfo, package: str, version: str | None) -> Identity:
    model, settings = launch.request.model, launch.request.settings
    compute = (None if log is None else log.word("model_dtype")) or info.word("compute_dtype")
    return Identity(
        engine=ENGINE,
        version=version,
        build=f"{package} {version}" if version else None,
        model_digest=model.digest,
        tokenizer_digest=model.tokenizer_digest,
        template_digest=model.template_digest or "none",
        weights_dtype=f"{model.weights_dtype}, computed in {compute}" if compute else None,
        device=info.device,
        tensor_parallel=_whole(log, "tp") or info.whole("tp"),
        pipeline_parallel=_whole(log, "pp") or info.whole("pp"),
        context_tokens=_whole(log, "context_tokens") or info.whole("context_tokens"),
        batch_tokens=settings.context_tokens,  # a prompt is handed over whole
        ubatch_tokens=_whole(log, "batched_tokens") or info.chunk_tokens,
        slots=_whole(log, "slots") or info.whole("slots"),
        threads=settings.threads,
        checkpoints=0,
        prefix_cache=info.flag("prefix_cache"),
        chunked_prefill=True,
        speculation=info.word("speculation") or "none",
        sampling="as each request says" + ("; deterministic inference" if info.deterministic else ""),
        flash_attention="by the backend",
        env=dict(settings.env),
    )


def _whole(log: StartLog | None, name: str) -> int | None:
    return None if log is None else log.whole(name)


def _backend(log: StartLog | None, info: ServerInfo) -> str | None:
    """What the page says after all decisions; a fallback that only the log tells wins."""
    word = None if log is None else log.word("backend")
    return word if log is not None and log.fact("fallback") else info.word("backend") or word


def consequence_of(log: StartLog | None, layers: int | None = None) -> Consequence:
    """Stored types and room, as the line says that allocates the pool."""
    if log is None:
        return Consequence()
    k, v = _stored(log)
    tokens, kv_bytes = log.tokens, log.kv_bytes
    scale = _scale(log)
    return Consequence(
        k_codec=k,
        v_codec=v,
        kv_mib=None if kv_bytes is None else round(kv_bytes / MIB_BYTES, 2),
        cells=tokens,
        layers=layers,
        parts=_parts(log, k, v, layers),
        k_scale=scale,
        v_scale=scale,
    )


def _stored(log: StartLog) -> tuple[str | None, str | None]:
    """Types that the engine prints; arguments alone are none."""
    stored = log.stored
    if stored.how == "printed" and stored.k is not None and stored.v is not None:
        return stored.k, stored.v
    word = log.word("dtype")
    said = load(ENGINE).codec_of(word) if word else None
    return said, said


def _scale(log: StartLog) -> ScaleSeen | None:
    words = {str(f.value) for f in log.facts if f.name == "scales"}
    if not words:
        return None
    # "doubtful" is printed with every FP8 cache without a file of scales, whatever the checkpoint brings.
    return ScaleSeen(origin="unit" if "unit" in words else "calibrated" if "file" in words else None)


def _parts(log: StartLog, k: str | None, v: str | None, layers: int | None) -> tuple[CachePart, ...]:
    """The pools of the first rank."""
    caches = [c for c in log.caches if c.context == 0]
    first = [c for c in caches if c.rank == caches[0].rank] if caches else []
    if k is None or v is None:
        return ()
    return tuple(
        CachePart(
            kind=c.kind,
            cells=c.cells or 0,
            layers=c.layers or layers or 0,
            k_codec=k,
            v_codec=v,
            k_mib=round((c.total_bytes if c.k_bytes is None else c.k_bytes) / MIB_BYTES, 2),
            v_mib=round((c.v_bytes or 0) / MIB_BYTES, 2),
        )
        for c in first
    )


def evidence_of(log: StartLog | None, info: ServerInfo, package: str = "") -> tuple[str, ...]:
    """Lines that say what runs."""
    said = [package] if package else []
    if log is not None:
        facts = [f for name in _EVIDENCE for f in log.every(name)]
        lines = {f.line: f.text for f in facts} | {c.line: c.text for c in log.caches}
        said += dict.fromkeys(lines[n] for n in sorted(lines))
        said += [f"log: {c.says}" for c in log.contradictions if c.severity == "error" and c.id != _OURS]
    return (*said, *info.lines)


def engaged(expected: Expected, observed: Deployment) -> Engaged:
    """Hold types, tokens and bytes of the log against the plan; all that was planned must agree."""
    if observed.note.place != ATTACHED and (why := unread(FAMILY, observed)):
        return why
    return _held(expected, observed)


def _held(expected: Expected, observed: Deployment) -> Engaged:
    seen, lines = observed.consequence, observed.evidence
    ours = observed.note.place != ATTACHED
    if seen.k_codec is None or seen.v_codec is None:
        if ours:
            return contradicted("the load log names no KV cache type", lines)
        return Engaged(Engagement.UNOBSERVED, "an attached server without a log that names its KV cache type", lines)
    for what, want, got in (("K type", expected.k_codec, seen.k_codec), ("V type", expected.v_codec, seen.v_codec)):
        if _SAME_ELEMENTS.get(want) == got:
            return Engaged(
                Engagement.UNOBSERVED, f"{what}: the log prints {got}, which {want} looks like there too", lines
            )
        # E4M3 is stored as the platform has it, on AMD before MI350 as FNUZ; nothing else may be another format.
        if want != got and (want, got) != ("fp8_e4m3", "fp8_e4m3fnuz"):
            return contradicted(f"{what}: asked for {want}, the log says {got}", lines)
    if why := _scales_lost(observed) or _wrong_room(expected, seen):
        return contradicted(why, lines)
    if broken := next((line for line in lines if line.startswith("log: ")), ""):
        return contradicted(broken.removeprefix("log: "), lines)
    if not expected.parts_mib:
        return Engaged(Engagement.CONFIRMED, f"the log says {seen.k_codec}; its capacity was not predicted", lines)
    tokens = expected.parts_mib[0][1]
    return Engaged(Engagement.CONFIRMED, f"the log says {seen.k_codec} and {tokens:,} tokens, as planned", lines)


def _scales_lost(observed: Deployment) -> str:
    """Whether scales that were to be loaded are 1.0; "" where nothing says so."""
    asked = observed.subject.effective
    for scale in (observed.consequence.k_scale, observed.consequence.v_scale):
        if scale is not None and scale.origin == "unit" and ("@checkpoint" in asked or "@calibrated" in asked):
            return f"scales: {asked} was to be run, the log says that every scale is 1.0"
    return ""


def _wrong_room(expected: Expected, seen: Consequence) -> str:
    """Tokens and bytes against the plan; "" where they agree, or nothing was planned."""
    if not expected.parts_mib:
        return ""
    _, tokens, k_mib, v_mib = expected.parts_mib[0]
    if seen.cells != tokens:
        got = "no tokens" if seen.cells is None else f"{seen.cells:,} tokens"
        return f"capacity: {tokens:,} tokens in {expected.k_codec} were planned, the log says {got}"
    padding_mib = _PADDING_TOKENS * (k_mib + v_mib) / tokens if tokens else 0.0
    planned = k_mib + v_mib
    # K and V are rounded apart.
    if seen.kv_mib is not None and abs(seen.kv_mib - planned) > 2 * _ROUNDED_MIB + padding_mib:
        return (
            f"memory: {tokens:,} tokens in {expected.k_codec} take {planned:,.1f} MiB, the log says {seen.kv_mib:,.1f}"
        )
    return ""
