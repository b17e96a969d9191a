"""What one llama.cpp context did, from its load log, and how it stands against what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    Subject,
)
from kvgate.core.engine import Launch
from kvgate.enginefacts.facts import EngineFacts, load, version_key
from kvgate.engines._attached import hold_against
from kvgate.engines._llama_log import ParsedLog, parse, with_rotation_sizes
from kvgate.engines._llama_rotation import rotations

ENGINE = "llama_cpp"
ATTACHED = "attached"
#: Until this build number, package versions were not build numbers.
_DATED = (2026,)
#: Types that the CPU's tiled flash attention takes, if K and V have the same.
_TILED = ("f16", "f32")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the process that ran the engine reports beside its log.

    Attributes:
        version: of the engine's package in that interpreter; None if it could not be read.
        numbers: values that the engine gave through its interface, by the parser's names; they win over the log.
        extra: lines for the evidence.
    """

    version: str | None
    note: Note
    numbers: dict[str, int] = field(default_factory=dict)
    extra: tuple[str, ...] = ()


def deployment_of(launch: Launch, lines: Sequence[str], seen: Seen) -> Deployment:
    """Requested and observed of one context."""
    facts = load(ENGINE)
    log = parse(lines, facts, seen.version)
    geometry, expected = launch.request.model.geometry, launch.expected
    on = {kind: (k, v) for kind, k, v in rotations(geometry, expected.k_codec, expected.v_codec)}
    log = with_rotation_sizes(log, on)
    return Deployment(
        identity=_identity(launch, log, seen, facts),
        subject=Subject(
            spelling=launch.request.spelling or str(launch.request.recipe),
            requested=str(launch.request.recipe),
            effective=str(launch.effective),
        ),
        loud=_loud(log),
        consequence=consequence_of(log, rotates=_rotates(seen.version, facts)),
        note=seen.note,
        evidence=(*seen.extra, *log.lines),
    )


def _identity(launch: Launch, log: ParsedLog, seen: Seen, facts: EngineFacts) -> Identity:
    model = launch.request.model
    numbers = {**log.numbers, **seen.numbers}
    return Identity(
        engine=ENGINE,
        version=seen.version,
        build=build_of(seen.version),
        epoch=facts.epoch_name(seen.version),
        model_digest=model.digest,
        tokenizer_digest=model.tokenizer_digest,
        template_digest=model.template_digest or "none",
        weights_dtype=model.weights_dtype,
        device=",".join(log.devices) or None,
        tensor_parallel=1,
        pipeline_parallel=1,
        context_tokens=numbers.get("context_tokens"),
        batch_tokens=numbers.get("batch_tokens"),
        ubatch_tokens=numbers.get("ubatch_tokens"),
        slots=numbers.get("slots"),
        threads=numbers.get("threads"),
        checkpoints=numbers.get("checkpoints"),
        prefix_cache=False,  # every request of the session says so, and a panel has none
        chunked_prefill=True,  # a prompt longer than the batch is always cut
        speculation="none",
        sampling="as each request says",
        flash_attention=log.words.get("flash_attention"),
        env=dict(launch.request.settings.env),
    )


def _loud(log: ParsedLog) -> Loud:
    if not log.parts or not log.devices:
        return Loud()
    backend = ",".join(log.devices)
    if log.devices != ("cpu",):
        return Loud(backend=backend)
    types = {(p.k_codec, p.v_codec) for p in log.parts}
    tiled = all(k == v and k in _TILED for k, v in types)
    # Read from the source of the CPU path, not from the log: which kernel takes which types.
    kernel = "flash attention, tiled from 64 rows" if tiled else "flash attention, row by row"
    return Loud(backend=backend, kernel=kernel)


def consequence_of(log: ParsedLog, *, rotates: bool = True) -> Consequence:
    """Codecs, rotation and bytes; unknown where caches disagree about a type.

    Args:
        rotates: False for builds from before rotation, whose log has no line for it: then it is 0.
    """
    parts = log.parts
    if not rotates:
        parts = tuple(p.model_copy(update={"k_rotation": 0, "v_rotation": 0}) for p in parts)
    if not parts:
        return Consequence()
    k_types, v_types = {p.k_codec for p in parts}, {p.v_codec for p in parts}
    return Consequence(
        k_codec=k_types.pop() if len(k_types) == 1 else None,
        v_codec=v_types.pop() if len(v_types) == 1 else None,
        k_rotation=_largest([p.k_rotation for p in parts]),
        v_rotation=_largest([p.v_rotation for p in parts]),
        kv_mib=round(sum(log.mib), 2),
        cells=sum(p.cells for p in parts),
        layers=sum(p.layers for p in parts),
        parts=parts,
    )


def _largest(sizes: Sequence[int | None]) -> int | None:
    known = [s for s in sizes if s is not None]
    return max(known) if len(known) == len(sizes) else None


def _rotates(version: str | None, facts: EngineFacts) -> bool:
    epoch = next((e for e in facts.epoch if e.name.startswith("rotation")), None)
    return version is None or epoch is None or epoch.holds(version)


def build_of(version: str | None) -> str | None:
    """llama.cpp's build number: "2026.10.11549" is b11549; older schemes name the package."""
    if version is None:
        return None
    key = version_key(version)
    return f"b{key[-1]}" if key[:1] >= _DATED and len(key) == 3 else f"xllamacpp {version}"


def engaged(expected: Expected, observed: Deployment) -> Engaged:
    """Hold types, rotations and bytes of the log against the plan; every one must agree.

    MiB are compared to the two decimals that the log prints.
    """
    if observed.note.place == ATTACHED:
        return hold_against(expected, observed)
    seen, lines = observed.consequence, observed.evidence
    if observed.identity.version is None:
        return _no("the version of the engine's package could not be read", lines)
    if seen.k_codec is None or seen.v_codec is None:
        return _no("the load log names no KV cache types", lines)
    for what, want, got, mark in (
        ("K type", expected.k_codec, seen.k_codec, "K ("),
        ("V type", expected.v_codec, seen.v_codec, "V ("),
        ("K rotation", expected.k_rotation, seen.k_rotation, "rot_k"),
        ("V rotation", expected.v_rotation, seen.v_rotation, "rot_v"),
    ):
        if want is not None and want != got:
            reason = f"{what}: asked for {want}, the log says {_said(got)}"
            if "rotation" in what and got == 0 and not _rotates(observed.identity.version, load(ENGINE)):
                reason += f"; {observed.identity.build} is from before rotation, so write +none after the type"
            return _no(reason, _with(lines, mark) or _with(lines, "size ="))
    reason = _parts(expected, seen.parts)
    if reason:
        return _no(reason, _with(lines, "size ="))
    rotation = f"rotation K {_said(seen.k_rotation)}, V {_said(seen.v_rotation)}"
    if expected.k_rotation is None:
        rotation += " (not predicted for this architecture)"
    proof = _with(lines, "size =") + _with(lines, "rot_") + _with(lines, "rotation")
    return Engaged(
        Engagement.CONFIRMED,
        f"the load log says K {seen.k_codec}, V {seen.v_codec}, {rotation}, {seen.kv_mib:.2f} MiB as planned",
        tuple(dict.fromkeys(proof)),
    )


def _parts(expected: Expected, parts: Sequence[CachePart]) -> str:
    """What is wrong with the caches' sizes or rotations; empty if all is as planned."""
    if len(parts) != len(expected.parts_mib):
        return f"the plan has {len(expected.parts_mib)} caches, the log {len(parts)}"
    for (kind, cells, k_mib, v_mib), part in zip(expected.parts_mib, parts, strict=True):
        if (kind, cells) != (part.kind, part.cells):
            return f"the plan has {kind} with {cells} cells, the log {part.kind} with {part.cells}"
        if not (same_mib(k_mib, part.k_mib) and same_mib(v_mib, part.v_mib)):
            planned, logged = f"K {k_mib:.2f} and V {v_mib:.2f}", f"{part.k_mib:.2f} and {part.v_mib:.2f}"
            return f"{kind}: planned {planned} MiB, the log says {logged}"
    turned = {kind: (k, v) for kind, k, v in expected.parts_rotation}
    for part in parts:
        rotation = turned.get(part.kind, (part.k_rotation, part.v_rotation))
        if rotation != (part.k_rotation, part.v_rotation):
            k, v = (_said(r) for r in (part.k_rotation, part.v_rotation))
            return f"{part.kind}: rotation planned {rotation[0]} and {rotation[1]}, the log says {k} and {v}"
    return ""


def same_mib(planned: float, logged: float) -> bool:
    """Whether a size in the log, with its two decimals, is the planned one.

    Half of the last decimal is rounding of print; the engine computes MiB as a 32-bit float, which adds 2**-24 of it.
    """
    return abs(planned - logged) <= 0.005 + planned * 2.0**-24 + 1e-9


def _said(value: int | str | None) -> str:
    return "nothing" if value is None else str(value)


def _with(lines: Sequence[str], mark: str) -> tuple[str, ...]:
    return tuple(line for line in lines if mark in line)


def _no(reason: str, lines: Sequence[str]) -> Engaged:
    return Engaged(Engagement.CONTRADICTED, reason, tuple(lines))
