"""What neither a server's pages nor its log tell, why, and what would. One row a field.

An engine's silence is no evidence: vLLM warns of scale 1.0 in one code path only, and SGLang warns where scales exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvgate.core.deployment import Deployment
from kvgate.enginefacts import log_patterns
from kvgate.engines._kvlog import LogFacts
from kvgate.engines._pages import Reading

_BUILD = "the engine's source for this build, backend and device"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A field that nobody knows. `tells`: what would."""

    field: str
    why: str
    tells: str


def unknowns_of(seen: Deployment, pages: Reading, log: LogFacts | None) -> tuple[Unknown, ...]:
    """Every field of interest without a value. `log` is None where it is not this server's, too."""
    found = [*_identity(seen, pages), *_dtype(seen, pages, log), *_attention(seen, pages, log)]
    found += [*_room(seen, pages, log), *_settings(seen, pages)]
    return tuple(found)


def _how_to_log(pages: Reading) -> str:
    if pages.engine in log_patterns.engines():
        return f"--log with its start log: {log_patterns.load(str(pages.engine)).how_to_log}"
    return "--log with its start log"


def _identity(seen: Deployment, pages: Reading) -> Iterator[Unknown]:
    if pages.engine is None:
        yield Unknown("engine", pages.why, "an address that reaches the server itself, with its /metrics")
    if seen.identity.version is None and seen.identity.build is None:
        tells = "the log of a build with a build number, or the package that the server runs from"
        yield Unknown("version", "no page and no line names it", tells if pages.engine == "llama_cpp" else "its log")
    yield Unknown(
        "model_digest",
        "a server gives the name of its model, not its bytes",
        "kvgate check on the files themselves",
    )


def _dtype(seen: Deployment, pages: Reading, log: LogFacts | None) -> Iterator[Unknown]:
    got = seen.consequence
    if got.k_codec is None or got.v_codec is None:
        yield Unknown("kv_dtype", _dtype_why(pages, log), _dtype_tells(pages, log))
    for side, codec, scale in (("k", got.k_codec, got.k_scale), ("v", got.v_codec, got.v_scale)):
        if (scale is None or scale.origin is None) and _scaled(codec, pages):
            yield Unknown(
                f"{side}_scale", _scale_why(pages, log), "the checkpoint's scale tensors: kvgate lint --model"
            )


def _dtype_why(pages: Reading, log: LogFacts | None) -> str:
    word = pages.word("config_dtype")
    if log is not None and log.consequence.k_codec is not None:
        return "the log and a page say different types"
    if pages.engine == "llama_cpp":
        return "no page of llama.cpp names it" + ("" if log is None else ", nor does this log")
    if pages.engine == "vllm" and word == "auto":
        return (
            "the configuration says auto: the compute type, unless the checkpoint has a KV scheme, which turns FP8 on "
            "later and is not shown"
        )
    if word == "auto":
        return "the configuration says auto"
    if word is not None:
        return f"the configuration says {word}, which is what was asked for; nothing says what was allocated"
    stored = log.start.stored if log is not None and log.start is not None else None
    if stored is not None and stored.how == "auto":
        return "the log says auto: the compute type, unless the checkpoint brings a KV scheme of its own"
    return "no page names it" + ("" if log is None else ", nor does this log")


def _dtype_tells(pages: Reading, log: LogFacts | None) -> str:
    auto = pages.word("config_dtype") == "auto"
    auto |= log is not None and log.start is not None and log.start.stored.how == "auto"
    if auto and pages.engine in ("vllm", None):
        return (
            "the checkpoint's config.json (kv_cache_scheme), or a start with the type written out "
            "(--kv-cache-dtype bfloat16), or the room of both at the same memory"
        )
    return _how_to_log(pages)


def _scaled(codec: str | None, pages: Reading) -> bool:
    """Whether scales outside the cache are a question at all."""
    if codec is None:
        return pages.engine in ("vllm", "sglang", "trtllm")
    return codec.startswith("fp8") and codec not in ("fp8_ds_mla", "fp8_per_token_head")


def _scale_why(pages: Reading, log: LogFacts | None) -> str:
    if log is None:
        return "no page of an engine shows scales"
    words = {str(f.value) for f in log.start.facts if f.name == "scales"} if log.start is not None else set()
    if "doubtful" in words:
        return (
            "SGLang's `no scaling factors provided` is printed even where the checkpoint has scales: it decides nothing"
        )
    if pages.engine == "vllm":
        return "the log has no line on scales, which is no proof: a plain checkpoint gets 1.0 without a word"
    return "the log has no line on scales, and its absence proves nothing"


def _attention(seen: Deployment, pages: Reading, log: LogFacts | None) -> Iterator[Unknown]:
    tells = _how_to_log(pages) if log is None else _BUILD
    if seen.loud.backend is None:
        why = "no page names it" if log is None else "no line of the log names it"
        cpu = log is not None and log.start is not None and (log.start.word("device") or "").lower() == "cpu"
        yield Unknown("backend", why + (": on the CPU no line does" if cpu else ""), tells)
    if seen.loud.query_dtype is None:
        why = "no line says it"
        if log is not None and log.start is not None and log.start.fact("query_dtype_prefill") is not None:
            prefill, decode = log.start.word("query_dtype_prefill"), log.start.word("query_dtype_decode")
            why = f"prefill has {prefill}, decode {decode}"
        elif log is not None and log.start is not None and log.start.fact("query_scale") is not None:
            why = "the line on q_scale is printed whether or not the backend quantizes queries"
        tells = "FlashInfer's line on query dtypes; other backends print none" if pages.engine == "vllm" else _BUILD
        yield Unknown("query_dtype", why, tells)
    if seen.loud.probability_dtype is None:
        yield Unknown("probability_dtype", "no engine prints it", _BUILD)
    if seen.loud.accumulation is None:
        yield Unknown(
            "accumulation",
            "no engine prints whether its FP8 kernel accumulates in two levels",
            "the build of the kernel; a fidelity run at long context shows what it does",
        )


def _room(seen: Deployment, pages: Reading, log: LogFacts | None) -> Iterator[Unknown]:
    if seen.consequence.cells is None and log is not None and log.consequence.cells is not None:
        yield Unknown("tokens", "the log and a page say different room", "the start log of this very server")
    elif seen.consequence.cells is None:
        why = "no page of llama.cpp gives it" if pages.engine == "llama_cpp" else "no page gives it"
        ended = log is not None and log.start is not None
        yield Unknown(
            "tokens", why + (", and the log ends before it or left it out" if ended else ""), _how_to_log(pages)
        )
    logged = log is not None and log.start is not None and log.start.whole("block_tokens") is not None
    if pages.engine != "llama_cpp" and pages.value("block_tokens") is None and not logged:
        yield Unknown("block_tokens", "no page and no line gives it", "its /metrics")


def _settings(seen: Deployment, pages: Reading) -> Iterator[Unknown]:
    tells = _how_to_log(pages)
    if pages.engine == "vllm":
        tells += ", or /server_info (VLLM_SERVER_DEV_MODE=1)"
    if pages.engine == "llama_cpp":
        # The other two mean nothing there: prompts are always cut into batches, and layers are split, not tensors.
        yield Unknown("prefix_cache", "each request decides it (cache_prompt)", "the client's own requests")
        fields: tuple[str, ...] = ("speculation", "context_tokens")
    else:
        fields = ("prefix_cache", "chunked_prefill", "speculation", "tensor_parallel", "context_tokens")
    for field in fields:
        if getattr(seen.identity, field) is None:
            yield Unknown(field, "no page and no line says it", tells)
