"""Request -> what SGLang is started with, and what it must then report. No engine is started and SGLang is not loaded.

Baseline and candidate differ in `--kv-cache-dtype` and in nothing else. The pool has a fixed number of tokens, the same
on all arms (`--max-total-tokens`), so that its tokens and bytes can be predicted and held against the log.

The radix cache stays on: the decode lane lives on it (a text that grows by a token must find its beginning there).
Everything else goes past it: each request has a salt of its own, and input log-probabilities are asked from the first
token on. `--enable-deterministic-inference` is not set, for it changes the kernels under test; a person may, with
`--engine-arg`, on all arms.

Source: sglang 0.5.23, srt/arg_groups/fields/, srt/mem_cache/kv_cache_dtype.py, srt/managers/schedule_batch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Final

from kvgate.core.deployment import Expected
from kvgate.core.engine import Launch, Request, Settings
from kvgate.core.errors import UserError
from kvgate.core.geometry import ModelGeometry
from kvgate.core.source import Source
from kvgate.core.units import MIB_BYTES
from kvgate.enginefacts.facts import version_key
from kvgate.engines._family_package import Family, Installed, find_installed
from kvgate.engines._family_recipe import Stored, one_type
from kvgate.engines._family_settings import check_request, has_flag, own_arguments, worker
from kvgate.formats.spec import codec
from kvgate.plan.engine_rules.sglang import ENGINE_RULE
from kvgate.plan.parallel import split
from kvgate.plan.price import price
from kvgate.plan.terms import Budget, Rank, Serving, Term

ENGINE: Final = "sglang"
FAMILY: Final = Family(ENGINE, "SGLang", ("sglang",), "KVGATE_SGLANG_PYTHON", ("SGLANG_", "SGL_", "OMP_NUM_THREADS"))
#: `sglang serve` is the newer word; this one is in all versions read.
MODULE: Final = "sglang.launch_server"
#: Name that requests give; the model's own may hold anything.
MODEL_NAME: Final = "model"
#: Where default sampling comes from. Without it a checkpoint's generation_config.json changes logits of greedy
#: requests too (repetition_penalty). Earlier versions were not read.
_SAMPLING_SINCE: Final = "0.5.23"
_SHAPES: Final = (
    *("--tp", "--tp-size", "--tensor-parallel-size", "--pp-size", "--pipeline-parallel-size", "--dp", "--dp-size"),
    *("--data-parallel-size", "--page-size", "--enable-dp-attention", "--swa-full-tokens-ratio"),
)
#: What kvgate decides itself, so that arms differ in nothing but the recipe and nobody else can reach the server.
_OURS: Final = (
    *("--model", "--model-path", "--tokenizer-path", "--served-model-name", "--host", "--port", "--api-key"),
    *("--admin-api-key", "--config", "--kv-cache-dtype", "--dtype", "--context-length", "--max-running-requests"),
    *("--chunked-prefill-size", "--max-total-tokens", "--disable-radix-cache", "--trust-remote-code", "--load-format"),
    *("--speculative-", "--quantization-param-path", "--sampling-defaults", "--random-seed", "--skip-server-warmup"),
    *("--log-level", "--preferred-sampling-params", "--enable-metrics", "--enable-cache-report", "--grpc-"),
)


def resolve(want: Request) -> Launch:
    """A launch of this engine for a recipe.

    Raises:
        UserError: no interpreter with SGLang, or the engine cannot do this; names the part, what is allowed and the
            fix.
    """
    geometry, settings = want.model.geometry, want.settings
    stored = words_of(want)
    check_request(want, ENGINE, secrets=("SGLANG_API_KEY",))
    own = own_arguments(settings, _OURS)
    installed = find_installed(FAMILY, want.python)
    tokens = pool_tokens(settings)
    return Launch(
        engine=ENGINE,
        request=want,
        argv=(str(installed.python), str(worker())),
        env=_env(settings),
        engine_options={
            "packages": list(FAMILY.packages),
            "module": MODULE,
            "arguments": [*_arguments(want, stored, installed, tokens), *own],
            "key_flag": "--api-key",
        },
        expected=expected_of(geometry, settings, stored, installed, own, tokens),
        effective=stored.effective,
    )


def words_of(want: Request) -> Stored:
    """What is to be stored; refuses float16 where only `auto` could give it and the checkpoint decides what that is."""
    given = want.spelling or str(want.recipe)
    stored = one_type(want.recipe, given, want.model.geometry, ENGINE)
    if stored.is_native and stored.native == "f16" and want.model.geometry.kv_scheme:
        raise UserError(
            f"KV recipe {given!r}: sglang has no word for float16 but auto, and this checkpoint's KV scheme turns auto "
            f"into {want.model.geometry.kv_scheme}",
            fix="use a checkpoint without a KV scheme as the base",
        )
    return stored


def kv_word(stored: Stored) -> str:
    """Value of --kv-cache-dtype. There is no word for float16; auto is the compute type, without a KV scheme."""
    if stored.is_native:
        return "bf16" if stored.native == "bf16" else "auto"
    return stored.spelling


def pool_tokens(settings: Settings) -> int:
    """Tokens of every arm's pool: twice what all sequences need, in whole 256 (a page of any backend)."""
    return -(-2 * max(2, settings.slots) * settings.context_tokens // 256) * 256


def _arguments(want: Request, stored: Stored, installed: Installed, tokens: int) -> list[str]:
    settings = want.settings
    made = ["--model-path", str(want.model.path), "--served-model-name", MODEL_NAME, "--load-format", "safetensors"]
    made += ["--dtype", stored.compute, "--kv-cache-dtype", kv_word(stored)]
    made += ["--context-length", str(settings.context_tokens), "--max-running-requests", str(settings.slots)]
    # One step of the engine is what other engines call a physical batch.
    made += ["--chunked-prefill-size", str(settings.ubatch_tokens), "--max-total-tokens", str(tokens)]
    made += ["--random-seed", "0", "--enable-metrics", "--enable-cache-report", "--log-level", "info"]
    made += ["--log-level-http", "warning"]
    if version_key(installed.release) >= version_key(_SAMPLING_SINCE):
        made += ["--sampling-defaults", "openai"]
    return made


def _env(settings: Settings) -> dict[str, str]:
    made = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(settings.threads),
    }
    return made | dict(settings.env)


def expected_of(
    geometry: ModelGeometry, settings: Settings, stored: Stored, installed: Installed, own: Sequence[str], tokens: int
) -> Expected:
    """What the log must say: types, and the pool's tokens and bytes where they follow from the arguments."""
    priced = price(geometry, stored.priced, engine=ENGINE)
    pool = None if has_flag(own, _SHAPES) else _pool(geometry, settings, stored, installed.release, tokens)
    return Expected(
        k_codec=stored.codec,
        v_codec=stored.codec,
        bytes_per_token=ceil(priced.bytes_per_token),
        parts_mib=() if pool is None else (pool,),
        lossless_against=(*codec(stored.codec).lossless_from, stored.codec),
    )


def _pool(
    geometry: ModelGeometry, settings: Settings, stored: Stored, release: str, tokens: int
) -> tuple[str, int, float, float] | None:
    """Kind, tokens, MiB of K and of V of the one pool; None for models with several pools, which are cut by memory."""
    ranks = tuple(
        Rank(share.name, price(share.geometry, stored.priced, engine=ENGINE), None)
        for share in split(geometry, engine=ENGINE)
    )
    layers = [p for rank in ranks for p in rank.price.layers]
    if any(p.layer.window_tokens is not None or p.state_bytes or p.layer.tokens_per_row > 1 for p in layers):
        return None
    serving = Serving(
        engine=ENGINE,
        version=release,
        context_tokens=settings.context_tokens,
        slots=settings.slots,
        batched_tokens=settings.ubatch_tokens,
        options={"max-total-tokens": str(tokens)},
    )
    # Memory enough for the tokens that are asked for: where a device has less, the log says fewer, and that is seen.
    enough = ceil(2 * tokens * sum((r.price.bytes_per_token for r in ranks), Fraction(0)))
    term = Term("pool", enough, "as much as was asked for", Source("spec", "--max-total-tokens", ""))
    reserved = ENGINE_RULE.reserve(
        geometry, stored.priced, ranks, serving, tuple(Budget(r.name, (term,)) for r in ranks)
    )
    planned = reserved.tokens
    if planned is None:
        return None
    k, v = (sum(getattr(p, side) for p in layers) for side in ("k_row_bytes", "v_row_bytes"))
    index = sum(p.index_row_bytes for p in layers)
    kinds = {p.layer.kind for p in layers}
    kind = kinds.pop() if len(kinds) == 1 else "all layers"
    return (kind, planned, round(planned * (k + index) / MIB_BYTES, 2), round(planned * v / MIB_BYTES, 2))
