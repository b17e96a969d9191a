"""Deployment of a server that somebody else started: what its pages and, if given, its log say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from kvgate.core.deployment import (
    NOT_SAID,
    Consequence,
    Deployment,
    Engaged,
    Engagement,
    Expected,
    Identity,
    Loud,
    Note,
    ScaleSeen,
    Subject,
)
from kvgate.core.errors import UserError
from kvgate.core.recipe import parse
from kvgate.core.text import one_line
from kvgate.core.units import MIB_BYTES
from kvgate.enginefacts import log_patterns
from kvgate.engines._kvlog import LogFacts
from kvgate.engines._pages import GENERIC, Reading, read
from kvgate.engines._probe_checks import Named, codec_of, contradictions_of, not_this_servers

#: Evidence lines that begin so are contradictions.
CONTRADICTION: Final = "contradiction: "
#: What nobody knows, in the place of a recipe.
UNKNOWN: Final = "unknown"
#: Word of a log for scales -> where they come from, as in a recipe.
_ORIGIN: Final = {"unit": "unit", "per-token-head": "dynamic", "file": "calibrated"}


def describe(url: str, spelling: str | None, pages: Mapping[str, Any], log: LogFacts | None) -> Deployment:
    """Requested and observed of an attached server.

    Args:
        spelling: the recipe that the person says it has; None takes what the server says was asked for.
        pages: the JSON value, or the text, of each path that answered.
        log: facts of the load log that was given. One that is not this server's is only named, never used.
    """
    reading = read(pages)
    own = log if log is not None and not not_this_servers(url, reading, log) else None
    found = [*contradictions_of(url, reading, log), *_kept(spelling, reading)]
    parts = urlsplit(url)
    consequence = _consequence(reading, own).model_copy(update=_nobody_knows(found))
    return Deployment(
        identity=_identity(reading, own),
        subject=_subject(spelling, reading, own, consequence),
        loud=_loud(reading, own),
        consequence=consequence,
        note=Note(place="attached", host=parts.hostname, port=parts.port),
        evidence=_evidence(pages, reading, log, tuple(found)),
    )


def hold_against(expected: Expected, observed: Deployment) -> Engaged:
    """Types and rotations that log and pages name against what was expected; unobserved where they name none."""
    seen = observed.consequence
    broken = next((line for line in observed.evidence if line.startswith(CONTRADICTION)), "")
    if broken:
        return Engaged(Engagement.CONTRADICTED, broken.removeprefix(CONTRADICTION), observed.evidence)
    if seen.k_codec is None or seen.v_codec is None:
        return Engaged(Engagement.UNOBSERVED, "an attached server without a log that names its KV cache type")
    says = next((line for line in observed.evidence if line.startswith(_BY_PAGE)), "the log").partition(": ")[0]
    for what, want, got in (
        ("K type", expected.k_codec, seen.k_codec),
        ("V type", expected.v_codec, seen.v_codec),
        ("K rotation", expected.k_rotation, seen.k_rotation),
        ("V rotation", expected.v_rotation, seen.v_rotation),
    ):
        if want == NOT_SAID:
            if got in NATIVE_CODECS:
                continue
            reason = (
                f"{what}: {says} says {got}, and nobody said so: add --base {got} (or --kv {got}) where that is meant"
            )
            return Engaged(Engagement.CONTRADICTED, reason, observed.evidence)
        # A rotation that nobody predicted or logged is unknown, not a contradiction.
        if want is not None and got is not None and want != got:
            reason = f"{what}: asked for {want}, {says} says {got}"
            return Engaged(Engagement.CONTRADICTED, reason, observed.evidence)
    return Engaged(Engagement.CONFIRMED, f"{says} says K {seen.k_codec}, V {seen.v_codec}", observed.evidence)


#: An attached server of which nobody said what it stores is taken to store one of these.
NATIVE_CODECS: Final = frozenset({"f16", "bf16", "f32"})
#: Evidence of a KV type that only a page names.
_BY_PAGE: Final = "/metrics vllm:cache_config_info cache_dtype: "


def _identity(pages: Reading, log: LogFacts | None) -> Identity:
    start = None if log is None else log.start
    told = {} if log is None else {c.field: c.value for c in log.told}
    template = pages.word("template")

    def whole(field: str) -> int | None:
        for value in (pages.whole(field), told.get(field)):
            if isinstance(value, int):
                return value
        return None if start is None else start.whole(field)

    def flag(field: str) -> bool | None:
        for value in (pages.flag(field), told.get(field)):
            if isinstance(value, bool):
                return value
        word = None if start is None or field not in log_patterns.FACTS else start.word(field)
        return {"True": True, "False": False}.get(word or "")

    speculation = pages.word("speculation") or told.get("speculation")
    device = None if start is None else start.word("device")
    return Identity(
        engine=pages.engine or GENERIC,
        version=pages.word("version") or (None if start is None else start.version),
        build=pages.word("build"),
        template_digest=hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest() if template else None,
        weights_dtype=pages.word("weights_dtype") or _computed_in(pages, log),
        device=device.lower() if device else None,
        tensor_parallel=whole("tp"),
        pipeline_parallel=whole("pp"),
        context_tokens=whole("context_tokens"),
        ubatch_tokens=None if start is None or start.engine == "llama_cpp" else start.whole("batched_tokens"),
        slots=whole("slots"),
        prefix_cache=flag("prefix_cache"),
        chunked_prefill=flag("chunked_prefill"),
        speculation=speculation if isinstance(speculation, str) else None,
        flash_attention=None if start is None else start.word("flash_attention"),
    )


def _computed_in(pages: Reading, log: LogFacts | None) -> str | None:
    word = pages.word("compute_dtype") or (log.start.word("model_dtype") if log is not None and log.start else None)
    return f"computed in {word}" if word and word != "auto" else None


def _subject(spelling: str | None, pages: Reading, log: LogFacts | None, seen: Consequence) -> Subject:
    if spelling is not None:
        return Subject(spelling=spelling, requested=_recipe(spelling), effective=_recipe(spelling))
    k, v = seen.k_codec, seen.v_codec
    stored = UNKNOWN if k is None or v is None else k if k == v else f"k={k},v={v}"
    word = asked(pages, log)
    return Subject(spelling=word or UNKNOWN, requested=word or UNKNOWN, effective=stored)


def asked(pages: Reading, log: LogFacts | None) -> str | None:
    """The KV type that was asked for, in the engine's own word; None where nothing tells it."""
    start = None if log is None else log.start
    if start is not None:
        k, v = (start.word(f"requested_{side}") or start.word("requested_dtype") for side in "kv")
        if k or v:
            return k if k == v and k else f"k={k or UNKNOWN},v={v or UNKNOWN}"
    return pages.word("asked_dtype") or pages.word("config_dtype")


def _loud(pages: Reading, log: LogFacts | None) -> Loud:
    start = None if log is None else log.start
    if start is None:
        return Loud(backend=pages.word("backend"))
    kernel = start.word("kernel")
    if kernel and start.engine == "vllm":
        kernel = f"FlashAttention {kernel}"
    prefill, decode = start.word("query_dtype_prefill"), start.word("query_dtype_decode")
    query = log_patterns.load(start.engine).codec_of(prefill) if prefill and prefill == decode else None
    return Loud(
        backend=start.word("backend") or pages.word("backend"),
        kernel=kernel or start.word("decode_kernel"),
        query_dtype=query,
    )


def _consequence(pages: Reading, log: LogFacts | None) -> Consequence:
    seen = log.consequence if log is not None else Consequence()
    update: dict[str, Any] = {}
    if seen.k_codec is None and seen.v_codec is None and (codec := stored_by_page(pages)) is not None:
        update |= {"k_codec": codec, "v_codec": codec}
    tokens = [c.value for c in pages.every("tokens") if isinstance(c.value, int)]
    if seen.cells is None and tokens:
        update["cells"] = min(tokens)
    blocks, block = pages.whole("blocks"), pages.whole("block_tokens")
    if seen.cells is None and not tokens and pages.engine == "trtllm" and blocks and block:
        update["cells"] = blocks * block
    kv_gib, kv_bytes = pages.value("kv_gib"), pages.whole("kv_bytes")
    if seen.kv_mib is None and kv_bytes is not None:
        update["kv_mib"] = round(kv_bytes / MIB_BYTES, 2)
    elif seen.kv_mib is None and isinstance(kv_gib, int | float):
        update["kv_mib"] = round(kv_gib * 2**30 / MIB_BYTES, 2)
    scale = _scale(update.get("k_codec", seen.k_codec), log)
    if scale is not None:
        update |= {"k_scale": scale, "v_scale": scale}
    return seen.model_copy(update=update)


def _nobody_knows(found: Sequence[Named]) -> dict[str, None]:
    """What log and pages say differently is not known."""
    named = {n.id for n in found}
    lost = (("k_codec", "v_codec", "k_scale", "v_scale"), "dtype-differs"), (("cells",), "capacity-differs")
    return {name: None for names, id_ in lost if id_ in named for name in names}


def stored_by_page(pages: Reading) -> str | None:
    """Codec that vLLM's cache gauge proves: its layers take a type that was written out as it is.

    Not `auto`, which a checkpoint's own scheme turns into FP8 later, in another process; not other engines' arguments,
    which their platform may change (SGLang on AMD: e5m2 is not e5m2); not versions that nobody has read.
    """
    version = pages.word("version")
    words = {str(c.value) for c in pages.every("config_dtype")}
    if pages.engine != "vllm" or version is None or len(words) != 1 or not log_patterns.load("vllm").knows(version):
        return None
    return codec_of("vllm", words.pop())


def _scale(codec: str | None, log: LogFacts | None) -> ScaleSeen | None:
    """Where scales come from, if something says so. Silence, and SGLang's false alarm, say nothing."""
    if codec is not None and codec.endswith("_per_token_head"):
        return ScaleSeen(origin="dynamic")
    word = log.start.scales if log is not None and log.start is not None else None
    origin = _ORIGIN.get(word or "")
    return ScaleSeen(origin=origin) if origin is not None else None


def _kept(spelling: str | None, pages: Reading) -> tuple[Named, ...]:
    """Layers that the engine leaves native, against a recipe that keeps none, and the other way round."""
    label = pages.claim("skip_layers")
    word = pages.word("config_dtype") or ""
    # vLLM keeps the outer layers of these by itself.
    if spelling is None or pages.engine != "vllm" or word.startswith(("turboquant", "ultraquant")):
        return ()
    keeps = "keep=" in spelling
    if label is not None and not keeps:
        return (Named("layers-kept", f"{label.place} leaves layers {label.value} native, the recipe none"),)
    if label is None and keeps and pages.claim("config_dtype") is not None:
        return (Named("layers-not-kept", "the recipe keeps layers native, the engine's configuration none"),)
    return ()


def _evidence(
    pages: Mapping[str, Any], reading: Reading, log: LogFacts | None, found: tuple[Named, ...]
) -> tuple[str, ...]:
    said = [f"{CONTRADICTION}{n.says}" for n in found if n.severity == "error"]
    model = _first_model(pages.get("/v1/models"))
    if model:
        said.append(one_line(f"/v1/models: id={model.get('id')} owned_by={model.get('owned_by')}", 300))
    shown = ("version", "build", "config_dtype", "skip_layers", "tokens", "blocks", "block_tokens", "backend")
    said += [f"{c.place}: {c.value}" for name in shown for c in reading.every(name)[:1]]
    return (*said, *(log.lines if log is not None else ()))


def _first_model(page: Any) -> Mapping[str, Any]:
    data = page.get("data") if isinstance(page, Mapping) else None
    first = data[0] if isinstance(data, list) and data else None
    return first if isinstance(first, Mapping) else {}


def _recipe(spelling: str) -> str:
    """The canonical recipe; an engine's own spelling that is no recipe stays as it is."""
    try:
        return str(parse(spelling))
    except UserError:
        return spelling
