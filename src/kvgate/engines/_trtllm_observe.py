"""What one TensorRT-LLM server did, from its load log, and how it stands against what was expected.

No line says what type was allocated: the arguments are echoed, and the engine prints the bytes of one token and of the
whole cache. Bytes decide. The argument alone is no evidence: an FP8 cache that did not engage still echoes `fp8`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from kvgate.core.deployment import (
    Consequence,
    Deployment,
    Engaged,
    Engagement,
    Expected,
    Identity,
    Loud,
    Note,
)
from kvgate.core.engine import Launch
from kvgate.core.recipe import Recipe
from kvgate.core.units import MIB_BYTES
from kvgate.enginefacts.log_patterns import load
from kvgate.engines._attached import hold_against
from kvgate.engines._family_log import contradicted, log_of, subject_of, unread
from kvgate.engines._family_pool import part_of
from kvgate.engines._trtllm_resolve import ENGINE, FAMILY
from kvgate.plan.log_values import StartLog
from kvgate.plan.price import native_codec, price

ATTACHED: Final = "attached"
_EVIDENCE: Final = (
    *("version", "requested_dtype", "backend", "bytes_per_token", "available", "allocated", "tokens", "blocks"),
    *("block_tokens", "context_tokens", "slots", "batched_tokens"),
)
_LOG: Final = "log: "


def deployment_of(launch: Launch, lines: Sequence[str], *, package: str, version: str | None, note: Note) -> Deployment:
    """Requested and observed of one server that we started."""
    log = log_of(ENGINE, lines)
    return Deployment(
        identity=_identity(launch, log, package, version),
        subject=subject_of(launch),
        loud=Loud(backend=None if log is None else log.word("backend")),
        consequence=_consequence(launch, log),
        note=note,
        evidence=evidence_of(log, f"package {package} {version}" if version else "", _stored(launch, log).wrong),
    )


def _identity(launch: Launch, log: StartLog | None, package: str, version: str | None) -> Identity:
    model, settings = launch.request.model, launch.request.settings
    return Identity(
        engine=ENGINE,
        version=version,
        build=f"{package} {version}" if version else None,
        model_digest=model.digest,
        tokenizer_digest=model.tokenizer_digest,
        template_digest=model.template_digest or "none",
        weights_dtype=model.weights_dtype,
        device="cuda",  # it has no other
        tensor_parallel=None if log is None else log.whole("tp"),
        pipeline_parallel=None if log is None else log.whole("pp"),
        context_tokens=None if log is None else log.whole("context_tokens"),
        batch_tokens=settings.context_tokens,  # a prompt is handed over whole
        ubatch_tokens=None if log is None else log.whole("batched_tokens"),
        slots=(None if log is None else log.whole("slots")) or settings.slots,
        threads=settings.threads,
        checkpoints=0,
        prefix_cache=False,  # enable_block_reuse: false in our file
        chunked_prefill=True,
        speculation="none",
        sampling="as each request says",
        flash_attention="by the backend",
        env=dict(settings.env),
    )


class Measured(NamedTuple):
    """Bytes of one token by the engine's own numbers: from least to most, as far as they were rounded."""

    least: float
    most: float

    def holds(self, size: Fraction | int) -> bool:
        return self.least <= size <= self.most

    def __str__(self) -> str:
        return f"{self.least:,.0f}" if self.least == self.most else f"{self.least:,.0f} to {self.most:,.0f}"


def token_bytes(log: StartLog | None) -> Measured | None:
    """Bytes of one token: printed, else the memory of the cache over its tokens; None where neither is said."""
    if log is None:
        return None
    if (said := log.fact("bytes_per_token")) is not None:
        return Measured(said.number, said.number)
    room, tokens = log.fact("allocated"), log.tokens
    if room is None or not tokens:
        return None
    return Measured((room.number - room.within) / tokens, (room.number + room.within) / tokens)


class _Stored(NamedTuple):
    """The codec that the bytes prove, None where they prove none; `wrong`: what they contradict."""

    codec: str | None
    wrong: str = ""


def _stored(launch: Launch, log: StartLog | None) -> _Stored:
    seen, geometry, expected = token_bytes(log), launch.request.model.geometry, launch.expected
    if log is None or seen is None:
        return _Stored(None)
    native = native_codec(geometry, ENGINE)
    native_bytes = price(geometry, Recipe(), engine=ENGINE).bytes_per_token
    if not seen.holds(expected.bytes_per_token):
        if not expected.parts_mib:
            return _Stored(None)  # several ranks or pools: nobody knows what a token takes in the one that is printed
        if seen.holds(native_bytes):
            return _Stored(native)
        return _Stored(
            None,
            f"a token takes {seen} bytes, {expected.k_codec} takes {expected.bytes_per_token:,} and {native} "
            f"{int(native_bytes):,}",
        )
    if expected.k_codec != native and seen.holds(native_bytes):
        return _Stored(None)  # rounded too far to tell the two apart
    # Other types have as many bytes; the echoed argument tells them apart.
    word = log.word("requested_dtype")
    asked = load(ENGINE).codec_of(word) if word else None
    return _Stored(expected.k_codec if word is None or (asked or native) == expected.k_codec else asked)


def _consequence(launch: Launch, log: StartLog | None) -> Consequence:
    """Types by the bytes of a token: those expected, or the native ones, or none that is known."""
    if log is None:
        return Consequence()
    stored = _stored(launch, log).codec
    layers = len(launch.request.model.geometry.layers)
    tokens, kv_bytes = log.tokens, log.whole("allocated")
    planned = stored if stored == launch.expected.k_codec else None
    return Consequence(
        k_codec=stored,
        v_codec=stored,
        kv_mib=None if kv_bytes is None else round(kv_bytes / MIB_BYTES, 2),
        cells=tokens,
        layers=layers,
        parts=part_of(launch.expected, tokens, planned, planned, layers),
    )


def evidence_of(log: StartLog | None, package: str = "", wrong: str = "") -> tuple[str, ...]:
    """Lines that say what runs; `wrong` is what the numbers contradict."""
    said = [package] if package else []
    if log is not None:
        facts = [f for name in _EVIDENCE for f in log.every(name)]
        said += dict.fromkeys(f.text for f in sorted(facts, key=lambda f: f.line))
        said += [f"{_LOG}{c.says}" for c in log.contradictions if c.severity == "error"]
        said += [f"{_LOG}{wrong}"] if wrong else []
        said += [f"bytes of a token by its own numbers: {seen}"] if (seen := token_bytes(log)) is not None else []
    return tuple(said)


def engaged(expected: Expected, observed: Deployment) -> Engaged:
    """Hold the bytes of a token, and the tokens, against the plan; the echoed argument alone is unobserved."""
    if observed.note.place == ATTACHED:
        return hold_against(expected, observed)
    seen, lines = observed.consequence, observed.evidence
    if why := unread(FAMILY, observed):
        return why
    if broken := next((line for line in lines if line.startswith(_LOG)), ""):
        return contradicted(broken.removeprefix(_LOG), lines)
    if expected.parts_mib and seen.cells is not None and seen.cells != expected.parts_mib[0][1]:
        planned = expected.parts_mib[0][1]
        return contradicted(f"capacity: {planned:,} tokens were planned, the log says {seen.cells:,} tokens", lines)
    if seen.k_codec is None or seen.v_codec is None:
        return Engaged(
            Engagement.UNOBSERVED, "the log echoes the arguments; it does not say how many bytes a token takes", lines
        )
    if seen.k_codec != expected.k_codec:
        return contradicted(
            f"KV type: asked for {expected.k_codec}, a token takes as many bytes as in {seen.k_codec}", lines
        )
    return Engaged(
        Engagement.CONFIRMED, f"a token takes {expected.bytes_per_token:,} bytes, as in {expected.k_codec}", lines
    )
